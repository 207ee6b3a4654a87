"""The error of environments that are asked about an episode before the first reset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium.error import ResetNeeded


class NoEpisode(ResetNeeded, AttributeError):
    """An attribute that `reset` sets is missing; `hasattr`, and `getattr` with a default, work as ever."""


class OpenEpisodeRules:
    """Base of environments whose methods raise `gymnasium.error.ResetNeeded` where they need what `reset` sets."""

    if not TYPE_CHECKING:  # A type checker would take every attribute for one that exists.

        def __getattr__(self, name: str) -> Any:  # Called only for attributes that are missing.
            is_state = name.startswith("_") and not name.startswith("__") and not hasattr(type(self), name)
            # The first reset makes the random generator before it opens a task.
            is_new = self.__dict__.get("_task", "") is None and "_np_random" not in self.__dict__
            if is_state and is_new:
                raise NoEpisode(f"Call reset() first: {type(self).__name__} has no {name} before.")
            # The error of a property, or that there is no such attribute.
            return object.__getattribute__(self, name)
