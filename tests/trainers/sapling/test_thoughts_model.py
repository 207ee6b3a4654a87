"""The shipped model with thoughts plans in words, acts by its plan, and trains."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import arboretum
from arboretum.envs.registry import make_env
from support.shipped_models import solves_more_than_random_actions, train_by_command

pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

MODEL = "sapling-thoughts"
LAKE = {"observation_format": "grid", "p_frozen": 0.8, "success_rate": 1.0}
ONE_ACTION = {"max_actions_per_turn": 1, "max_turns": 20, "max_actions": None}


def test_shipped_model_solves_more_tasks_than_random_actions() -> None:
    env = make_env("TextFrozenLake-v0", split="test", **LAKE)
    assert solves_more_than_random_actions(MODEL, env, 32, "think")


def test_shipped_model_acts_by_the_plan_of_its_thought() -> None:
    """A plan names the actions from here on: this reply has the first, and the next one mostly the second."""
    env = make_env("TextFrozenLake-v0", split="test", **LAKE)
    result = arboretum.evaluate(env, "think", model=MODEL, limit=32, max_tokens=32, dialogue_args=ONE_ACTION)
    first, second = [], []
    for episode in result.episodes.values():
        for turn, after in pairwise(episode.turns):
            plan = (turn.thought or "").removeprefix("My plan from here: ").rstrip(".").split(", then ")
            first.append(plan[0] == turn.moves[0].action)
            second.append(len(plan) > 1 and plan[1].removesuffix(", and so on") == after.moves[0].action)
    assert len(first) > 20 and len(second) > 20
    assert sum(first) > 0.9 * len(first) and sum(second) > 0.5 * len(second)


def test_shipped_model_trains_with_credit_from_states(tmp_path: Path) -> None:
    settings = {
        "credit.name": "grove",
        "sampler.prompts": 3,
        "sampler.rollouts": 4,
        "sampler.reply_tokens": 32,
        "sampler.max_actions_per_turn": 1,
        "optimization.updates": 2,
        "optimization.episodes_per_step": 12,
    }
    env = "TextFrozenLake-v0 --env-arg observation_format=grid --env-arg size=5 --env-arg success_rate=1.0"
    updates = train_by_command(MODEL, env, settings, tmp_path / "run", "think")
    assert len(updates) == 2
    for record in updates:
        assert record["invalid_replies"] < 0.2 * record["replies"]
