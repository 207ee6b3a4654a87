"""Objects that settings refer to: the dialogue, the suite entry, and the longest episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...agents.dialogue import Dialogue, make_dialogue
from ...envs.core import TextEnv
from ...envs.errors import ConfigurationError
from ...envs.tasks import distinct_tasks
from ...eval.suite import Entry
from ..algorithms.objectives.penalties import resolve_overlong
from ..algorithms.recipe import Recipe
from ..algorithms.samplers import Sampler
from .settings import DialogueConfig, EnvConfig

RAGEN_BUDGETS = {"max_turns": 5, "max_actions": 10}
"""Budgets of RAGEN's training (arXiv:2504.20073, app. C.2), for its two dialogues."""

VALIDATION_TASKS = 256
"""Held-out tasks of a validation by default: it selects the exported model, so noise would select as well."""

ASYNCHRONOUS_CAP = 2.0
"""Cap of the importance weights under asynchronous sampling, the default of verl and ms-swift."""


def resolve_dialogue(config: DialogueConfig, sampler: Sampler) -> Dialogue:
    """Return the dialogue of a run.

    The dialogue's own settings override those of the recipe's sampler. `think` and `no_think` have RAGEN's budgets
    unless either says otherwise.

    Raises:
        ConfigurationError: Unknown dialogue or setting, or a value out of range.
    """
    name = config.name or ("no_think" if sampler.think is False else "think")
    from_recipe = {
        option: getattr(sampler, option)
        for option in ("max_turns", "max_actions_per_turn", "max_actions", "format_penalty")
        if getattr(sampler, option) is not None
    }
    defaults = RAGEN_BUDGETS if name in ("think", "no_think") else {}
    return make_dialogue(name, {**defaults, **from_recipe, **config.settings})


def dialogue_in(env: EnvConfig, config: DialogueConfig) -> DialogueConfig:
    """Return the settings of a run's dialogue in one of its environments."""
    return replace(config, settings={**config.settings, **env.dialogue})


def resolve_limits(recipe: Recipe, limit: int | None) -> Recipe:
    """Return the recipe with the run's limit where it leaves the lengths of penalty and aggregation open.

    Args:
        recipe: Recipe of the run.
        limit: See `max_episode_tokens`.
    """
    objective = recipe.objective
    if objective.needs_norm_length and objective.norm_length is None:
        objective = replace(objective, norm_length=limit)
    return replace(recipe, objective=objective, overlong=resolve_overlong(recipe.overlong, limit))


def resolve_correction(recipe: Recipe) -> Recipe:
    """Return the recipe with a correction for the policy that sampled, which asynchronous sampling needs."""
    if not recipe.sampler.asynchronous or recipe.objective.mismatch.cap is not None:
        return recipe
    mismatch = replace(recipe.objective.mismatch, cap=ASYNCHRONOUS_CAP)
    return replace(recipe, objective=replace(recipe.objective, mismatch=mismatch))


def make_entry(env: EnvConfig, split: str | None, tasks: int | None = None, repeats: int = 1) -> Entry:
    """Return the suite entry of an environment, as evaluation uses it."""
    return Entry(env.label, env.id, env.kwargs, split, tasks, repeats=repeats, dialogue=env.dialogue)


def held_out_tasks(entry: Entry, env: TextEnv[Any]) -> list[str]:
    """Return the names of the tasks of a validation; see `ValidationConfig.tasks`.

    Args:
        entry: Entry of the held-out split, with the number of tasks or None.
        env: Its environment.

    Raises:
        ConfigurationError: The split has too few tasks.
    """
    names = distinct_tasks(env, VALIDATION_TASKS if entry.tasks is None else entry.tasks)
    if not names:
        raise ConfigurationError(
            f"{entry.env} has no tasks in split {entry.split!r} to validate on; set --validation.split to another "
            "one, or --validation.every 0."
        )
    if entry.tasks is not None and len(names) < entry.tasks:
        raise ConfigurationError(
            f"--validation.tasks (validation_tasks of a study) asks for {entry.tasks} tasks, but {entry.env} has"
            f" only {len(names)} distinct ones in split {entry.split!r}; lower it."
        )
    return names


def resolve_validation(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain settings of `ValidationConfig` with the default number of tasks in the place of None."""
    tasks = settings.get("tasks")
    return {**settings, "tasks": VALIDATION_TASKS if tasks is None else tasks}


def max_episode_tokens(dialogue: Dialogue, sampler: Sampler, env: TextEnv[Any], context: int | None) -> int | None:
    """Return an upper bound on the sampled tokens of an episode, or None if nothing bounds them.

    Args:
        dialogue: Dialogue, which may limit turns.
        sampler: Sampler of the recipe, which limits the tokens of a reply.
        env: Environment, which may limit steps; where refused actions count as none, turns have no such limit.
        context: Context window of the model in tokens; None if unlimited.
    """
    steps = env.max_steps if env.counts_refused else None
    turns = min((n for n in (dialogue.max_turns, steps) if n is not None), default=None)
    bounds = [None if turns is None else turns * sampler.reply_tokens, context]
    return min((bound for bound in bounds if bound is not None), default=None)


def longest(limits: Sequence[int | None]) -> int | None:
    """Return the largest of several limits; None if one of them is None, which is no limit."""
    known = [limit for limit in limits if limit is not None]
    return max(known) if len(known) == len(limits) else None


def started_with_another(name: str, difference: str, folder: Path) -> ConfigurationError:
    """Return the error that a run is resumed with another value of a setting that must not change.

    Args:
        name: Name of the setting.
        difference: What is different, in words; see `first_difference`.
        folder: Folder of the run.
    """
    return ConfigurationError(
        f"{folder}: was started with another {name} ({difference}); resume it with the same one, or start a new"
        " run in another --out."
    )
