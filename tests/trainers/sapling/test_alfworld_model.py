"""The shipped model of ALFWorld plays better than random actions, and trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import arboretum
from arboretum.cli import main
from arboretum.envs.registry import make_env

pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

MODEL = "sapling-alfworld"


def test_shipped_model_solves_more_tasks_than_random_actions() -> None:
    """The intervals of easy homes do not overlap."""
    env = make_env("TextALFWorld-v0", homes="easy", split="valid_unseen")
    result = arboretum.evaluate(env, ["random", "direct"], model=MODEL, limit=32, max_tokens=32)
    rates = {agent: interval for (_, agent), interval in result.rates.items()}
    assert rates["random"].high < rates[f"direct:{MODEL}"].low


def test_shipped_model_trains_on_episodes_of_admissible_actions(tmp_path: Path) -> None:
    command = (
        f"train grpo --env TextALFWorld-v0 --env-arg homes=easy --model {MODEL} --dialogue plain --device cpu"
    )
    settings = {
        "sampler.prompts": 2,
        "sampler.rollouts": 4,
        "sampler.reply_tokens": 16,
        "optimization.updates": 1,
        "optimization.episodes_per_step": 8,
        "optimization.warmup": 0,
    }
    changes = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--validation.every", "0", "--out", str(tmp_path / "run"), *changes])
    assert ended.value.code == 0
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (update,) = (record for record in records if record.get("episodes"))
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    assert update["invalid_replies"] == 0 and update["valid_turns"] > 0.3
