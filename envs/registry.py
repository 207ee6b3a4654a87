"""The table of worlds, and their registration with Gymnasium."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import gymnasium as gym

from .core import TextEnv
from .errors import ConfigurationError, unknown_name


class World(NamedTuple):
    """One registered world.

    Attributes:
        id: Gymnasium id.
        module: module of this room that defines it; imported only when the world is made.
        cls: class in that module.
        summary: one line for `arboretum worlds`.
        kwargs: what distinguishes it from the class's defaults.
    """

    id: str
    module: str
    cls: str
    summary: str
    kwargs: dict[str, Any] = {}  # noqa: RUF012  (a NamedTuple default; never mutated)


WORLDS: tuple[World, ...] = (
    World("TextBandit-v0", "bandit", "Bandit", "two named arms, one choice; risky names pay more on average"),
    World(
        "TextBanditRev-v0",
        "bandit",
        "Bandit",
        "the bandit with names and risk turned around",
        {"reverse": True},
    ),
    World("TextSokoban-v0", "sokoban", "Sokoban", "push the box onto the target; 6x6, one box"),
    World(
        "TextSokobanNewVocab-v0",
        "sokoban",
        "Sokoban",
        "the same levels drawn with other symbols",
        {"vocabulary": "new"},
    ),
    World("TextLargeSokoban-v0", "sokoban", "Sokoban", "8x8, two boxes", {"size": 8, "boxes": 2}),
    World("TextSokobanEasy-v0", "sokoban", "Sokoban", "short optimal solutions, 20 steps", {"difficulty": "easy"}),
    World(
        "TextSokobanMedium-v0",
        "sokoban",
        "Sokoban",
        "middling optimal solutions, 40 steps",
        {"difficulty": "medium"},
    ),
    World("TextSokobanHard-v0", "sokoban", "Sokoban", "long optimal solutions, 60 steps", {"difficulty": "hard"}),
    World(
        "TextBoxoban-v0", "boxoban", "Boxoban", "10x10, four boxes: the Boxoban level files, or levels like them"
    ),
    World("TextFrozenLake-v0", "frozenlake", "FrozenLake", "cross slippery ice without falling into a hole"),
    World("TextBlocksworld-v0", "blocksworld", "Blocksworld", "stack and unstack blocks; PlanBench instances"),
    World("TextALFWorld-v0", "alfworld", "ALFWorld", "household tasks: the ALFWorld games, or generated homes"),
    World("TextWebShop-v0", "webshop", "WebShop", "buy what an instruction asks for in a web shop"),
    World("TextSearchQA-v0", "searchqa", "SearchQA", "answer questions by searching a corpus"),
)


def register_worlds() -> None:
    """Register every world with Gymnasium; none is imported until it is made.

    The passive checker and the order wrapper are left out: the registry-wide tests run Gymnasium's full
    checker on every id, and `TextEnv` enforces reset-before-step itself, so a step costs no wrapper.
    """
    for world in WORLDS:
        gym.register(
            world.id,
            entry_point=f"{__package__}.{world.module}:{world.cls}",
            kwargs=dict(world.kwargs),
            order_enforce=False,
            disable_env_checker=True,
        )


def world_ids() -> list[str]:
    """The ids of all registered worlds, in the table's order."""
    return [world.id for world in WORLDS]


def make_world(id: str, **kwargs: Any) -> TextEnv[Any]:
    """`gym.make(id, **kwargs)`, unwrapped, with errors a person can act on.

    Raises:
        ConfigurationError: unknown world or option, or a value that the world refuses.
    """
    if id not in world_ids() and id not in gym.registry:
        raise unknown_name("world", id, world_ids())
    spec = gym.spec(id)
    creator = (
        gym.envs.registration.load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else None
    )
    if creator is not None:
        known = set(inspect.signature(creator).parameters)
        for option in kwargs:
            if option not in known:
                raise unknown_name(f"option of {id}", option, sorted(known))
    env = gym.make(id, **kwargs).unwrapped
    if not isinstance(env, TextEnv):
        raise ConfigurationError(f"{id} is not a text world; Arboretum plays environments derived from TextEnv.")
    return env
