"""Exact success probabilities on a lake, of the optimal policy and of the uniformly random policy.

With n remaining steps, V_n(cell) = max over actions of E[V_{n-1}(next cell)], with V_n(goal) = 1, V_n(hole) = 0
and V_0 = 0 elsewhere. This is Bellman's equation for the probability of reaching the goal within n steps. Among
actions of equal probability the optimal policy takes the one with the shortest expected time to the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .lake import Lake, validate_map

_TOLERANCE = 1e-12
_MAX_SWEEPS = 100_000

Floats = npt.NDArray[np.float64]


class _Sweep(NamedTuple):
    """Optimal policy for one number of remaining steps; arrays of shape (cells,).

    Attributes:
        values: Maximum probability of reaching the goal.
        times: Expected number of steps until the episode ends.
        actions: Optimal action, as an index into `ACTIONS`.
    """

    values: Floats
    times: Floats
    actions: npt.NDArray[np.intp]


class Policy:
    """Optimal policy on one lake, for every number of remaining steps.

    Value iteration is extended on demand. Its sweeps are kept as far as a number of steps has asked for them.

    Args:
        lake: Lake.
        success_rate: Probability of the chosen direction; the rest is shared by the two perpendicular directions.
    """

    def __init__(self, lake: Lake, success_rate: float) -> None:
        moves = np.array(lake.moves, dtype=np.intp)  # (cells, actions)
        # Next cells by (cell, action, slip to the left / no slip / slip to the right).
        self._next_cells = np.stack([np.roll(moves, turn, axis=1) for turn in (1, 0, -1)], axis=2)
        side = (1.0 - success_rate) / 2.0
        self._slip_probabilities = np.array([side, success_rate, side])
        self._nonterminal = ~np.array(lake.terminal)
        goal = np.zeros(len(lake.moves))
        goal[lake.goal] = 1.0
        self._sweeps = [_Sweep(goal, np.zeros(len(goal)), np.zeros(len(goal), dtype=np.intp))]
        self._last: _Sweep | None = None
        """Sweep with which the iteration has converged; None if it has not been reached yet."""
        self._last_steps = _MAX_SWEEPS
        """Number of remaining steps of that sweep."""

    def value(self, cell: int, steps: int | None) -> float:
        """Return the maximum probability of reaching the goal from a cell.

        Args:
            cell: Current cell.
            steps: Number of remaining steps; None for no limit.
        """
        return float(self._sweep(steps).values[cell])

    def time(self, cell: int, steps: int | None) -> float:
        """Return the expected number of steps until the episode ends under the optimal policy.

        It is the shortest among the policies that attain `value`, and includes episodes that end in a hole or at
        the limit.
        """
        return float(self._sweep(steps).times[cell])

    def action(self, cell: int, steps: int | None) -> int:
        """Return the action that attains `value`, as an index into `ACTIONS`."""
        return int(self._sweep(steps).actions[cell])

    def expected(self, cell: int, action: int, steps: int | None) -> tuple[float, float]:
        """Return the expectation of `value` and `time` after an action, over the cells in which it may end.

        Args:
            cell: Cell before the action.
            action: Index into `ACTIONS`.
            steps: Number of remaining steps before the action, at least 1; None for no limit.
        """
        after = self._sweep(None if steps is None else steps - 1)
        cells = self._next_cells[cell, action]
        return (
            float(after.values[cells] @ self._slip_probabilities),
            float(after.times[cells] @ self._slip_probabilities),
        )

    def _sweep(self, steps: int | None) -> _Sweep:
        """Return the sweep for a number of remaining steps: from convergence on, that of convergence."""
        if steps is None:
            sweep, count = self._sweeps[-1], len(self._sweeps) - 1
            while self._last is None:
                count += 1
                sweep = self._iterate(sweep, count)
            return self._last
        while len(self._sweeps) <= min(steps, self._last_steps):
            self._sweeps.append(self._iterate(self._sweeps[-1], len(self._sweeps)))
        return self._sweeps[min(steps, self._last_steps)]

    def _iterate(self, before: _Sweep, steps: int) -> _Sweep:
        """Return the sweep for `steps` remaining steps, given the one before it."""
        values, times, _ = before
        probabilities = values[self._next_cells] @ self._slip_probabilities  # (cells, actions)
        durations = 1.0 + times[self._next_cells] @ self._slip_probabilities
        durations[probabilities < probabilities.max(axis=1, keepdims=True) - _TOLERANCE] = np.inf
        actions = durations.argmin(axis=1)
        cells = np.arange(len(values))
        new_values = np.where(self._nonterminal, probabilities[cells, actions], values)
        new_times = np.where(self._nonterminal, durations[cells, actions], 0.0)
        sweep = _Sweep(new_values, new_times, actions)
        # Expected times grow without bound where the goal is unreachable, so those cells do not count.
        solvable = self._nonterminal & (new_values > 0.0)
        converged = (
            steps > len(values)
            and np.all(np.abs(new_values - values) <= _TOLERANCE)
            and np.all(np.abs(new_times - times)[solvable] <= 1e-9 * times[solvable])
        )
        if converged or steps >= _MAX_SWEEPS:
            self._last, self._last_steps = sweep, steps
        return sweep


@lru_cache(maxsize=128)
def optimal_policy(lake: Lake, success_rate: float) -> Policy:
    """Return the `Policy` of a lake; cached, so that all environments with the lake share it."""
    return Policy(lake, success_rate)


def optimal_success(desc: Sequence[str], success_rate: float, steps: int | None = None) -> float:
    """Return the probability with which the optimal policy reaches the goal of a map from its start.

    Args:
        desc: Map, as rows of S, F, H and G.
        success_rate: Probability of the chosen direction.
        steps: Step limit; None for no limit.
    """
    lake = Lake(validate_map(desc))
    return Policy(lake, success_rate).value(lake.start, steps)


def random_success(desc: Sequence[str], steps: int) -> float:
    """Return the probability with which uniformly random actions reach the goal of a map from its start.

    It does not depend on the success rate, because a uniformly random direction is still uniformly random after a
    slip.

    Args:
        desc: Map, as rows of S, F, H and G.
        steps: Step limit.
    """
    lake = Lake(validate_map(desc))
    moves = np.array(lake.moves, dtype=np.intp)
    probabilities = np.zeros(len(moves))
    probabilities[lake.goal] = 1.0
    for _ in range(steps):
        probabilities = probabilities[moves].mean(axis=1)
    return float(probabilities[lake.start])
