"""Check that an episode is open, for the methods that need its state."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from gymnasium.error import ResetNeeded

_NEED_EPISODE = (
    "admissible_actions",
    "expert_actions",
    "optimum",
    "optimum_after",
    "random_action",
    "searching_actions",
    "state_key",
)


class OpenEpisodeRules:
    """Base of environments whose methods raise `gymnasium.error.ResetNeeded` before the first `reset`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in _NEED_EPISODE:
            if name in vars(cls):
                setattr(cls, name, _after_reset(vars(cls)[name]))


def _after_reset(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of `TextEnv` that raises `ResetNeeded` while no task is open."""

    @wraps(method)
    def checked(self: Any, *args: Any, **options: Any) -> Any:
        if self._task is None:
            raise ResetNeeded(f"Call reset() before {method.__name__}().")
        return method(self, *args, **options)

    return checked
