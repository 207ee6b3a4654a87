"""Several processes that learn together, on the CPU over gloo, started by Accelerate's launcher with the
configurations that are shipped."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum[lm]'")

from arboretum.trainers.checkpoints.run_folder import claim_run_folder
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import HardwareConfig, LoraConfig, ValidationConfig
from arboretum.trainers.learning.sharding import full_state_dict
from arboretum.trainers.train import export_checkpoint
from arboretum.trainers.trainer import Trainer

pytestmark = pytest.mark.heavy

EXTENSIONS = tempfile.TemporaryDirectory(prefix="extensions-")
Make = Callable[..., TrainingConfig]
with_deepspeed = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="needs DeepSpeed: pip install 'arboretum[deepspeed]'"
)
ZERO = pytest.param("zero2", marks=[with_deepspeed, pytest.mark.timeout(600)])
# Small norms, so that clipping is at work; little memory, so that gradients accumulate over micro-batches.
CHANGES: dict[str, object] = {"optimization.updates": 3, "optimization.max_grad_norm": 0.05}
OPTIONS: dict[str, Any] = {
    "validation": ValidationConfig(every=1, tasks=4),
    "hardware": HardwareConfig(microbatch_tokens=2000),
}

CHILD = """
import pickle, sys, torch
from arboretum.trainers.trainer import Training
from arboretum.trainers.learning.sharding import whole_state

torch.set_num_threads(1)
run = pickle.load(open(sys.argv[1], "rb"))
training = Training(run, resume="resume" in sys.argv)
assert training.accelerator.num_processes == 2
if "poison" in sys.argv and training.accelerator.process_index == 1:
    usual = training.learner._loss
    def poisoned(*arguments):
        loss, sums = usual(*arguments)
        return loss * (float("nan") if training.state.update == 1 else 1.0), sums
    training.learner._loss = poisoned
states = [whole_state(training.optimizer.policy)]
states[0] = {name: value.clone() for name, value in states[0].items()}
for _ in training.run():
    states.append({name: value.clone() for name, value in whole_state(training.optimizer.policy).items()})
if training.is_main:
    pieces = any(hasattr(p, "full_tensor") for p in training.optimizer.policy.parameters())
    torch.save({"states": states, "pieces": pieces, "skipped": training.optimizer.skipped}, sys.argv[2])
training.close()
torch.distributed.destroy_process_group()
"""


def launch(config: str, arguments: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Two processes under Accelerate's launcher."""
    path = files("arboretum.assets") / "accelerate" / f"{config}.yaml"
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # DeepSpeed compiles there; one of its processes that was killed at it would leave a lock for ever.
    environment.setdefault("TORCH_EXTENSIONS_DIR", EXTENSIONS.name)
    return subprocess.run(
        [*command, "--num_processes", "2", "--main_process_port", "0", *options, *arguments],
        env=environment,
        text=True,
        capture_output=True,
        timeout=500,
    )


def beside(run: TrainingConfig) -> Path:
    return run.out.with_name(run.out.name + "-child")


def child(
    config: str, run: TrainingConfig, how: tuple[str, ...] = (), options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    folder = beside(run)
    folder.mkdir(exist_ok=True)
    (folder / "child.py").write_text(CHILD)
    (folder / "run.pickle").write_bytes(pickle.dumps(run))
    names = ("child.py", "run.pickle", "found.pt")
    return launch(config, [*(str(folder / name) for name in names), *how], *options)


def together(config: str, run: TrainingConfig, *how: str) -> dict[str, Any]:
    """What two processes made of a run: the weights before and after each record, and more."""
    done = child(config, run, how)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = torch.load(beside(run) / "found.pt")
    return found


def alone(run: TrainingConfig, *, resume: bool = False) -> Trainer:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    training = Trainer(run, resume=resume)
    for _ in training.run():
        pass
    torch.set_num_threads(threads)
    return training


def numbers(run: TrainingConfig) -> list[dict[str, float]]:
    """The metrics that were written, without those of time."""
    lines = (run.out / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if "second" not in k} for line in lines]


