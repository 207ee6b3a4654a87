"""Exact chances of crossing a lake: optimal play by value iteration, random play by the same recursion.

With `n` steps left, V_n(cell) = max over actions of E[V_{n-1}(next cell)], V_n(goal) = 1, V_n(hole) = V_0 = 0
(Bellman's equation for the probability of reaching the goal within n steps). Among actions of equal chance the one
that ends sooner in expectation is taken, so that a policy on safe ice does not dawdle.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .lake import Lake, checked_map

_TIE = 1e-12
_MOST_SWEEPS = 100_000

Floats = npt.NDArray[np.float64]


class Policy:
    """Optimal play on one lake, for every number of steps left.

    Args:
        lake: the lake.
        success_rate: probability of the intended direction; the rest is split between the two at right angles.
    """

    def __init__(self, lake: Lake, success_rate: float) -> None:
        moves = np.array(lake.moves, dtype=np.intp)  # (cells, actions)
        self._after = np.stack([np.roll(moves, turn, axis=1) for turn in (1, 0, -1)], axis=2)
        side = (1.0 - success_rate) / 2.0
        self._chance = np.array([side, success_rate, side])
        self._open = ~np.array(lake.terminal)
        goal = np.zeros(len(lake.moves))
        goal[lake.goal] = 1.0
        self._values: list[Floats] = [goal]
        self._times: list[Floats] = [np.zeros(len(goal))]
        self._actions: list[npt.NDArray[np.intp]] = [np.zeros(len(goal), dtype=np.intp)]
        self._limit: int | None = None

    def value(self, cell: int, steps: int | None) -> float:
        """The greatest probability of reaching the goal from `cell` within `steps` (None: ever)."""
        return float(self._values[self._horizon(steps)][cell])

    def action(self, cell: int, steps: int | None) -> int:
        """The action that attains `value`."""
        return int(self._actions[self._horizon(steps)][cell])

    def _horizon(self, steps: int | None) -> int:
        while self._limit is None and (steps is None or steps >= len(self._values)):
            self._sweep()
        last = len(self._values) - 1
        return last if steps is None else min(steps, last)

    def _sweep(self) -> None:
        values, times = self._values[-1], self._times[-1]
        chances = values[self._after] @ self._chance  # (cells, actions)
        durations = 1.0 + times[self._after] @ self._chance
        durations[chances < chances.max(axis=1, keepdims=True) - _TIE] = np.inf
        actions = durations.argmin(axis=1)
        cells = np.arange(len(values))
        new_values = np.where(self._open, chances[cells, actions], values)
        new_times = np.where(self._open, durations[cells, actions], 0.0)
        # Times of cells from which the goal is out of reach grow for ever; only the others need to settle.
        alive = self._open & (new_values > 0.0)
        settled = (
            np.allclose(new_values, values, rtol=0.0, atol=_TIE)
            and np.allclose(new_times[alive], times[alive], rtol=1e-9, atol=0.0)
            and len(self._values) > len(values)
        )
        self._values.append(new_values)
        self._times.append(new_times)
        self._actions.append(actions)
        if settled or len(self._values) > _MOST_SWEEPS:
            self._limit = len(self._values)


def optimal_success(desc: Sequence[str], success_rate: float, steps: int | None = None) -> float:
    """The greatest probability with which any player reaches the goal of a map from its start.

    Args:
        desc: the map, rows of S, F, H and G.
        success_rate: probability of the intended direction.
        steps: the step limit; None for no limit.
    """
    lake = Lake(checked_map(desc))
    return Policy(lake, success_rate).value(lake.start, steps)


def random_success(desc: Sequence[str], steps: int) -> float:
    """The probability with which a player of uniformly random actions reaches the goal within `steps`.

    It does not depend on the slip: turning a uniformly random direction leaves it uniformly random.
    """
    lake = Lake(checked_map(desc))
    moves = np.array(lake.moves, dtype=np.intp)
    chances = np.zeros(len(moves))
    chances[lake.goal] = 1.0
    for _ in range(steps):
        chances = chances[moves].mean(axis=1)
    return float(chances[lake.start])
