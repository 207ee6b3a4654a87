"""Asynchronous sampling: rollouts one update behind, the corrected loss, exact continuation, and failures."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.recipes import get_recipe
from arboretum.trainers.config.resolve import resolve_correction
from arboretum.trainers.config.settings import HardwareConfig, SteppingConfig, ValidationConfig
from support.training import Make, equal, finish, weights, without_times

for module in ("torch", "accelerate"):
    pytest.importorskip(module, reason="needs torch and accelerate: pip install 'arboretum-rl[lm]'")

pytestmark = pytest.mark.usefixtures("one_thread")

AHEAD = {"sampler.asynchronous": True, "optimization.updates": 4}


def test_loss_is_the_truncated_decoupled_objective_worked_by_hand() -> None:
    """Two tokens: π/π_old is 1.5 and 1, π_old/π_sampler is 4 and 0.5, advantages 1 and -2, weights 1/2.

    The surrogate is -min(1.5, 1.2)·1 = -1.2 and 2, the importance weights min(4, 2) = 2 and 0.5, so the loss is
    (2 · -1.2 + 0.5 · 2) / 2 = -0.7. The first token is clipped, so its gradient is 0; that of the second with
    respect to its log-probability is 0.5 · 2 · 1 / 2 = 0.5.
    """
    import torch

    from arboretum.trainers.algorithms.objectives.loss import policy_loss
    from arboretum.trainers.algorithms.objectives.tokens import Tokens

    recipe = resolve_correction(get_recipe("grpo").with_settings({**AHEAD, "objective.kl.coef": 0.0}))
    plain = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": None, "entropy_coef": 0.0}
    objective = dataclasses.replace(recipe.objective, **plain)
    assert objective.mismatch.cap == 2.0
    old = torch.tensor([-2.0, -1.0])
    logp = (old + torch.tensor([math.log(1.5), 0.0])).requires_grad_()
    tokens = Tokens(
        logp=logp,
        advantages=torch.tensor([1.0, -2.0]),
        weights=torch.tensor([0.5, 0.5]),
        rows=torch.tensor([0, 1]),
        turns=torch.tensor([0, 1]),
        old_logp=old,
        sampler_logp=old - torch.tensor([math.log(4.0), math.log(0.5)]),
    )
    loss, sums = policy_loss(objective, tokens)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-0.7)
    assert logp.grad is not None and logp.grad.tolist() == pytest.approx([0.0, 0.5])
    assert sums["mismatch_weight"] == pytest.approx(2.5)


def test_full_disk_is_reported_before_the_weights_are_mapped(tmp_path: Path) -> None:
    """A mapped file without room ends the process at a write, without an exception."""
    pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
    resource = pytest.importorskip("resource", reason="needs a limit of file sizes, which Windows has not")
    from arboretum.trainers.sampling.asynchronous import allocate

    allocate(tmp_path / "small", 4096)
    assert (tmp_path / "small").stat().st_size == 4096
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(
            ConfigurationError, match=r"has no room for the 0\.0 GiB .*set the environment .* TMPDIR"
        ):
            allocate(tmp_path / "large", 2 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_given_cap_is_kept_and_synchronous_sampling_needs_none() -> None:
    given = get_recipe("grpo").with_settings({**AHEAD, "objective.mismatch.cap": 5.0})
    assert resolve_correction(given).objective.mismatch.cap == 5.0
    assert resolve_correction(get_recipe("grpo")).objective.mismatch.cap is None


def test_engine_that_cannot_sample_in_another_process_is_refused(
    run_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arboretum.trainers.config.run.find_spec", lambda name: object())
    config = run_of("grpo", AHEAD, hardware=HardwareConfig(device="cpu", engine="vllm"))
    with pytest.raises(ConfigurationError, match=r"sampler\.asynchronous works with engine = transformers"):
        config.check()


def test_cluster_of_environments_is_refused_beside_another_process_that_samples(
    run_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arboretum.trainers.config.run.find_spec", lambda name: object())
    config = run_of("grpo", AHEAD, stepping=SteppingConfig(ray="auto"))
    with pytest.raises(ConfigurationError, match=r"set sampler\.asynchronous=false, or leave --ray out"):
        config.check()


@pytest.mark.heavy
def test_rollouts_are_those_of_the_weights_before_the_last_update(run_of: Make, tmp_path: Path) -> None:
    """At a learning rate of 0 the weights of a synchronous run stay those that the first two batches share."""
    from arboretum.trainers.trainer import Trainer

    sampled = ("success", "return", "turns", "reply_tokens", "sampled_tokens")
    ahead = finish(Trainer(run_of("grpo", {**AHEAD, "optimization.lr": 3e-3}, out=tmp_path / "ahead")))
    ahead.close()
    still = {"optimization.updates": 3, "optimization.lr": 1e-30}
    frozen = finish(Trainer(run_of("grpo", still, out=tmp_path / "frozen")))
    updates = [
        [{name: one[name] for name in sampled} for one in run.history if one["update"]] for run in (ahead, frozen)
    ]
    assert updates[0][:2] == updates[1][:2]
    assert updates[0][2] != updates[1][2]  # sampled with the weights after the first update
    lags = [one["sampler_lag"] for one in ahead.history if one["update"]]
    assert lags == [0, 1, 1, 1]
    drift = {one["update"]: one["mismatch_abs"] for one in ahead.history if "mismatch_abs" in one}
    assert drift.pop(1) < 1e-4 < max(drift.values())


@pytest.mark.heavy
def test_interrupted_run_continues_and_is_prolonged_to_the_same_numbers(run_of: Make, tmp_path: Path) -> None:
    """Without validation, since the last update of a run has one in any case."""
    from arboretum.trainers.trainer import Trainer

    def start(name: str, updates: int, *, resume: bool = False) -> Trainer:
        common = {"checkpoint_every": 1, "validation": ValidationConfig(every=0)}
        changes = {**AHEAD, "optimization.updates": updates}
        return Trainer(run_of("grpo", changes, out=tmp_path / name, **common), resume=resume)

    whole = finish(start("whole", 3))
    whole.close()
    part = start("part", 2)
    next(part.run())  # The rollouts of the second update are being sampled.
    part.close()
    resumed = finish(start("part", 3, resume=True))
    resumed.close()
    assert without_times(resumed.history) == without_times(whole.history)
    assert equal(weights(resumed), weights(whole))


UNFINISHED = """
import sys
from pathlib import Path
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import DialogueConfig, EnvConfig, HardwareConfig, ValidationConfig
from arboretum.trainers.trainer import Trainer

