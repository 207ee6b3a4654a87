"""A policy that really collapses, from a learning rate far too high, is rolled back."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.trainers.checkpoints.run_folder import claim_run_folder
from arboretum.trainers.commands.train import train
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import HardwareConfig, LoraConfig, ValidationConfig
from arboretum.trainers.monitor import Monitor
from arboretum.trainers.reporting.report import write_report
from arboretum.trainers.trainer import Trainer
from support.training import Make, equal, finish, weights, without_times

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_thread")]

ROLLBACK = Monitor(window=3, action="rollback", lr_factor=0.03)


def collapsing(run_of: Make, monitor: Monitor, **options: Any) -> TrainingConfig:
    """Return a run in which hardly a reply has the required format after two updates."""
    changes = {"optimization.lr": 1e-2, "optimization.updates": 9}
    settings = {"validation": ValidationConfig(every=0), "monitor": monitor, "checkpoint_every": 1}
    return run_of("dr_grpo", changes, **{**settings, **options})


@pytest.mark.parametrize(("lora", "lr", "factor"), [(None, 1e-2, 0.03), (LoraConfig(rank=8), 0.3, 0.001)])
def test_collapsed_policy_is_rolled_back_and_trained_at_a_lower_rate(
    run_of: Make, lora: LoraConfig | None, lr: float, factor: float
) -> None:
    monitor = dataclasses.replace(ROLLBACK, lr_factor=factor)
    config = collapsing(run_of, monitor, hardware=HardwareConfig(device="cpu", lora=lora))
    config = dataclasses.replace(config, recipe=config.recipe.with_settings({"optimization.lr": lr}))
    trainer = Trainer(config)
    states, notes = [weights(trainer)], []
    for record in trainer.run():
        states.append(weights(trainer))
        notes += [note for note in record.notes if "rolled back" in note]
    history = trainer.history
    place = next(n for n, record in enumerate(history) if "rolled_back_to" in record)
    target = int(history[place]["rolled_back_to"])
    assert place >= 2 and target < place and history[place]["update"] == place + 1
    assert max(record["valid_turns"] for record in history[2 : place + 1]) < 0.2  # The policy had collapsed.
    assert not equal(states[place], states[target]) and equal(states[place + 1], states[target])
    after = [record for record in history[place + 1 :] if "lr" in record]
    assert after and after[0]["lr"] == pytest.approx(factor * lr)
    assert min(record["valid_turns"] for record in history[place + 1 :]) > 0.5  # It does not collapse again.
    assert trainer.stopped is None and history[-1]["update"] == 9
    assert len(notes) == 1 and f"rolled back to the policy after update {target}" in notes[0]


def test_run_killed_around_its_rollback_resumes_to_the_same_numbers(run_of: Make, tmp_path: Path) -> None:
    uninterrupted = finish(Trainer(collapsing(run_of, ROLLBACK, out=tmp_path / "uninterrupted")))
    rollback = next(int(record["update"]) for record in uninterrupted.history if "rolled_back_to" in record)
    for end in (rollback - 1, rollback):
        config = collapsing(run_of, ROLLBACK, out=tmp_path / f"killed-{end}")
        for record in Trainer(config).run():
            if record.metrics["update"] == end:
                break
        resumed = Trainer(config, resume=True)
        assert resumed.state.update == end and resumed.state.rollbacks == (end >= rollback)
        finish(resumed)
        assert without_times(resumed.history) == without_times(uninterrupted.history)
        assert equal(weights(resumed), weights(uninterrupted))


def test_skipped_steps_are_counted_across_a_rollback(run_of: Make) -> None:
    trainer = finish(Trainer(run_of("dr_grpo", {"optimization.updates": 1}, checkpoint_every=1)))
    trainer.optimizer.skipped = 5
    assert trainer.checkpoints.last is not None
    trainer._contents.roll_back(trainer.checkpoints.last)
    assert trainer.optimizer.skipped == 5


def test_collapse_after_the_last_rollback_ends_the_run(run_of: Make) -> None:
    """At the same learning rate the policy collapses again."""
    from safetensors.torch import load_file

    monitor = dataclasses.replace(ROLLBACK, lr_factor=1.0, rollbacks=1)
    config = dataclasses.replace(collapsing(run_of, monitor), checkpoint_every=100)
    config = dataclasses.replace(config, recipe=config.recipe.with_settings({"optimization.updates": 30}))
    claim_run_folder(config, resume=False)
    console = Console(file=io.StringIO(), width=300)
    assert train(config, console=console) == 1
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "(rollback 1 of 1)" in text and "Ended early: update" in text
    lines = [json.loads(line) for line in (config.out / "metrics.jsonl").read_text().splitlines()]
    assert sum("rolled_back_to" in line for line in lines) == 1 and lines[-1]["update"] < 30
    # The exported model is the one from before the collapse, not the last.
    first, exported = (
        load_file(Path(folder) / "model.safetensors") for folder in (config.model, config.out / "model")
    )
    assert all(torch.equal(first[name], exported[name]) for name in exported)
    page = write_report(config.out).read_text()
    assert "to the policy after update 0" in page and "Not finished" in page


def test_fatal_sign_stops_the_run_only_if_requested(run_of: Make, tmp_path: Path) -> None:
    stopped = finish(Trainer(collapsing(run_of, dataclasses.replace(ROLLBACK, action="stop"))))
    assert stopped.stopped is not None and stopped.state.update < 9
    assert stopped.checkpoints.index.last == stopped.state.update
    assert not any("rolled_back_to" in record for record in stopped.history)
    warning = dataclasses.replace(ROLLBACK, action="warn")
    warned = finish(Trainer(collapsing(run_of, warning, out=tmp_path / "warned")))
    assert warned.stopped is None and warned.state.update == 9
