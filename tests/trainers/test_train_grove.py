"""Training by GROVE end to end: limits as recorded, two environments, trees, dropped groups, exact resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arboretum.cli import main

for module in ("torch", "accelerate"):
    pytest.importorskip(module, reason="needs torch and accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import DialogueConfig, EnvConfig, HardwareConfig, ValidationConfig
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.trainer import Trainer
from support.training import Make, equal, finish, weights, without_times

SMALL: dict[str, object] = {
    "sampler.prompts": 4,
    "sampler.rollouts": 6,
    "sampler.reply_tokens": 16,
    "sampler.max_turns": 6,
    "optimization.updates": 2,
    "optimization.lr": 3e-4,
    "optimization.episodes_per_step": 12,
}


@pytest.mark.parametrize("env", ["TextFrozenLake-v0", "TextSokoban-v0"])
def test_shipped_model_trains(env: str, tmp_path: Path) -> None:
    command = ["train", "grove", "--env", env, "--model", "sapling", "--out", str(tmp_path / "run")]
    command += ["--device", "cpu", "--dialogue", "no_think", "--validation.every", "2", "--validation.tasks", "2"]
    command += [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 0
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines][1:]
    assert len(records) == 2
    for record in records:
        assert record["episodes"] == 24 and record["failed"] == 0 and record["steps"] == 2
        # An episode of several turns on a small board shares states with the others of its level.
        assert record["grove/recurring"] > 0.3 and 0 < record["grove/shared_actions"] < 1
        assert 1 < record["grove/states"] < record["turns"] * 6
        assert record["advantage_abs"] > 0 and record["grad_norm"] > 0


def roll_out(changes: dict[str, object], folder: Path, env: EnvConfig) -> Rollouts:
    """Return one generation batch of the shipped model."""
    config = TrainingConfig(
        RECIPES["grove"].with_settings({**SMALL, "sampler.prompts": 2, **changes}),
        model="sapling",
        out=folder,
        env=env,
        dialogue=DialogueConfig("no_think"),
        hardware=HardwareConfig(device="cpu"),
        validation=ValidationConfig(every=0),
    )
    trainer = Trainer(config)
    try:
        return trainer.collector.roll_out(1.0).rollouts
    finally:
        trainer.close()


@pytest.mark.parametrize("max_steps", [5, None])
def test_rollouts_have_the_limits_of_dialogue_and_environment(max_steps: int | None, tmp_path: Path) -> None:
    """The dialogue allows 4 turns of 3 actions and 7 valid actions; the environment 5 actions, or any number."""
    changes: dict[str, object] = {
        "sampler.max_turns": 4,
        "sampler.max_actions_per_turn": 3,
        "sampler.max_actions": 7,
    }
    env = EnvConfig("TextFrozenLake-v0", kwargs={"max_steps": max_steps})
    rollouts = roll_out(changes, tmp_path / "run", env)
    limits = rollouts.turn_limits
    assert limits is not None and limits.shape == (rollouts.turns, 2, 2)
    assert limits[:, 0, 0].tolist() == (4 - rollouts.turn_depth).tolist()
    assert (limits[:, 1, 0] == limits[:, 0, 0] - 1).all()
    first = rollouts.turn_depth == 0
    assert set(limits[first, 0, 1].tolist()) == {5.0 if max_steps else 7.0}
    later = np.flatnonzero(~first)
    assert (limits[later, 0] == limits[rollouts.turn_parent[later], 1]).all()
    spent = limits[:, 0, 1] - limits[:, 1, 1]
    executed = [len(actions) for actions in rollouts.turn_actions]
    assert (spent >= 0).all() and (spent <= executed).all() and spent.sum() > 0
    # A truncated episode ran out of turns or of actions.
    leaves = rollouts.episode_leaf[rollouts.truncated]
    assert len(leaves) and (limits[leaves, 1] == 0).any(axis=1).all()


HEAVY: dict[str, object] = {"sampler.prompts": 4, "optimization.lr": 1e-3, "optimization.updates": 4}


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        pytest.param("grove", {"credit.key": "step_state", "credit.gamma": 0.95}, id="chains"),
        pytest.param("grove", {"credit.redraws": 3, "credit.before": "unchanged"}, id="redraws"),
        pytest.param("grove", {"selector.name": "dynamic", "selector.on_exhausted": "partial"}, id="dynamic"),
        pytest.param("tree_grpo", {"credit.name": "grove", "sampler.expansions": 3}, id="trees"),
    ],
)
def test_training_resumes_exactly(recipe: str, changes: dict[str, Any], run_of: Make, tmp_path: Path) -> None:
    changes = {**HEAVY, **changes}
    uninterrupted = finish(Trainer(run_of(recipe, changes, out=tmp_path / "uninterrupted")))
    records = [record for record in uninterrupted.history if record["update"]]
    assert len(records) == 4 and sum(record["steps"] for record in records) > 0
    assert all(record["grove/states"] > 1 for record in records if record["groups_kept"] > 0)
    assert ("trees" in records[0]) == (recipe == "tree_grpo")
    config = run_of(recipe, changes, out=tmp_path / "interrupted", checkpoint_every=2)
    for record in Trainer(config).run():
        if record.metrics["update"] == 3:
            break
    resumed = finish(Trainer(config, resume=True))
    assert without_times(resumed.history) == without_times(uninterrupted.history)
    assert equal(weights(resumed), weights(uninterrupted))