def assert_close(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert torch.allclose(theirs[name], value, rtol=0, atol=1e-4), name


@pytest.mark.parametrize(("config", "recipe"), [("ddp", "grpo"), ("fsdp2", "grpo")])
def test_two_processes_learn_what_one_learns(config: str, recipe: str, run_of: Make, tmp_path: Path) -> None:
    one = run_of(recipe, CHANGES, out=tmp_path / "one", **OPTIONS)
    two = dataclasses.replace(one, out=tmp_path / "two")
    expected = full_state_dict(alone(one).optimizer.policy)
    found = together(config, two)
    assert found["pieces"] == (config == "fsdp2")
    assert_close(expected, found["states"][-1])
    for mine, theirs in zip(numbers(one), numbers(two), strict=True):
        assert theirs == pytest.approx(mine, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("config", ["fsdp2", ZERO])
def test_two_processes_with_a_critic_resume_as_two_or_as_one(config: str, run_of: Make, tmp_path: Path) -> None:
    one = run_of("ppo", CHANGES, out=tmp_path / "one", **OPTIONS)
    expected = full_state_dict(alone(one).optimizer.policy)
    whole = together(config, dataclasses.replace(one, out=tmp_path / "whole"))["states"]
    assert_close(expected, whole[-1])
    for mine, theirs in zip(numbers(one), numbers(dataclasses.replace(one, out=tmp_path / "whole")), strict=True):
        assert theirs == pytest.approx(mine, rel=1e-3, abs=1e-4)

    half = run_of("ppo", {**CHANGES, "optimization.updates": 2}, out=tmp_path / "half", **OPTIONS)
    together(config, half)
    shutil.copytree(tmp_path / "half", tmp_path / "other")
    resumed = dataclasses.replace(one, out=tmp_path / "half")
    again = together(config, resumed, "resume")["states"][-1]
    assert all(torch.equal(again[name], value) for name, value in whole[-1].items())
    assert numbers(resumed) == numbers(dataclasses.replace(one, out=tmp_path / "whole"))
    other = alone(dataclasses.replace(one, out=tmp_path / "other"), resume=True)
    assert_close(expected, full_state_dict(other.optimizer.policy))

    from transformers import AutoModelForCausalLM

    to_plain = AutoModelForCausalLM.from_pretrained(export_checkpoint(resumed.out, "last")).state_dict()
    assert all(torch.equal(value, again[f"causal.{name}"]) for name, value in to_plain.items())


@pytest.mark.parametrize("config", ["fsdp2", ZERO])
def test_all_processes_skip_the_step_that_is_poisoned_in_one(config: str, run_of: Make, tmp_path: Path) -> None:
    changes = {**CHANGES, "optimization.episodes_per_step": 12}
    options = {**OPTIONS, "validation": ValidationConfig(every=0)}
    found = together(config, run_of("ppo", changes, **options), "poison")
    states = found["states"]
    changed = [any(not torch.equal(a[n], b[n]) for n in a) for a, b in itertools.pairwise(states)]
    assert changed == [True, False, True] and found["skipped"] == 1
    assert all(value.isfinite().all() for value in states[-1].values())


def test_adapters_in_pieces(run_of: Make, tmp_path: Path) -> None:
    """LoRA under FSDP: the reference is the model without its adapters; the export has them merged."""
    options = {**OPTIONS, "hardware": HardwareConfig(microbatch_tokens=2000, lora=LoraConfig(rank=4, alpha=8))}
    one = run_of("grpo", {**CHANGES, "optimization.lr": 1e-2}, out=tmp_path / "one", **options)
    two = dataclasses.replace(one, out=tmp_path / "two")
    for run in (one, two):
        claim_run_folder(run, resume=False)
    expected = full_state_dict(alone(one).optimizer.policy)
    assert_close(expected, together("fsdp2", two)["states"][-1])
    from transformers import AutoModelForCausalLM

    mine, theirs = (
        AutoModelForCausalLM.from_pretrained(export_checkpoint(run.out, "last")).state_dict() for run in (one, two)
    )
    assert_close(dict(mine), dict(theirs))


def test_the_command_under_the_launcher(warm_model: Path, tmp_path: Path) -> None:
    command = [
        "-m",
        "arboretum.cli",
        "train",
        "dr_grpo",
        "--env",
        "TextFrozenLake-v0",
        "--model",
        str(warm_model),
    ]
    settings = ["sampler.prompts=2", "sampler.rollouts=2", "sampler.reply_tokens=8", "sampler.max_turns=2"]
    settings += ["optimization.updates=1", "optimization.episodes_per_step=4"]
    told = [part for setting in settings for part in ("--set", setting)]
    done = launch("fsdp2", [*command, "--out", str(tmp_path / "run"), *told])
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("Model:") == 1, "one process speaks"
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_configurations_that_cannot_work_are_refused(run_of: Make) -> None:
    run = run_of("dr_grpo", CHANGES, **OPTIONS)
    done = child("fsdp2", run, options=("--fsdp_version", "1"))
    assert done.returncode != 0 and "ConfigurationError" in done.stderr and "set fsdp_version: 2" in done.stderr
