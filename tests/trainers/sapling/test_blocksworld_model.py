"""The shipped model of Blocksworld plays better than random actions, and trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import arboretum
from arboretum.cli import main
from arboretum.envs.registry import make_env

pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

MODEL = "sapling-blocksworld"


def test_shipped_model_solves_more_tasks_than_random_actions() -> None:
    """The intervals of four blocks do not overlap."""
    env = make_env("TextBlocksworld-v0", split="test", blocks=4, max_steps=16)
    result = arboretum.evaluate(env, ["random", "direct"], model=MODEL, limit=32, max_tokens=32)
    rates = {agent: interval for (_, agent), interval in result.rates.items()}
    assert rates["random"].high < rates[f"direct:{MODEL}"].low


def test_shipped_model_trains_without_refused_replies_of_a_wrong_form(tmp_path: Path) -> None:
    command = (
        f"train grpo --env TextBlocksworld-v0 --env-arg blocks=3 --model {MODEL} --dialogue plain --device cpu"
    )
    settings = {
        "sampler.prompts": 3,
        "sampler.rollouts": 4,
        "sampler.reply_tokens": 16,
        "optimization.updates": 2,
        "optimization.episodes_per_step": 12,
        "optimization.warmup": 0,
    }
    changes = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--validation.every", "0", "--out", str(tmp_path / "run"), *changes])
    assert ended.value.code == 0
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    updates = [record for record in records if record.get("episodes")]
    assert len(updates) == 2 and (tmp_path / "run" / "model" / "model.safetensors").exists()
    for record in updates:
        assert record["invalid_replies"] < 0.5 * record["replies"]
