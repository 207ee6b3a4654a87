"""Replacement of environments that raised or that a time limit interrupted; their state is unknown."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet, ref

import gymnasium as gym

from ..envs.copying import RebuiltCopies
from ..envs.user_code import USER_ERRORS
from .deadline import expires_after

if TYPE_CHECKING:
    from ..envs.core import TextEnv
    from .base import Seat

BUILD_SECONDS = 60.0
"""Seconds in which an environment that a time limit interrupted is made again; other limits do not count them."""

_interrupted: WeakSet[TextEnv[Any]] = WeakSet()
_failed: WeakSet[TextEnv[Any]] = WeakSet()
_replacements: WeakKeyDictionary[TextEnv[Any], TextEnv[Any]] = WeakKeyDictionary()
"""Environments by those of the callers of `play`, who may give these to it again."""
_replaced: WeakKeyDictionary[TextEnv[Any], ref[TextEnv[Any]]] = WeakKeyDictionary()
"""The reverse, which must not keep the environments of callers alive."""


def discard(env: TextEnv[Any]) -> None:
    """Have `renewed` replace an environment that was interrupted, in this and in every later call of `play`."""
    _interrupted.add(env)


def discard_failed(env: TextEnv[Any]) -> None:
    """Have `renewed` replace an environment that raised, if it can be made again."""
    _failed.add(env)


def renewed(env: TextEnv[Any]) -> TextEnv[Any]:
    """Return an environment, or the one in its place if it was discarded.

    One that raised stays if it cannot be made again. Those of callers are not closed: their owners may use them.

    Raises:
        TypeError: There is no record of how an environment that was interrupted was made.
        Expired: It was not made within `BUILD_SECONDS`.
    """
    used = _replacements.get(env, env)
    if used in _interrupted:
        with expires_after(time.perf_counter() + BUILD_SECONDS):
            new = _build_again(used)
    elif used in _failed:
        try:
            new = _build_again(used)
        except USER_ERRORS:
            return used
        if used in _replaced:  # It has no other owner.
            with suppress(*USER_ERRORS):
                used.close()
    else:
        return used
    if "waits" in vars(used):  # It may be set on an object.
        new.waits = used.waits
    owned = (_replaced[used]() if used in _replaced else None) or used
    _replacements[owned], _replaced[new] = new, ref(owned)
    return new


def renew(seat: Seat) -> None:
    """Replace the environment of a seat if it was discarded; the time limit of its episode begins afterwards.

    Raises:
        TypeError, Expired: See `renewed`.
    """
    used = _replacements.get(seat.env, seat.env)
    if used in _interrupted or used in _failed:
        limit, seconds = seat.step_time_limit, BUILD_SECONDS if used in _interrupted else math.inf
        seat.step_time_limit, seat.deadline = seconds, math.inf
        seat.step_deadline = time.perf_counter() + seconds
        seat.env = renewed(seat.env)
        seat.step_time_limit, seat.step_deadline = limit, math.inf
        seat.deadline = time.perf_counter() + seat.time_limit
    else:
        seat.env = used


def _build_again(env: TextEnv[Any]) -> TextEnv[Any]:
    """Return a new environment like `env`, without touching the old one, whose thread may still be in a step."""
    if isinstance(env, RebuiltCopies):
        return env.rebuild()
    if env.spec is not None:
        return gym.make(env.spec).unwrapped
    raise TypeError(f"{type(env).__name__} was interrupted, and has no `spec` from which to make it again")
