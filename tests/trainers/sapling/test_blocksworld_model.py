"""The shipped model of Blocksworld plays better than random actions, and trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from arboretum.envs.registry import make_env
from support.shipped_models import solves_more_than_random_actions, train_by_command

pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

MODEL = "sapling-blocksworld"


def test_shipped_model_solves_more_tasks_than_random_actions() -> None:
    """The intervals of four blocks do not overlap."""
    env = make_env("TextBlocksworld-v0", split="test", blocks=4, max_steps=16)
    assert solves_more_than_random_actions(MODEL, env, 32)


def test_shipped_model_trains_without_refused_replies_of_a_wrong_form(tmp_path: Path) -> None:
    settings = {
        "sampler.prompts": 3,
        "sampler.rollouts": 4,
        "sampler.reply_tokens": 16,
        "optimization.updates": 2,
        "optimization.episodes_per_step": 12,
    }
    updates = train_by_command(MODEL, "TextBlocksworld-v0 --env-arg blocks=3", settings, tmp_path / "run")
    assert len(updates) == 2
    for record in updates:
        assert record["invalid_replies"] < 0.5 * record["replies"]
