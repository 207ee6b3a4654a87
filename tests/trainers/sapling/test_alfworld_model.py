"""The shipped model of ALFWorld plays better than random actions, and trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from arboretum.envs.registry import make_env
from support.shipped_models import solves_more_than_random_actions, train_by_command

pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

MODEL = "sapling-alfworld"


def test_shipped_model_solves_more_tasks_than_random_actions() -> None:
    """The intervals of easy homes do not overlap."""
    env = make_env("TextALFWorld-v0", homes="easy", split="valid_unseen")
    assert solves_more_than_random_actions(MODEL, env, 32)


def test_shipped_model_trains_and_is_warned_that_refusals_drown_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        "sampler.prompts": 2,
        "sampler.rollouts": 4,
        "sampler.reply_tokens": 16,
        "optimization.updates": 2,
        "optimization.episodes_per_step": 8,
    }
    env = "TextALFWorld-v0 --env-arg homes=full --monitor.window 2"
    updates = train_by_command(MODEL, env, settings, tmp_path / "run")
    for update in updates:
        assert update["invalid_replies"] == 0 and update["valid_turns"] > 0.3
        assert update["group_penalty_std"] > update["group_return_std"]
    printed = " ".join(capsys.readouterr().out.split())
    assert "update 2: penalties differ more within groups than returns do" in printed
