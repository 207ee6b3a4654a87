"""Limits on episodes, which all policies of a study share: they are compared on the same tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...envs.errors import ConfigurationError
from ...eval.suite import Entry
from ..config.resolve import resolve_dialogue

if TYPE_CHECKING:
    from .definition import Study

_LIMITS = ("max_turns", "max_actions_per_turn", "max_actions", "reply_tokens")
"""Settings of the sampler that limit an episode."""


def check_limits(study: Study, env: str) -> None:
    """Raise if the recipes of a study have different limits in an environment.

    A trained policy is evaluated with the limits of its recipe, and the warm start with those of the first one.

    Raises:
        ConfigurationError: A limit differs.
    """
    first, *others = study.recipes
    expected = _limits_of(study, env, first)
    for name in others:
        for limit, value in _limits_of(study, env, name).items():
            if value != expected[limit]:
                raise ConfigurationError(
                    f"{limit} is {expected[limit]} in {first} and {value} in {name}, whose results could not be"
                    f" compared; set sampler.{limit} for all recipes, below `settings`."
                )


def _limits_of(study: Study, env: str, recipe: str) -> dict[str, int | None]:
    sampler = study.recipe(recipe, env).sampler
    dialogue = resolve_dialogue(study.dialogue_of(env), sampler)
    return {name: getattr(sampler if name == "reply_tokens" else dialogue, name) for name in _LIMITS}


def reference_limit(entry: Entry, actions: int | None) -> int | None:
    """Return the step limit of the reference agents, whose turns have one action each.

    Args:
        entry: Environment and tasks.
        actions: Limit on the actions of the model's episodes; None if there is none.

    Returns:
        The limit on actions where it is below that of the environment; None keeps that of the environment.
    """
    env = entry.make()
    env.reset(options={"task": env.tasks[0]})  # The limit can depend on the task.
    return actions if actions is not None and (env.max_steps is None or actions < env.max_steps) else None
