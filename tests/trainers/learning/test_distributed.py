"""Two processes train as one does, on the CPU over gloo, with DDP, FSDP 2 and DeepSpeed ZeRO 2.

They are started by Accelerate's launcher with the shipped configurations.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.trainers.checkpoints.export import export_checkpoint
from arboretum.trainers.checkpoints.run_folder import claim_run_folder
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import HardwareConfig, LoraConfig, ValidationConfig
from arboretum.trainers.learning.sharding import full_state_dict
from arboretum.trainers.trainer import Trainer
from support.launching import accelerate, assert_metrics_close, assert_weights_close, written_metrics
from support.sessions import session_folder

pytestmark = pytest.mark.heavy

Make = Callable[..., TrainingConfig]
with_deepspeed = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="needs DeepSpeed: pip install 'arboretum-rl[deepspeed]'"
)
ZERO = pytest.param("zero2", marks=[with_deepspeed, pytest.mark.timeout(600)])
# The low norm makes clipping take effect; the small micro-batches make gradients accumulate.
CHANGES: dict[str, object] = {"optimization.updates": 3, "optimization.max_grad_norm": 0.05}
OPTIONS: dict[str, Any] = {
    "validation": ValidationConfig(every=1, tasks=4),
    "hardware": HardwareConfig(microbatch_tokens=2000),
}

CHILD = """
import itertools, os, pickle, sys, time, traceback
from pathlib import Path
import torch
from arboretum.trainers.trainer import Trainer
from arboretum.trainers.learning.sharding import full_state_dict

torch.set_num_threads(1)

def train(config, flags):
    trainer = Trainer(config, resume="resume" in flags)
    assert trainer.accelerator.num_processes == 2
    if "poison" in flags and trainer.accelerator.process_index == 1:
        loss_of = trainer.learner._loss
        def poisoned(*arguments):
            loss, sums = loss_of(*arguments)
            return loss * (float("nan") if trainer.state.update == 1 else 1.0), sums
        trainer.learner._loss = poisoned
    def full_weights():
        return {name: value.clone() for name, value in full_state_dict(trainer.optimizer.policy).items()}
    states = [full_weights()]
    for _ in trainer.run():
        states.append(full_weights())
    sharded = any(hasattr(p, "full_tensor") for p in trainer.optimizer.policy.parameters())
    trainer.close()
    return trainer, {"states": states, "sharded": sharded, "skipped": trainer.optimizer.skipped}

folder = Path(sys.argv[1])
for number in itertools.count():
    job = folder / f"{number}.job"
    while not job.exists():
        time.sleep(0.02)
    run = pickle.loads(job.read_bytes())
    if run is None:
        break
    trainer, result = train(*run)
    if trainer.is_main:
        torch.save(result, folder / "result.part")
        os.replace(folder / "result.part", folder / f"{number}.result")
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
"""


class Pair:
    """Two processes under a launcher, which train one run after another: starting them takes most of the time."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.folder, self.runs = folder, 0
        folder.mkdir()
        (folder / "child.py").write_text(CHILD)
        with (folder / "stderr.txt").open("w") as errors:
            self.process = subprocess.Popen(
                [*command, str(folder / "child.py"), str(folder)],
                stderr=errors,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def send(self, run: tuple[TrainingConfig, Sequence[str]] | None) -> Path:
        """Hand the next run to both processes, or None to end them; return the file of its result."""
        job = self.folder / f"{self.runs}.job"
        job.with_suffix(".part").write_bytes(pickle.dumps(run))
        job.with_suffix(".part").replace(job)
        self.runs += 1
        return job.with_suffix(".result")

    def train(self, config: TrainingConfig, *flags: str) -> dict[str, Any]:
        """Return the weights before and after each record of a training run, and more."""
        file = self.send((config, flags))
        while not file.exists() and self.process.poll() is None:
            time.sleep(0.02)
        assert file.exists(), (self.folder / "stderr.txt").read_text()[-4000:]
        result: dict[str, Any] = torch.load(file)
        return result

    def close(self) -> None:
        self.send(None)
        try:
            self.process.wait(60)
        finally:
            self.process.kill()


Pairs = Callable[[str], Pair]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    """Return a function that returns the pair of processes of a configuration of Accelerate."""
    running: dict[str, Pair] = {}
    # DeepSpeed compiles its extensions once a session. A process killed meanwhile would leave a lock for ever.
    extensions = session_folder(tmp_path_factory) / "extensions"

    def pair_of(accelerate_config: str) -> Pair:
        pair = running.get(accelerate_config)
        if pair is None or pair.process.poll() is not None:
            pair = Pair(accelerate(accelerate_config), tmp_path_factory.mktemp("pair") / "pair")
            running[accelerate_config] = pair
        return pair

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(extensions))
        yield pair_of
    for pair in running.values():
        pair.close()


def train_with_one(config: TrainingConfig, *, resume: bool = False) -> Trainer:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    trainer = Trainer(config, resume=resume)
    for _ in trainer.run():
        pass
    torch.set_num_threads(threads)
    return trainer


