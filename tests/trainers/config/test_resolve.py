"""The dialogue of a run follows the recipe, unless the run has settings of its own."""

from __future__ import annotations

import dataclasses

import pytest

from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.config.resolve import held_out_tasks, make_entry, resolve_dialogue
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
