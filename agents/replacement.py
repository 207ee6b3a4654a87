"""Replacement of environments that raised or that a time limit interrupted; their state is unknown."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any
from weakref import ref

import gymnasium as gym

from ..envs.copying import RebuiltCopies
from .deadline import expires_after

if TYPE_CHECKING:
    from ..envs.core import TextEnv
    from .base import Seat

BUILD_SECONDS = 60.0
"""Seconds that making a new environment may take; the limits of steps and episodes do not count it."""

_discarded: list[ref[TextEnv[Any]]] = []
"""Environments that callers of `play` may still hold; a list, because it is nearly always empty."""


def discard(env: TextEnv[Any]) -> None:
    """Have `renew` replace an environment, in this and in every later call of `play` that is given it."""
    _discarded[:] = [one for one in _discarded if one() is not None]
    _discarded.append(ref(env))


def discard_failed(env: TextEnv[Any]) -> None:
    """Have `renew` replace an environment that raised, if there is a record of how it was made."""
    if isinstance(env, RebuiltCopies) or env.spec is not None:
        discard(env)


def is_discarded(env: TextEnv[Any]) -> bool:
    """Return True if an environment has to be replaced."""
    return bool(_discarded) and env in [one() for one in _discarded]


def rebuild(env: TextEnv[Any]) -> TextEnv[Any]:
    """Return a new environment in the place of one that was discarded.

    Raises:
        TypeError: There is no record of how the environment was made.
        Expired: It was not made within `BUILD_SECONDS`.
    """
    with expires_after(time.perf_counter() + BUILD_SECONDS):
        return _build_again(env)


def renew(seat: Seat) -> None:
    """Replace the environment of a seat if it was discarded; the time limit of its episode begins afterwards.

    Raises:
        TypeError: There is no record of how the environment was made.
        Expired: It was not made within `BUILD_SECONDS`.
    """
    if not is_discarded(seat.env):
        return
    limit, seat.step_time_limit = seat.step_time_limit, BUILD_SECONDS
    seat.step_deadline, seat.deadline = time.perf_counter() + BUILD_SECONDS, math.inf
    seat.env = rebuild(seat.env)
    seat.step_time_limit, seat.step_deadline = limit, math.inf
    seat.deadline = time.perf_counter() + seat.time_limit


def _build_again(env: TextEnv[Any]) -> TextEnv[Any]:
    """Return a new environment like `env`, without touching the old one, whose thread may still be in a step."""
    if isinstance(env, RebuiltCopies):
        return env.rebuild()
    if env.spec is not None:
        return gym.make(env.spec).unwrapped
    raise TypeError(f"{type(env).__name__} was interrupted, and has no `spec` from which to make it again")