@pytest.mark.parametrize("accelerate_config", ["ddp", "fsdp2"])
def test_two_processes_reach_the_weights_of_one(
    accelerate_config: str, run_of: Make, pairs: Pairs, tmp_path: Path
) -> None:
    one = run_of("grpo", CHANGES, out=tmp_path / "one", **OPTIONS)
    two = dataclasses.replace(one, out=tmp_path / "two")
    expected = full_state_dict(train_with_one(one).optimizer.policy)
    result = pairs(accelerate_config).train(two)
    assert result["sharded"] == (accelerate_config == "fsdp2")
    assert_weights_close(result["states"][-1], expected)
    assert_metrics_close(two, one)


@pytest.mark.parametrize("choice", ["random", "value"])
def test_two_processes_grow_the_trees_of_one(choice: str, run_of: Make, pairs: Pairs, tmp_path: Path) -> None:
    """Three prompts: one process grows the trees of one of them, the other those of two."""
    changes = {**CHANGES, "sampler.choice": choice, "sampler.rounds": 2}
    one = run_of("tree_grpo", changes, out=tmp_path / "one", **OPTIONS)
    two = dataclasses.replace(one, out=tmp_path / "two")
    expected = full_state_dict(train_with_one(one).optimizer.policy)
    assert_weights_close(pairs("ddp").train(two)["states"][-1], expected)
    assert_metrics_close(two, one)
    rounds = written_metrics(one)[1:]
    assert all(record["expansions"] == 3 * 2 * 4 and record["reused_tokens"] > 0 for record in rounds)


@pytest.mark.parametrize("recipe", ["grove", "tree_grpo"])
def test_two_processes_pool_the_states_of_one(recipe: str, run_of: Make, pairs: Pairs, tmp_path: Path) -> None:
    """Three prompts: the episodes of one group are sampled in both processes, and valued together."""
    changes = {**CHANGES, "credit.name": "grove", "credit.redraws": 3}
    one = run_of(recipe, changes, out=tmp_path / "one", **OPTIONS)
    two = dataclasses.replace(one, out=tmp_path / "two")
    expected = full_state_dict(train_with_one(one).optimizer.policy)
    assert_weights_close(pairs("ddp").train(two)["states"][-1], expected)
    assert_metrics_close(two, one)
    assert all(record["grove/recurring"] > 0 for record in written_metrics(one)[1:])


T_STAR: dict[str, object] = {
    "sampler.prompts": 4,
    "sampler.rollouts": 6,
    "optimization.lr": 1e-3,
    "optimization.episodes_per_step": 12,
    "grafting.max_age": 2,
}


@pytest.mark.parametrize(
    ("accelerate_config", "rank"),
    [("ddp", 0), ("fsdp2", 0), ("fsdp2", 4), pytest.param("zero2", 0, marks=ZERO.marks)],
)
def test_two_processes_graft_and_average_as_one(
    accelerate_config: str, rank: int, run_of: Make, pairs: Pairs, tmp_path: Path
) -> None:
    """Every pair counts once, and the moving average is the same in every process."""
    lora = LoraConfig(rank=rank, alpha=8) if rank else None
    options = {**OPTIONS, "hardware": HardwareConfig(microbatch_tokens=2000, lora=lora)}
    one = run_of("t_star", {**CHANGES, **T_STAR}, out=tmp_path / "one", **options)
    two = dataclasses.replace(one, out=tmp_path / "two")
    for config in (one, two):
        claim_run_folder(config, resume=False)
    trainer = train_with_one(one)
    assert sum(record.get("pairs", 0.0) for record in trainer.history) > 2
    expected = full_state_dict(trainer.optimizer.policy)
    assert_weights_close(pairs(accelerate_config).train(two)["states"][-1], expected)
    assert_metrics_close(two, one)
    last = "checkpoints/update-000003/trainer.pt"
    averages = [torch.load(config.out / last)["learner"]["reference"] for config in (one, two)]
    assert_weights_close(averages[1], averages[0])


def test_two_processes_under_the_launcher_of_torch_reach_the_weights_of_one(
    run_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"optimization.updates": 3}
    options = {**OPTIONS, "hardware": HardwareConfig(device="cpu", microbatch_tokens=2000)}
    one = run_of("ppo", changes, out=tmp_path / "one", **options)
    two = dataclasses.replace(one, out=tmp_path / "two")
    expected = full_state_dict(train_with_one(one).optimizer.policy)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    pair = Pair(launcher, tmp_path / "pair")
    result = pair.train(two)
    pair.close()
    assert_weights_close(result["states"][-1], expected, 1e-5)
    assert_metrics_close(two, one)


