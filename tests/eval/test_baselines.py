"""Baselines on the environments' pages: measured again, they are the recorded ones."""

from __future__ import annotations

from pathlib import Path

import pytest

import arboretum
from arboretum.agents.engines.shipped_models import BLOCKSWORLD_SAPLING, SAPLING, SHIPPED_MODELS
from arboretum.envs.baselines import Baseline, read_baselines
from arboretum.envs.registry import ENVS
from arboretum.eval.baselines import PLAYED, SUITE, as_baselines, measure
from arboretum.eval.suite import load_suite

RECORDED = read_baselines(Path(arboretum.__file__).parent / "docs" / "environments")
ROUNDING = 0.05
"""Difference in success that another processor may make with a model, whose ties it rounds otherwise."""


def recorded(agents: tuple[str, ...], env: str | None = None) -> list[Baseline]:
    return [row for row in RECORDED if row.agent in agents and env in (None, row.env)]


def test_suite_has_every_environment_with_generated_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entries = load_suite(SUITE).entries
    assert {entry.env for entry in entries} == {spec.id for spec in ENVS}
    for folder in ("alfworld", "webshop", "boxoban", "hotpotqa"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("ARBORETUM_DATA", str(tmp_path))  # empty folders, which no environment can open
    for entry in entries:
        assert len(entry.make().tasks) >= (entry.tasks or 16)


def test_every_shipped_model_plays_environments_of_the_suite() -> None:
    assert tuple(PLAYED) == SHIPPED_MODELS
    assert {row.env for row in RECORDED if row.agent == SAPLING} == set(PLAYED[SAPLING])


@pytest.mark.parametrize(
    "env",
    [
        pytest.param(spec.id, marks=() if spec.id in ("TextBandit-v0", "TextFrozenLake-v0") else pytest.mark.heavy)
        for spec in ENVS
    ],
)
def test_random_and_expert_have_exactly_the_recorded_results(env: str) -> None:
    rows = list(as_baselines(measure(None, only=env), None))
    assert len(rows) >= 2 and sorted(rows, key=str) == sorted(recorded(("random", "expert"), env), key=str)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("model", "env"), [(SAPLING, "TextFrozenLake-v0"), (BLOCKSWORLD_SAPLING, "TextBlocksworld-v0")]
)
def test_shipped_model_has_the_recorded_results_up_to_rounding(model: str, env: str) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
    ((new,), (old,)) = list(as_baselines(measure(model, only=env), model)), recorded((model,), env)
    assert (new.tasks, new.dialogue, new.settings) == (old.tasks, old.dialogue, old.settings)
    assert new.success[0] == pytest.approx(old.success[0], abs=ROUNDING)
    assert new.steps == pytest.approx(old.steps, rel=0.1)
