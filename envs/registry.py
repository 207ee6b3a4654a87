"""The table of worlds, and their registration with Gymnasium."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from .core import TextEnv
from .errors import ConfigurationError, unknown_name
from .plugins import plugin_class, plugin_objects


class EnvSpec(NamedTuple):
    """One registered world.

    Attributes:
        id: Gymnasium id.
        module: module of this room that defines it (a plug-in's: any module); imported when the world is made.
        cls: class in that module.
        summary: one line for `arboretum envs`.
        kwargs: what distinguishes it from the class's defaults.
    """

    id: str
    module: str
    cls: str
    summary: str
    kwargs: dict[str, Any] = {}  # noqa: RUF012  (a NamedTuple default; never mutated)


ENVS: tuple[EnvSpec, ...] = (
    EnvSpec("TextBandit-v0", "bandit", "Bandit", "two named arms, one choice; risky names pay more on average"),
    EnvSpec(
        "TextBanditRev-v0",
        "bandit",
        "Bandit",
        "the bandit with names and risk turned around",
        {"reverse": True},
    ),
    EnvSpec("TextSokoban-v0", "sokoban", "Sokoban", "push the box onto the target; 6x6, one box"),
    EnvSpec(
        "TextSokobanNewVocab-v0",
        "sokoban",
        "Sokoban",
        "the same levels drawn with other symbols",
        {"vocabulary": "new"},
    ),
    EnvSpec("TextLargeSokoban-v0", "sokoban", "Sokoban", "8x8, two boxes", {"size": 8, "boxes": 2}),
    EnvSpec(
        "TextSokobanEasy-v0",
        "sokoban",
        "Sokoban",
        "7x7, one box, 3 to 9 moves at best; 20 steps",
        {"difficulty": "easy"},
    ),
    EnvSpec(
        "TextSokobanMedium-v0",
        "sokoban",
        "Sokoban",
        "7x7, two boxes, 10 to 19 moves at best; 40 steps",
        {"difficulty": "medium"},
    ),
    EnvSpec(
        "TextSokobanHard-v0",
        "sokoban",
        "Sokoban",
        "8x8, two boxes, 20 to 40 moves at best; 60 steps",
        {"difficulty": "hard"},
    ),
    EnvSpec(
        "TextBoxoban-v0", "boxoban", "Boxoban", "10x10, four boxes: the Boxoban level files, or levels like them"
    ),
    EnvSpec("TextFrozenLake-v0", "frozenlake", "FrozenLake", "cross slippery ice without falling into a hole"),
    EnvSpec("TextBlocksworld-v0", "blocksworld", "Blocksworld", "stack and unstack blocks; PlanBench instances"),
    EnvSpec("TextALFWorld-v0", "alfworld", "ALFWorld", "household tasks: the ALFWorld games, or generated homes"),
    EnvSpec("TextWebShop-v0", "webshop", "WebShop", "buy what an instruction asks for in a web shop"),
    EnvSpec("TextSearchQA-v0", "searchqa", "SearchQA", "answer questions by searching a corpus"),
)


def register_envs() -> None:
    """Register every world of the table with Gymnasium; none is imported until it is made."""
    for spec in ENVS:
        _register(spec.id, f"{__package__}.{spec.module}:{spec.cls}", spec.kwargs)


def _register(id: str, entry_point: str, kwargs: Mapping[str, Any]) -> None:
    """Register without Gymnasium's passive checker and order wrapper.

    The registry-wide tests run Gymnasium's full checker on every id, and `TextEnv` enforces reset-before-step
    itself, so a step costs no wrapper.
    """
    gym.register(id, entry_point=entry_point, kwargs=dict(kwargs), order_enforce=False, disable_env_checker=True)


def all_envs() -> list[EnvSpec]:
    """The table's worlds and those of installed plug-ins, which are registered by this call.

    A plug-in's `module` is an absolute one.
    """
    found = plugin_objects(EnvSpec)
    for spec in found:
        if spec.id not in gym.registry:
            _register(spec.id, f"{spec.module}:{spec.cls}", spec.kwargs)
    return [*ENVS, *found]


def make_env(id: str, **kwargs: Any) -> TextEnv[Any]:
    """`gym.make(id, **kwargs)`, unwrapped, with errors a person can act on.

    Args:
        id: a registered id, the id of an installed plug-in's world, or the path `module:Class` of any world.

    Raises:
        ConfigurationError: unknown world or option, or a value that the world refuses.
    """
    if ":" in id:
        path, id = id, f"{_env_class(id).__name__}-v0"
        if id not in gym.registry:
            _register(id, path, {})
    if id not in gym.registry:
        known = [spec.id for spec in all_envs()]
        if id not in known:
            raise unknown_name("environment", id, known)
    entry_point = gym.spec(id).entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    if creator is not None:
        options = list(inspect.signature(creator).parameters)
        for option in kwargs:
            if option not in options:
                raise unknown_name(f"option of {id}", option, options)
    try:
        env = gym.make(id, **kwargs).unwrapped
    except (TypeError, AttributeError) as error:  # an option of the wrong type
        given = ", ".join(f"{name}={value!r}" for name, value in kwargs.items())
        raise ConfigurationError(f"{id} cannot be made with {given}: {error}.") from error
    if not isinstance(env, TextEnv):
        raise ConfigurationError(f"{id} is not a text world; Arboretum plays environments derived from TextEnv.")
    return env


def _env_class(path: str) -> type[TextEnv[Any]]:
    found = plugin_class(TextEnv, path)  # type: ignore[type-abstract]
    assert found is not None  # a path is found or refused
    return found
