"""A policy that really collapses, from a learning rate far too high, is brought back."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum[lm]'")

from arboretum.trainers.checkpoints.run_folder import claim_run_folder
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import HardwareConfig, LoraConfig, ValidationConfig
from arboretum.trainers.monitor import Monitor
from arboretum.trainers.reporting.report import write_report
from arboretum.trainers.train import train
from arboretum.trainers.trainer import Trainer

pytestmark = pytest.mark.heavy

Make = Callable[..., TrainingConfig]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def doomed(run_of: Make, monitor: Monitor, **options: Any) -> TrainingConfig:
    """After two updates with this learning rate hardly a reply is words any more."""
    changes = {"optimization.lr": 1e-2, "optimization.updates": 9}
    return run_of(
        "dr_grpo",
        changes,
        **{"validation": ValidationConfig(every=0), "monitor": monitor, "checkpoint_every": 1, **options},
    )


def weights(training: Trainer) -> dict[str, Any]:
    return {name: value.clone() for name, value in training.optimizer.policy.state_dict().items()}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def numbers(history: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{k: v for k, v in record.items() if "second" not in k} for record in history]


BACK = Monitor(window=3, action="rollback", lr_factor=0.03)


@pytest.mark.parametrize(("lora", "lr", "factor"), [(None, 1e-2, 0.03), (LoraConfig(rank=8), 0.3, 0.001)])
def test_a_collapsed_policy_goes_back_and_learns_on_more_slowly(
    run_of: Make, lora: LoraConfig | None, lr: float, factor: float
) -> None:
    monitor = dataclasses.replace(BACK, lr_factor=factor)
    run = doomed(run_of, monitor, hardware=HardwareConfig(device="cpu", lora=lora))
    run = dataclasses.replace(run, recipe=run.recipe.with_settings({"optimization.lr": lr}))
    training = Trainer(run)
    states, notes = [weights(training)], []
    for record in training.run():
        states.append(weights(training))
        notes += record.notes
    history = training.history
    at = next(n for n, record in enumerate(history) if "rolled_back_to" in record)
    goal = int(history[at]["rolled_back_to"])
    assert at >= 2 and goal < at and history[at]["update"] == at + 1
    assert max(record["valid_turns"] for record in history[2 : at + 1]) < 0.2  # it had collapsed
    assert not same(states[at], states[goal]) and same(states[at + 1], states[goal])
    after = [record for record in history[at + 1 :] if "lr" in record]
    assert after and after[0]["lr"] == pytest.approx(factor * lr)
    assert min(record["valid_turns"] for record in history[at + 1 :]) > 0.5  # and stays well
    assert training.stopped is None and history[-1]["update"] == 9
    assert len(notes) == 1 and f"went back to the policy after update {goal}" in notes[0]


def test_a_run_killed_around_its_rollback_resumes_to_the_same_numbers(run_of: Make, tmp_path: Path) -> None:
    whole = Trainer(doomed(run_of, BACK, out=tmp_path / "whole"))
    for _ in whole.run():
        pass
    at = next(int(record["update"]) for record in whole.history if "rolled_back_to" in record)
    for end in (at - 1, at):
        run = doomed(run_of, BACK, out=tmp_path / f"killed-{end}")
        first = Trainer(run)
        for record in first.run():
            if record.metrics["update"] == end:
                break
        second = Trainer(run, resume=True)
        assert second.state.update == end and second.state.rollbacks == (end >= at)
        for _ in second.run():
            pass
        assert numbers(second.history) == numbers(whole.history)
        assert same(weights(second), weights(whole))


def test_rollbacks_that_do_not_help_end_the_run(run_of: Make) -> None:
    """At the same learning rate it collapses again."""
    from safetensors.torch import load_file

    monitor = dataclasses.replace(BACK, lr_factor=1.0, rollbacks=1)
    run = dataclasses.replace(doomed(run_of, monitor), checkpoint_every=100)
    recipe = run.recipe.with_settings({"optimization.updates": 30})
    run = dataclasses.replace(run, recipe=recipe)
    claim_run_folder(run, resume=False)
    console = Console(file=io.StringIO(), width=300)
    assert train(run, console=console) == 1
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "(rollback 1 of 1)" in text and "Ended early: update" in text
    lines = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    assert sum("rolled_back_to" in line for line in lines) == 1 and lines[-1]["update"] < 30
    # The model that is left is the one before the collapse, not the last.
    first, left = (load_file(Path(folder) / "model.safetensors") for folder in (run.model, run.out / "model"))
    assert all(torch.equal(first[name], left[name]) for name in left)
    page = write_report(run.out).read_text()
    assert "went back to the policy after update 0" in page and "Not finished" in page


def test_a_fatal_sign_stops_the_run_where_that_was_asked_for(run_of: Make) -> None:
    training = Trainer(doomed(run_of, dataclasses.replace(BACK, action="stop")))
    for _ in training.run():
        pass
    assert training.stopped is not None and training.state.update < 9
    assert training.checkpoints.index.last == training.state.update
    assert not any("rolled_back_to" in record for record in training.history)
    warned = Trainer(
        doomed(run_of, dataclasses.replace(BACK, action="warn"), out=training.run.out.parent / "warned")
    )
    for _ in warned.run():
        pass
    assert warned.stopped is None and warned.state.update == 9
