"""The dialogue of a run follows the recipe, unless the run has settings of its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from arboretum.agents.dialogue import make_dialogue
from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.config.resolve import (
    held_out_tasks,
    make_entry,
    max_episode_tokens,
    resolve_dialogue,
    resolve_limits,
)
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import DialogueConfig, EnvConfig


def test_dialogue_follows_the_sampler_of_the_recipe() -> None:
    sampler = RECIPES["starpo"].sampler
    assert sampler.think and resolve_dialogue(DialogueConfig(), sampler).name == "think"
    without_thoughts = dataclasses.replace(sampler, think=False)
    assert resolve_dialogue(DialogueConfig(), without_thoughts).name == "no_think"


def test_settings_of_the_dialogue_override_those_of_the_sampler() -> None:
    sampler = RECIPES["starpo"].sampler
    assert sampler.max_turns is not None
    dialogue = resolve_dialogue(DialogueConfig("no_think", {"max_turns": sampler.max_turns + 2}), sampler)
    assert (dialogue.name, dialogue.max_turns) == ("no_think", sampler.max_turns + 2)
    assert dialogue.max_actions == sampler.max_actions


def test_ragens_dialogues_have_ragens_budgets_in_training() -> None:
    sampler = RECIPES["grpo"].sampler  # says nothing of budgets
    for name in ("think", "no_think"):
        dialogue = resolve_dialogue(DialogueConfig(name), sampler)
        assert (dialogue.max_turns, dialogue.max_actions, dialogue.max_actions_per_turn) == (5, 10, 5)
    without = resolve_dialogue(DialogueConfig("think", {"max_turns": None, "max_actions": None}), sampler)
    assert without.max_turns is None and without.max_actions is None
    assert resolve_dialogue(DialogueConfig("react"), sampler).max_turns is None


@pytest.mark.parametrize(
    ("settings", "context", "length"),
    [
        ({}, None, 5 * 400),  # RAGEN's limits, which the recipe has
        ({"sampler.reply_tokens": 3000, "sampler.max_turns": 1}, None, 3000),  # as published
        ({"sampler.reply_tokens": 24}, None, 5 * 24),
        ({"sampler.reply_tokens": 24, "sampler.max_turns": 3}, None, 3 * 24),
        ({"sampler.max_turns": None}, None, 5 * 400),  # the dialogue's own limit
        ({}, 1024, 1024),
        ({"objective.norm_length": 777}, 1024, 777),
    ],
)
def test_norm_length_of_dr_grpo_follows_the_limits_of_reply_and_turns(
    settings: dict[str, object], context: int | None, length: int
) -> None:
    recipe = RECIPES["dr_grpo"].with_settings(settings)
    env = make_entry(EnvConfig("TextFrozenLake-v0"), "train").make()
    limit = max_episode_tokens(resolve_dialogue(DialogueConfig(), recipe.sampler), recipe.sampler, env, context)
    assert resolve_limits(recipe, limit).objective.norm_length == length
    assert resolve_limits(RECIPES["grpo"], limit).objective.norm_length is None


@pytest.mark.parametrize(("counts", "length"), [(True, 100 * 400), (False, None)])
def test_step_limit_bounds_turns_only_where_refused_actions_are_steps(counts: bool, length: int | None) -> None:
    sampler = RECIPES["grpo"].sampler
    without = make_dialogue("think", {"max_turns": None})
    env = make_entry(EnvConfig("TextFrozenLake-v0", {"count_refused": counts}), "train").make()
    assert max_episode_tokens(without, sampler, env, None) == length


@pytest.mark.parametrize(
    ("name", "setting"), [("dr_grpo", "objective.norm_length"), ("dapo", "overlong.max_tokens")]
)
def test_recipe_that_needs_a_limit_is_refused_where_a_run_has_none(
    name: str, setting: str, tmp_path: Path
) -> None:
    dialogue = DialogueConfig("think", {"max_turns": None})
    env = EnvConfig("TextFrozenLake-v0", {"max_steps": None})
    recipe = RECIPES[name].with_settings({"sampler.max_turns": None})
    config = TrainingConfig(recipe, env, "sapling", tmp_path, dialogue=dialogue)
    with pytest.raises(ConfigurationError, match=f"needs a limit on an episode's tokens.*set {setting}"):
        config.check()


@pytest.mark.parametrize(
    ("env", "split", "tasks", "count"),
    [
        ("TextFrozenLake-v0", "valid", None, 256),
        ("TextFrozenLake-v0", "valid", 300, 300),
        ("TextBandit-v0", "test", None, 16),
    ],
)
def test_validation_has_256_tasks_or_all_of_a_smaller_split(
    env: str, split: str, tasks: int | None, count: int
) -> None:
    entry = make_entry(EnvConfig(env), split, tasks)
    names = held_out_tasks(entry, entry.make())
    assert len(set(names)) == count
