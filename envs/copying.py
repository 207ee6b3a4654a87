"""Copies and pickles of environments, built from the constructor's arguments and a snapshot.

The data of an environment, such as compiled games, a memory-mapped catalog or a search index, are neither copied
nor pickled: equal arguments open the same data, and the snapshot's digests detect other ones.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Self, TypeVar

from .errors import ConfigurationError
from .open_episode import own_class

EnvT = TypeVar("EnvT")


class RebuiltCopies:
    """Base of environments with `snapshot` and `restore` that can be copied and pickled."""

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]
    """Arguments of the constructor."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        env = super().__new__(cls)
        env._arguments = args, kwargs
        return env

    def rebuild(self) -> Self:
        """Return a new environment made of the same arguments, without an episode."""
        twin = _build(own_class(type(self)), *self._arguments)
        twin.spec = self.spec  # type: ignore[attr-defined]
        return twin

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        return _build, (own_class(type(self)), *self._arguments), _running_state(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = _build(own_class(type(self)), *self._arguments)  # shared, because neither settings nor data change
        twin.__setstate__(deepcopy(_running_state(self), memo))
        return twin

    def __setstate__(self, state: dict[str, Any]) -> None:
        env: Any = self
        for name, value in state["attributes"].items():
            setattr(env, name, value)
        env.action_space._np_random, env.observation_space._np_random = state["spaces"]
        if state["episode"] is not None:
            env.restore(state["episode"])


def _snapshot(env: Any) -> Any:
    if getattr(env, "snapshot", None) is None:
        raise ConfigurationError(
            f"{type(env).__name__} has no snapshots, so an episode cannot be copied or pickled; copy it before"
            " reset()."
        )
    return env.snapshot()


def _build(env_class: type[EnvT], args: tuple[Any, ...], kwargs: dict[str, Any]) -> EnvT:
    return env_class(*args, **kwargs)


def _running_state(env: Any) -> dict[str, Any]:
    """Return everything that an environment built from the same arguments lacks."""
    names = ("max_steps", "_replaced_limit", "spec", "_np_random", "_np_random_seed")
    return {
        "attributes": {name: getattr(env, name) for name in names},
        "spaces": [space._np_random for space in (env.action_space, env.observation_space)],
        "episode": None if env._task is None else _snapshot(env),
    }
