"""One measured line of a benchmark table, and the paired stopwatch that fills it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        what: the thing measured, such as "TextSokoban-v0 step".
        value: the number, in `unit`.
        unit: "x" for a ratio (above 1: faster than the yardstick), or "µs", "ms", "s", "/s", "MB".
        bar: the value to reach, or None where there is none.
        higher_is_better: whether `value` should be at least (True) or at most (False) the bar.
        beside: what it was measured against, such as "FrozenLake-v1 4.9 µs".
    """

    what: str
    value: float
    unit: str
    bar: float | None = None
    higher_is_better: bool = True
    beside: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether the bar is reached; None without a bar."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.higher_is_better else self.value <= self.bar


def cpu_seconds(run: Callable[[], int]) -> float:
    """CPU seconds per unit of work of one call; `run` returns how many units it did."""
    start = time.process_time()
    units = run()
    return (time.process_time() - start) / units


def paired(contenders: Sequence[Callable[[], int]], rounds: int = 5) -> list[list[float]]:
    """Time several workloads in turn, `rounds` times.

    Returns:
        CPU seconds per unit, indexed `[contender][round]`. Compare within a round: the machine's speed drifts.
    """
    times: list[list[float]] = [[] for _ in contenders]
    for _ in range(rounds):
        for seconds, run in zip(times, contenders, strict=True):
            seconds.append(cpu_seconds(run))
    return times


def ratio(yardstick: Sequence[float], ours: Sequence[float]) -> float:
    """The median over rounds of yardstick time / our time: how many times faster ours is."""
    return statistics.median(theirs / mine for theirs, mine in zip(yardstick, ours, strict=True))
