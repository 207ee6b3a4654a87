"""Table of the environments, and their registration with Gymnasium."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from .core import TextEnv
from .errors import ConfigurationError, unknown_name
from .plain import plain_numbers
from .plugins import plugin_class, plugin_object, plugin_objects, plugin_paths
from .user_code import cannot_be_made

_ENV_ID = re.compile(r"[\w.-]+-v\d+", re.ASCII)
"""Form of the entry-point names that are ids of environments."""


class EnvSpec(NamedTuple):
    """Registered environment.

    Attributes:
        id: Gymnasium id.
        module: Module that defines the environment, imported when the environment is made: relative to this
            package in `ENVS`, absolute in a plug-in.
        cls: Name of the class in that module.
        summary: One-line description for `arboretum envs`.
        kwargs: Constructor arguments that differ from the defaults of the class.
    """

    id: str
    module: str
    cls: str
    summary: str
    kwargs: dict[str, Any] = {}  # noqa: RUF012  (a NamedTuple default; never mutated)


ENVS: tuple[EnvSpec, ...] = (
    EnvSpec(
        "TextBandit-v0", "bandit", "Bandit", "one choice between two named arms; risky names pay more on average"
    ),
    EnvSpec(
        "TextBanditRev-v0",
        "bandit",
        "Bandit",
        "the same arms with the roles of the names reversed",
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
        "7x7, one box; optimal solutions of 3 to 9 moves; 20 steps",
        {"difficulty": "easy"},
    ),
    EnvSpec(
        "TextSokobanMedium-v0",
        "sokoban",
        "Sokoban",
        "7x7, two boxes; optimal solutions of 10 to 19 moves; 40 steps",
        {"difficulty": "medium"},
    ),
    EnvSpec(
        "TextSokobanHard-v0",
        "sokoban",
        "Sokoban",
        "8x8, two boxes; optimal solutions of 20 to 40 moves; 60 steps",
        {"difficulty": "hard"},
    ),
    EnvSpec(
        "TextBoxoban-v0", "boxoban", "Boxoban", "10x10, four boxes: the Boxoban level files, or generated levels"
    ),
    EnvSpec("TextFrozenLake-v0", "frozenlake", "FrozenLake", "cross slippery ice without falling into a hole"),
    EnvSpec("TextBlocksworld-v0", "blocksworld", "Blocksworld", "stack and unstack blocks; PlanBench instances"),
    EnvSpec(
        "TextALFWorld-v0", "alfworld", "ALFWorld", "household tasks: the ALFWorld games, or generated households"
    ),
    EnvSpec("TextWebShop-v0", "webshop", "WebShop", "buy what an instruction asks for in a web shop"),
    EnvSpec("TextSearchQA-v0", "searchqa", "SearchQA", "answer questions by searching a corpus"),
)


class PluginEnv:
    """Constructor of the environment of an installed plug-in, which is imported with the first call.

    Args:
        path: Path `module:attribute` of the plug-in's `EnvSpec`.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def resolve(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Return the class of the environment, and the arguments in which it differs from the class's defaults.

        Raises:
            ConfigurationError: The plug-in cannot be imported, or is not an `EnvSpec`.
        """
        spec = plugin_object(EnvSpec, self.path)
        assert spec is not None  # plugin_object returns None for entry-point names only
        return load_env_creator(f"{spec.module}:{spec.cls}"), spec.kwargs

    def __call__(self, **kwargs: Any) -> Any:
        creator, defaults = self.resolve()
        return creator(**{**defaults, **kwargs})


def register_envs() -> None:
    """Register the environments of `ENVS` and of installed plug-ins with Gymnasium, without importing them."""
    for spec in ENVS:
        _register(spec.id, f"{__package__}.{spec.module}:{spec.cls}", spec.kwargs)
    for name, path in plugin_paths().items():
        if _ENV_ID.fullmatch(name) and name not in gym.registry:
            with suppress(gym.error.Error):  # Gymnasium refuses X-v0 beside an unversioned X
                _register(name, PluginEnv(path), {})


def _register(id: str, entry_point: str | PluginEnv, kwargs: Mapping[str, Any]) -> None:
    """Register an environment without Gymnasium's passive checker and order-enforcing wrapper.

    Both wrappers would slow down every step. The contract tests run Gymnasium's full checker on every id instead,
    and `TextEnv` itself requires a reset before the first step.
    """
    gym.register(id, entry_point=entry_point, kwargs=dict(kwargs), order_enforce=False, disable_env_checker=True)


def all_envs() -> list[EnvSpec]:
    """Return the specs of `ENVS` and of installed plug-ins, after registering the latter with Gymnasium."""
    plugin_specs = plugin_objects(EnvSpec)
    for spec in plugin_specs:
        known = gym.registry.get(spec.id)
        if known is None or isinstance(known.entry_point, PluginEnv):
            gym.registry.pop(spec.id, None)  # Gymnasium warns about replaced environments
            _register(spec.id, f"{spec.module}:{spec.cls}", spec.kwargs)
    return [*ENVS, *plugin_specs]


def resolve_id(id: str) -> str:
    """Return the registered id of an environment; a path `module:Class` and a plug-in are registered first.

    Raises:
        ConfigurationError: The id is unknown, the class of a path cannot be imported, or another class has its id.
    """
    if ":" in id:
        path, env_class = id, _env_class(id)
        id = f"{env_class.__name__}-v0"
        if id not in gym.registry:
            _register(id, path, {})
        elif _creator(id) is not env_class:
            raise ConfigurationError(f"{path} would be {id}, which is another environment; rename the class.")
    if id not in gym.registry:
        known = [spec.id for spec in all_envs()]
        if id not in known:
            raise unknown_name("environment", id, known)
    return id


def make_env(id: str, /, **kwargs: Any) -> TextEnv[Any]:
    """Make an environment like `gym.make(id, **kwargs).unwrapped`, with errors that name the fix.

    Args:
        id: Registered id, id of an installed plug-in, or path `module:Class` of a subclass of `TextEnv`.
        kwargs: Constructor arguments of the environment.

    Raises:
        ConfigurationError: The id or an option is unknown, or a value is invalid.
    """
    id, kwargs = resolve_id(id), plain_numbers(kwargs)
    creator = _creator(id)
    if creator is not None:
        parameters = inspect.signature(creator).parameters
        forwards = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        for option in kwargs:
            if option not in parameters and not forwards:
                raise unknown_name(f"option of {id}", option, parameters)
    try:
        env = text_env(gym.make(id, **kwargs))
    except ConfigurationError:
        raise
    except Exception as error:  # such as an option of the wrong type, or an error in a class of another package
        raise cannot_be_made(id, kwargs, error) from error
    if not isinstance(env, TextEnv):
        raise ConfigurationError(f"{id} is not a text environment; use one whose class derives from TextEnv.")
    return env


def text_env(env: gym.Env[Any, Any]) -> TextEnv[Any]:
    """Return the environment that `gym.make` made, without Gymnasium's wrappers that only check its use.

    Episodes are played on the environment itself, because agents ask it for more than wrappers have.

    Raises:
        ConfigurationError: It has another wrapper, which would have no effect.
    """
    inner = env
    while isinstance(inner, gym.Wrapper):
        name = type(inner).__name__
        if name not in ("OrderEnforcing", "PassiveEnvChecker"):
            steps = getattr(inner, "_max_episode_steps", None)
            fix = "put what it does into the environment's class" if steps is None else f"pass max_steps={steps}"
            raise ConfigurationError(
                f"{inner}: agents play without wrappers, so that {name} would have no effect; remove it and {fix}."
            )
        inner = inner.env
    return inner  # type: ignore[return-value]


def _creator(id: str) -> Callable[..., Any] | None:
    """Return the class or function that makes a registered environment; None if there is only a vectorized one."""
    entry_point = gym.spec(id).entry_point
    if isinstance(entry_point, PluginEnv):
        return entry_point.resolve()[0]
    return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point


def _env_class(path: str) -> type[TextEnv[Any]]:
    env_class = plugin_class(TextEnv, path)  # type: ignore[type-abstract]
    assert env_class is not None  # plugin_class returns None for entry-point names only
    return env_class
