"""A resumed run continues to the same numbers, bit for bit, and an exported checkpoint is a plain model."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.checkpoints.export import export_checkpoint
from arboretum.trainers.checkpoints.run_folder import claim_run_folder
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import EnvConfig, HardwareConfig, LoraConfig, ValidationConfig
from arboretum.trainers.learning.policy import load_trainable_model
from arboretum.trainers.trainer import Trainer
from support.training import Make, equal, finish, weights, without_times

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_thread")]


def run_until(trainer: Trainer, update: int) -> None:
    """Make updates, and abandon the run after the record of one."""
    for record in trainer.run():
        if record.metrics["update"] == update:
            break


@pytest.mark.parametrize("name", ["ppo", "gigpo", "dapo_tstar"])
def test_resumed_run_continues_to_the_same_numbers(name: str, run_of: Make, tmp_path: Path) -> None:
    changes: dict[str, object] = {"optimization.updates": 4, "optimization.schedule": "cosine"}
    uninterrupted = finish(Trainer(run_of(name, changes, out=tmp_path / "uninterrupted")))
    config = run_of(name, changes, out=tmp_path / "interrupted", checkpoint_every=2)
    run_until(Trainer(config), 3)  # One update after the checkpoint: it must be made again.
    resumed = Trainer(config, resume=True)
    assert resumed.state.update == 2
    finish(resumed)
    assert without_times(resumed.history) == without_times(uninterrupted.history)
    assert equal(weights(resumed), weights(uninterrupted))
    written = [json.loads(line) for line in (config.out / "metrics.jsonl").read_text().splitlines()]
    assert without_times(written) == without_times(uninterrupted.history)


def kill_after_two_updates(config: TrainingConfig) -> None:
    """Run a training in a process of its own, and kill it as soon as its second update is logged."""
    code = (
        "import sys, pickle, torch; torch.set_num_threads(1)\n"
        "from arboretum.trainers.trainer import Trainer\n"
        "[None for _ in Trainer(pickle.load(sys.stdin.buffer)).run()]"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert child.stdin is not None
    child.stdin.write(pickle.dumps(config))
    child.stdin.close()
    deadline = time.monotonic() + 120
    path = config.out / "metrics.jsonl"
    while not (path.exists() and path.read_text().count("\n") >= 3):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)  # An update was just logged, so its checkpoint is being written.
    child.wait()


def assert_resumes_exactly(config: TrainingConfig, uninterrupted: Trainer) -> None:
    resumed = Trainer(config, resume=True)
    assert 0 < resumed.state.update < config.recipe.optimization.updates
    finish(resumed)
    assert without_times(resumed.history) == without_times(uninterrupted.history)
    assert equal(weights(resumed), weights(uninterrupted))


def test_killed_run_resumes_to_the_same_numbers(run_of: Make, tmp_path: Path) -> None:
    changes: dict[str, object] = {"optimization.updates": 5}
    uninterrupted = finish(Trainer(run_of("grpo", changes, out=tmp_path / "uninterrupted")))
    config = run_of("grpo", changes, out=tmp_path / "killed", checkpoint_every=1)
    kill_after_two_updates(config)
    assert_resumes_exactly(config, uninterrupted)


KILLED_IN_A_ROUND = """
import os, pickle, signal, sys, torch

torch.set_num_threads(1)
from arboretum.trainers.sampling.tree_growth import TreeGrowth
from arboretum.trainers.trainer import Trainer

trainer = Trainer(pickle.load(sys.stdin.buffer))
add = TreeGrowth.add

def add_or_die(self, episode):
    add(self, episode)
    if trainer.state.update == 2 and episode.details.get("reused_turns"):
        os.kill(os.getpid(), signal.SIGKILL)

TreeGrowth.add = add_or_die
for _ in trainer.run():
    pass
"""


@pytest.mark.parametrize("choice", ["random", "entropy", "value"])
def test_run_killed_in_an_expansion_round_resumes_to_the_same_numbers(
    choice: str, run_of: Make, tmp_path: Path
) -> None:
    """The process ends when the first branch of the third update has ended, with others of its round in flight."""
    changes: dict[str, object] = {
        "optimization.updates": 4,
        "sampler.rounds": 2,
        "sampler.leaves": 4,
        "sampler.choice": choice,
        "credit.prefix_weighting": "mean",
    }
    uninterrupted = finish(Trainer(run_of("tree_grpo", changes, out=tmp_path / "uninterrupted")))
    config = run_of("tree_grpo", changes, out=tmp_path / "killed", checkpoint_every=1)
    child = subprocess.run(
        [sys.executable, "-c", KILLED_IN_A_ROUND],
        input=pickle.dumps(config),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    assert child.returncode == -signal.SIGKILL
    assert_resumes_exactly(config, uninterrupted)


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_killed_run_of_the_shipped_model_resumes_to_the_same_numbers(
    name: str, run_of: Make, tmp_path: Path
) -> None:
    """The shipped model is stored in half precision, a checkpoint in full: weights are read differently."""
    changes: dict[str, object] = {
        "sampler.prompts": 8,
        "sampler.rollouts": 8,
        "sampler.reply_tokens": 24,
        "optimization.updates": 5,
        "optimization.episodes_per_step": 32,
    }
    env = EnvConfig("TextFrozenLake-v0", {"observation_format": "grid"})
    options = {"model": "sapling", "env": env, "validation": ValidationConfig(every=2, tasks=32)}
    uninterrupted = finish(Trainer(run_of(name, changes, out=tmp_path / "uninterrupted", **options)))
    config = run_of(name, changes, out=tmp_path / "killed", checkpoint_every=1, **options)
    kill_after_two_updates(config)
    assert_resumes_exactly(config, uninterrupted)


def test_weights_from_a_file_lie_at_the_alignment_of_new_tensors(warm_model: Path) -> None:
    """Matrix-vector products round differently at other alignments."""
    model, _ = load_trainable_model(warm_model, "cpu")
    alignment = torch.zeros(8).data_ptr() % 64
    assert {weight.data_ptr() % 64 for weight in model.parameters()} == {alignment}
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_lora_run_trains_adapters_only_resumes_and_exports_a_plain_model(run_of: Make, tmp_path: Path) -> None:
    hardware = HardwareConfig(device="cpu", lora=LoraConfig(rank=4, alpha=8), gradient_checkpointing=True)
    changes: dict[str, object] = {"optimization.updates": 3, "optimization.lr": 1e-2}
    uninterrupted = finish(Trainer(run_of("grpo", changes, out=tmp_path / "uninterrupted", hardware=hardware)))
    config = run_of("grpo", changes, out=tmp_path / "interrupted", hardware=hardware, checkpoint_every=1)
    claim_run_folder(config, resume=False)
    interrupted = Trainer(config)
    start = weights(interrupted)
    run_until(interrupted, 1)
    resumed = finish(Trainer(config, resume=True))
    assert without_times(resumed.history) == without_times(uninterrupted.history)
    after = weights(resumed)
    changed = {name for name in after if not torch.equal(after[name], start[name])}
    assert changed and all("lora_" in name for name in changed)
    from transformers import AutoModelForCausalLM

    exported = AutoModelForCausalLM.from_pretrained(export_checkpoint(config.out, "last"))
    assert not any("lora" in name for name, _ in exported.named_parameters())
    ids = torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        expected = resumed.optimizer.policy.model.eval()(input_ids=ids).logits
        assert torch.allclose(exported(input_ids=ids).logits, expected, atol=1e-4)


def test_export_of_a_folder_without_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no checkpoint"):
        export_checkpoint(tmp_path / "nothing")