@pytest.mark.parametrize("accelerate_config", ["fsdp2", ZERO])
def test_two_processes_with_a_critic_resume_as_two_or_as_one(
    accelerate_config: str, run_of: Make, pairs: Pairs, tmp_path: Path
) -> None:
    changes = {**CHANGES, "critic.warmup": 1}
    one = run_of("ppo", changes, out=tmp_path / "one", **OPTIONS)
    expected = full_state_dict(train_with_one(one).optimizer.policy)
    uninterrupted = dataclasses.replace(one, out=tmp_path / "uninterrupted")
    final = pairs(accelerate_config).train(uninterrupted)["states"][-1]
    assert_weights_close(final, expected)
    assert_metrics_close(uninterrupted, one)

    pairs(accelerate_config).train(
        run_of("ppo", {**changes, "optimization.updates": 2}, out=tmp_path / "two", **OPTIONS)
    )
    shutil.copytree(tmp_path / "two", tmp_path / "copy")
    resumed_by_two = dataclasses.replace(one, out=tmp_path / "two")
    weights = pairs(accelerate_config).train(resumed_by_two, "resume")["states"][-1]
    assert all(torch.equal(weights[name], value) for name, value in final.items())
    assert written_metrics(resumed_by_two) == written_metrics(uninterrupted)
    resumed_by_one = train_with_one(dataclasses.replace(one, out=tmp_path / "copy"), resume=True)
    assert_weights_close(full_state_dict(resumed_by_one.optimizer.policy), expected)

    from transformers import AutoModelForCausalLM

    exported = AutoModelForCausalLM.from_pretrained(export_checkpoint(resumed_by_two.out, "last")).state_dict()
    assert all(torch.equal(value, weights[f"model.{name}"]) for name, value in exported.items())


@pytest.mark.parametrize("accelerate_config", ["fsdp2", ZERO])
def test_nan_gradient_in_one_process_is_skipped_by_all(accelerate_config: str, run_of: Make, pairs: Pairs) -> None:
    changes = {**CHANGES, "optimization.episodes_per_step": 12}
    options = {**OPTIONS, "validation": ValidationConfig(every=0)}
    result = pairs(accelerate_config).train(run_of("ppo", changes, **options), "poison")
    states = result["states"]
    changed = [any(not torch.equal(a[n], b[n]) for n in a) for a, b in itertools.pairwise(states)]
    assert changed == [True, False, True] and result["skipped"] == 1
    assert all(value.isfinite().all() for value in states[-1].values())


def test_sharded_adapters_reach_the_weights_of_one_process(run_of: Make, pairs: Pairs, tmp_path: Path) -> None:
    """With LoRA the reference is the model without its adapters; the exported model has them merged."""
    options = {**OPTIONS, "hardware": HardwareConfig(microbatch_tokens=2000, lora=LoraConfig(rank=4, alpha=8))}
    one = run_of("grpo", {**CHANGES, "optimization.lr": 1e-2}, out=tmp_path / "one", **options)
    two = dataclasses.replace(one, out=tmp_path / "two")
    for config in (one, two):
        claim_run_folder(config, resume=False)
    expected = full_state_dict(train_with_one(one).optimizer.policy)
    assert_weights_close(pairs("fsdp2").train(two)["states"][-1], expected)
    from transformers import AutoModelForCausalLM

    exported_by_one, exported_by_two = (
        dict(AutoModelForCausalLM.from_pretrained(export_checkpoint(config.out, "last")).state_dict())
        for config in (one, two)
    )
    assert_weights_close(exported_by_two, exported_by_one)


def test_train_command_under_the_launcher_prints_once(warm_model: Path, tmp_path: Path) -> None:
    command = ["-m", "arboretum.cli", "train", "dr_grpo", "--env", "TextFrozenLake-v0", "--model", str(warm_model)]
    settings = ["sampler.prompts=2", "sampler.rollouts=2", "sampler.reply_tokens=8", "sampler.max_turns=2"]
    settings += ["optimization.updates=1", "optimization.episodes_per_step=4"]
    options = [part for setting in settings for part in ("--set", setting)]
    done = subprocess.run(
        [*accelerate("fsdp2"), *command, "--out", str(tmp_path / "run"), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("Model:") == 1
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_unsupported_configuration_of_accelerate_is_rejected(run_of: Make, tmp_path: Path) -> None:
    pair = Pair([*accelerate("fsdp2"), "--fsdp_version", "1"], tmp_path / "pair")
    with pytest.raises(AssertionError, match=r"(?s)ConfigurationError.*set fsdp_version: 2"):
        pair.train(run_of("dr_grpo", CHANGES, **OPTIONS))
    assert pair.process.wait(60) != 0


@with_deepspeed
def test_deepspeed_that_is_not_used_prints_nothing() -> None:
    """Its own warnings stay."""
    code = (
        "from arboretum.trainers.learning.distributed import make_accelerator\n"
        "accelerator = make_accelerator('cpu', 'float32')\n"
        "from deepspeed.accelerator import get_accelerator\n"
        "from deepspeed.utils import logger\n"
        "get_accelerator(); logger.warning('low on memory')\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    done = subprocess.run([sys.executable, "-c", code], env=env, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "[WARNING]" in line]
    assert len(lines) == 1 and lines[0].endswith("low on memory")
