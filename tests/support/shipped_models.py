"""What the tests of all shipped models do: compare with random actions, and train a little."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import arboretum
from arboretum.cli import main
from arboretum.envs.core import TextEnv


def solves_more_than_random_actions(model: str, env: TextEnv[Any], tasks: int, agent: str = "direct") -> bool:
    """Return True if the success rate of an agent with the model is higher, and the intervals do not overlap."""
    result = arboretum.evaluate(env, ["random", agent], model=model, limit=tasks, max_tokens=32)
    rates = {agent: interval for (_, agent), interval in result.rates.items()}
    return bool(rates["random"].high < rates[f"{agent}:{model}"].low)


def train_by_command(
    model: str, env: str, settings: Mapping[str, object], out: Path, dialogue: str = "plain"
) -> list[dict[str, float]]:
    """Train a model with `grpo` from the command line, and return the records of the updates.

    Args:
        model: Name of the model.
        env: Id of the environment, and its options, as on the command line.
        settings: Settings of the recipe by path.
        out: Folder of the run.
        dialogue: Dialogue that the model was taught.
    """
    command = f"train grpo --env {env} --model {model} --dialogue {dialogue} --device cpu --validation.every 0"
    changes = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--set", "optimization.warmup=0", "--out", str(out), *changes])
    assert ended.value.code == 0
    assert (out / "model" / "model.safetensors").exists()
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record.get("episodes")]
