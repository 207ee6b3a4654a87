"""Training with trees and T-STAR end to end: quickly on two environments, and on the four of the papers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arboretum.cli import main
from support.environments import embedded_data

for module in ("torch", "accelerate"):
    pytest.importorskip(module, reason="needs torch and accelerate: pip install 'arboretum-rl[lm]'")

__all__ = ["embedded_data"]
pytestmark = pytest.mark.usefixtures("embedded_data")

SMALL = {
    "sampler.prompts": 3,
    "sampler.reply_tokens": 16,
    "sampler.max_turns": 4,
    "optimization.updates": 2,
    "optimization.episodes_per_step": 9,
    "optimization.warmup": 0,
    "optimization.lr": 3e-4,
}


def train(
    env: str, model: str, folder: Path, changes: dict[str, Any] | None = None, *, recipe: str = "tree_grpo"
) -> list[dict[str, float]]:
    """Train with the command, and return the records of the updates."""
    settings = {**SMALL, **(changes or {})}
    command = ["train", recipe, "--env", env, "--model", model, "--out", str(folder), "--device", "cpu"]
    command += ["--dialogue", "no_think", "--validation.every", "2", "--validation.tasks", "2"]
    if env == "TextALFWorld-v0":
        command += ["--validation.split", "valid_seen"]
    command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 0
    assert (folder / "model" / "model.safetensors").exists()
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return records[1:]


def check(records: list[dict[str, float]]) -> None:
    """Check what holds for every run with the published shape of trees."""
    assert len(records) == 2
    for record in records:
        assert (record["trees"], record["leaves"], record["expansions"]) == (6, 3, 12)
        assert record["episodes"] == 18 and record["failed"] == 0
        assert record["sampled_tokens"] > 0 and record["environment_steps"] > 0
        # Episodes are sampled and reused tokens together.
        reused_turns = record["expansion_depth"] * record["expansions"]
        assert record["replies"] == pytest.approx(record["turns"] * record["episodes"] - reused_turns)
    assert sum(record["reused_tokens"] for record in records) > 0


@pytest.mark.parametrize("env", ["TextFrozenLake-v0", "TextSokoban-v0"])
def test_shipped_model_trains_on_trees(env: str, tmp_path: Path) -> None:
    records = train(env, "sapling", tmp_path / "run")
    check(records)
    assert any(record.get("steps", 0) and record["grad_norm"] > 0 for record in records)
    assert all(record["tool_calls"] == 0 for record in records)


def test_shipped_model_trains_by_t_star(tmp_path: Path) -> None:
    changes = {"sampler.prompts": 6, "sampler.rollouts": 6, "optimization.episodes_per_step": 36}
    changes |= {"sampler.max_turns": 8, "sampler.max_actions_per_turn": 1, "sampler.max_actions": 8}
    records = train("TextSokoban-v0", "sapling", tmp_path / "run", changes, recipe="t_star")
    assert len(records) == 2
    for record in records:
        assert 0 < record["graph/merge_ratio"] < 1 and record["graph/contexts"] > 0 and record["steps"] == 1
    # A solved level returns about 10, so values of branches differ by more than 0.3.
    assert sum(record["graph/divergences"] for record in records) > 0
    assert sum(record["pairs"] for record in records) > 0
    assert any(record.get("term/surgical", 0.0) > 0 for record in records)
    report = (tmp_path / "run" / "report.html").read_text()
    assert "Trees" in report and (tmp_path / "run" / "trees.jsonl").read_text()


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a random model with room for long observations."""
    from arboretum.eval.bench.tiny import make_tiny_model

    return str(make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", hidden=64, context=8192))


@pytest.mark.heavy
@pytest.mark.parametrize("choice", ["random", "entropy", "value"])
@pytest.mark.parametrize("env", ["TextSokoban-v0", "TextALFWorld-v0", "TextWebShop-v0", "TextSearchQA-v0"])
def test_random_model_trains_on_trees_of_every_benchmark(
    env: str, choice: str, random_model: str, tmp_path: Path
) -> None:
    """Replies of a random model are refused, so episodes last; the format penalty makes returns differ."""
    changes = {"sampler.choice": choice, "sampler.format_penalty": -0.1, "credit.prefix_weighting": "mean"}
    check(train(env, random_model, tmp_path / "run", changes))
