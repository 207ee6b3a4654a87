"""T-STAR end to end: in every environment, resumed exactly, and where nothing can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.trainers.config.settings import (
    DialogueConfig,
    EnvConfig,
    ValidationConfig,
)
from arboretum.trainers.trainer import Trainer
from support.training import Make, equal, finish, weights, without_times

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_thread")]

SIZES: dict[str, object] = {
    "sampler.prompts": 4,
    "sampler.rollouts": 6,
    "optimization.lr": 1e-3,
    "optimization.episodes_per_step": 12,
}
NO_VALIDATION = ValidationConfig(every=0)


def updates_of(trainer: Trainer) -> list[dict[str, float]]:
    return [record for record in trainer.history if record["update"]]


def test_t_star_resumes_exactly(run_of: Make, tmp_path: Path) -> None:
    """Average reference and pairs of the update before are part of a checkpoint."""
    changes = {**SIZES, "optimization.updates": 4, "grafting.max_age": 2}
    uninterrupted = finish(Trainer(run_of("t_star", changes, out=tmp_path / "uninterrupted")))
    records = updates_of(uninterrupted)
    assert all(record["graph/nodes"] > 0 and record["graph/contexts"] > 0 for record in records)
    assert sum(record["pairs"] for record in records) > 4
    assert all(abs(record["term/surgical"]) < 1 for record in records if record["pairs"])
    config = run_of("t_star", changes, out=tmp_path / "interrupted", checkpoint_every=2)
    for record in Trainer(config).run():
        if record.metrics["update"] == 3:
            break
    resumed = finish(Trainer(config, resume=True))
    assert without_times(resumed.history) == without_times(uninterrupted.history)
    assert equal(weights(resumed), weights(uninterrupted))
    states = [trainer.learner.reference.state_dict() for trainer in (resumed, uninterrupted)]
    assert equal(*(dict(state) for state in states))


def test_first_update_without_pairs_is_that_of_its_advantages_alone(run_of: Make) -> None:
    """Without the surgical term nothing is grafted, and no reference is kept."""
    trainer = finish(Trainer(run_of("t_star", {**SIZES, "objective.terms": []}, validation=NO_VALIDATION)))
    assert trainer.learner.reference is None
    assert all("pairs" not in record and "seconds/graft" not in record for record in trainer.history)


@pytest.mark.parametrize("turns", [1, 3])
def test_equal_returns_take_no_step(run_of: Make, turns: int) -> None:
    """The goal cannot be reached within the turns, so all returns of a group are equal."""
    env = EnvConfig("TextFrozenLake-v0", {"size": 8})
    changes = {
        **SIZES,
        "sampler.max_turns": turns,
        "sampler.max_actions_per_turn": 1,
        "sampler.max_actions": turns,
    }
    changes["sampler.format_penalty"] = 0.0
    config = run_of("t_star", changes, env=env, validation=NO_VALIDATION)
    trainer = Trainer(config)
    before = weights(trainer)
    finish(trainer)
    assert equal(weights(trainer), before)
    for record in updates_of(trainer):
        assert record["steps"] == record["pairs"] == record["graph/divergences"] == 0


def test_single_step_episodes_diverge_at_the_start(run_of: Make) -> None:
    changes = {**SIZES, "sampler.max_turns": 1, "sampler.max_actions": 6, "sampler.rollouts": 8}
    env = EnvConfig("TextFrozenLake-v0", {"size": 2, "success_rate": 1.0})
    trainer = finish(Trainer(run_of("t_star", changes, env=env, validation=NO_VALIDATION)))
    records = updates_of(trainer)
    assert all(record["graph/depth"] == 1 for record in records)
    assert sum(record["pairs"] for record in records) > 0


ENVIRONMENTS: list[Any] = [
    ("TextSokoban-v0", "no_think", {"reward_mode": "sparse"}),
    ("TextALFWorld-v0", "react", {}),
    ("TextWebShop-v0", "react", {}),
    ("TextSearchQA-v0", "tags", {}),
]


@pytest.mark.parametrize(("env", "dialogue", "kwargs"), ENVIRONMENTS)
def test_t_star_runs_in_every_kind_of_environment(
    env: str,
    dialogue: str,
    kwargs: dict[str, Any],
    run_of: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)  # The packaged data has a split for training.
    from arboretum.eval.bench.tiny import make_tiny_model

    model = make_tiny_model(tmp_path / "tiny", context=16384)
    changes = {**SIZES, "sampler.prompts": 2, "sampler.rollouts": 3, "sampler.max_actions_per_turn": 1}
    changes |= {"optimization.updates": 1, "optimization.episodes_per_step": None, "sampler.max_actions": None}
    config = run_of(
        "t_star",
        changes,
        model=str(model),
        env=EnvConfig(env, kwargs),
        dialogue=DialogueConfig(dialogue),
        validation=NO_VALIDATION,
    )
    (record,) = updates_of(finish(Trainer(config)))
    assert record["graph/nodes"] > 0 and record["turns"] >= 1 and record["graph/depth"] >= 1
