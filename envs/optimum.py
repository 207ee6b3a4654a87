"""Optimum of an episode in progress, of which the quality of single decisions is made."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .errors import ConfigurationError

if TYPE_CHECKING:
    from .snapshots import Snapshot

_MAX_LENGTHS = 20_000
"""Maximum number of states whose plan lengths are kept."""


class Optimum(NamedTuple):
    """Value that optimal play can still reach within the step limit, and its distance.

    Attributes:
        value: Maximum probability of success; in environments that score or pay the end, the best expected score
            (see `OptimumRules.optimum_measure`).
        steps: Fewest steps to it, an expected number in stochastic environments; 0 after the end, and None if
            `value` is 0.
    """

    value: float
    steps: float | None


class OptimumRules:
    """Base of environments with an optimum: of the current state, and of the state after an action."""

    optimum_is_exact: ClassVar[bool] = False
    """True if the value and the steps of `optimum()` are proven wherever it is not None. Otherwise they are those
    of the best plan known. A class that sets it and keeps the default `optimum` promises that `_find_plan` finds a
    shortest plan wherever there is one."""

    optimum_measure: ClassVar[str] = "probability of success"
    """Quantity of `Optimum.value`: "probability of success", "score" or "payment"."""

    _lengths: dict[Hashable, int | None]
    _lengths_task: str | None = None

    if TYPE_CHECKING:  # Members of `TextEnv`.
        max_steps: int | None
        render_mode: str | None
        _success: bool
        _truncated: bool
        _task: str | None

        @property
        def rng_state(self) -> int: ...
        @property
        def _ended(self) -> bool: ...
        def expert_actions(self) -> list[str] | None: ...
        def restore(self, snapshot: Snapshot, seed: int | None = None) -> None: ...
        def snapshot(self) -> Snapshot: ...
        def state_key(self) -> Hashable: ...
        def step(self, action: str) -> Any: ...
        def steps_left(self) -> float: ...

    @property
    def replay_is_costly(self) -> bool:
        """True if replaying an episode calls services, such as a search server.

        The decisions of such episodes are labelled on demand only.
        """
        return False

    def optimum(self) -> Optimum | None:
        """Return what optimal play from the current state still reaches, or None if that is unknown.

        The value is 1 if the expert's plan fits into the remaining steps, and 0 otherwise. That is exact in a
        deterministic environment whose expert finds a shortest plan wherever there is one; other environments
        override this method.
        """
        if self._ended:
            return self._final_optimum()
        steps = self._cached_length() if self.optimum_is_exact else self._plan_length()
        return Optimum(0.0, None) if steps is None or steps > self.steps_left() else Optimum(1.0, steps)

    def optimum_without_limit(self) -> Optimum | None:
        """Return what `optimum` would be without the step limit, also where that limit has ended the episode."""
        limit, truncated = self.max_steps, self._truncated
        self.max_steps, self._truncated = None, False
        try:
            return self.optimum()
        finally:
            self.max_steps, self._truncated = limit, truncated

    def optimum_after(self, action: str) -> Optimum | None:
        """Return the optimum after an action, in expectation over its outcomes, without executing it.

        With V the value of `optimum()` in the current state and Q the value that this method returns, V - Q is the
        regret of the action: what it costs even if optimal play follows, whatever its outcome happens to be. Among
        actions without regret in value, Q.steps + 1 - V.steps is their regret in steps.

        This implementation takes the step and returns to the current state, which is exact if the action has one
        outcome. Stochastic environments override it.

        Returns:
            The optimum; None if it is unknown, as after an action that drew random numbers.
        """
        if self.snapshot is None:
            raise ConfigurationError("it has no snapshots, so actions that were not played cannot be judged.")
        start = self.snapshot()
        render_mode, self.render_mode = self.render_mode, None  # "human" would print a step that is not played.
        try:
            self.step(action)
            is_certain = self.rng_state == start.rng_state
            return self.optimum() if is_certain else None
        finally:
            self.render_mode = render_mode
            self.restore(start)

    def _final_optimum(self) -> Optimum:
        """Return the optimum after the end."""
        return Optimum(1.0, 0) if self._success else Optimum(0.0, None)

    def _find_plan(self) -> list[str] | None:
        """Return a plan from the current state to success, whatever the step limit, or None if there is none.

        It is not called after the end. An environment whose `expert_actions` respects the step limit overrides it.
        """
        return self.expert_actions()

    def _plan_length(self) -> int | None:
        """Return the length of the expert's plan from the current state, or None if there is none."""
        plan = self._find_plan()
        # Even where the goal holds, it takes an action to end the episode.
        return None if plan is None else max(1, len(plan))

    def _cached_length(self) -> int | None:
        """Return `_plan_length` of the current state; the lengths of a task's states are computed once."""
        key = self.state_key()
        if key is None:
            return self._plan_length()
        if self._task != self._lengths_task or len(self._lengths) > _MAX_LENGTHS:
            self._lengths, self._lengths_task = {}, self._task
        elif key in self._lengths:
            return self._lengths[key]
        length = self._lengths[key] = self._plan_length()
        return length