if __name__ == "__main__":
    settings = {"sampler.asynchronous": True, "optimization.episodes_per_step": None}
    recipe = RECIPES["grpo"].with_settings(settings)
    parts = {"dialogue": DialogueConfig("no_think"), "hardware": HardwareConfig(device="cpu")}
    config = TrainingConfig(recipe, EnvConfig("TextFrozenLake-v0"), "sapling", Path(sys.argv[1]), **parts)
    trainer = Trainer(config)
    raise SystemExit("the program failed")
"""


@pytest.mark.heavy
def test_program_that_fails_without_closing_its_trainer_ends(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(UNFINISHED, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.stderr.strip().endswith("the program failed")


@pytest.mark.heavy
def test_death_of_the_sampling_process_ends_the_run_with_a_reason(run_of: Make) -> None:
    from arboretum.trainers.sampling.failures import SamplingFailed
    from arboretum.trainers.trainer import Trainer

    trainer = Trainer(run_of("grpo", AHEAD, checkpoint_every=1))
    with pytest.raises(SamplingFailed, match=r"its process ended; sampling.log in the run's folder"):
        for record in trainer.run():
            if record.metrics["update"] == 1:
                assert trainer._ahead is not None
                os.kill(trainer._ahead._process.pid or 0, signal.SIGKILL)
    trainer.close()
    assert trainer.checkpoints.last is not None  # of every complete update
