"""Rows of a benchmark table, and paired measurements of CPU time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from ...envs.extras import missing_extra


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        what: Name of the measured quantity, such as "TextSokoban-v0 step".
        value: Measured value, in `unit`. NaN if it was not measured; `details` has the reason.
        unit: "x" for a ratio (above 1: faster than the baseline), or a unit such as "µs", "ms", "s", "/s", "MB".
        target: Target value; None without a target.
        higher_is_better: True if `value` must be at least the target, False if at most.
        details: Details, such as the measurement of the baseline: "FrozenLake-v1 4.9 µs".
    """

    what: str
    value: float
    unit: str
    target: float | None = None
    higher_is_better: bool = True
    details: str = ""

    @property
    def reached(self) -> bool | None:
        """True if the target is reached; None without a target or a measurement."""
        if self.target is None or math.isnan(self.value):
            return None
        return self.value >= self.target if self.higher_is_better else self.value <= self.target


def not_measured(what: str, extra: str, *packages: str) -> Row | None:
    """Return a row that says which extra a measurement needs; None if all its packages are installed.

    Args:
        what: Name of the measured quantity.
        extra: Extra that installs the packages.
        packages: Names of the modules that the measurement imports.
    """
    for package in packages:
        if find_spec(package) is None:
            return Row(what, math.nan, "", details=str(missing_extra(what, extra, package)))
    return None


def cpu_seconds(run: Callable[[], int]) -> float:
    """Return the CPU seconds per unit of work of one call of `run`, which returns its number of units."""
    start = time.process_time()
    units = run()
    return (time.process_time() - start) / units


def paired(contenders: Sequence[Callable[[], int]], rounds: int = 5) -> list[list[float]]:
    """Measure several workloads in turn.

    Args:
        contenders: Workloads; each returns its number of units of work.
        rounds: Number of measurements of each workload.

    Returns:
        CPU seconds per unit, indexed `[contender][round]`. Compare values of the same round only: the speed of a
        shared machine drifts.
    """
    times: list[list[float]] = [[] for _ in contenders]
    for _ in range(rounds):
        for seconds, run in zip(times, contenders, strict=True):
            seconds.append(cpu_seconds(run))
    return times


def ratio(baseline: Sequence[float], ours: Sequence[float]) -> float:
    """Return our speedup over the baseline: the median over rounds of the baseline's time divided by ours."""
    return statistics.median(theirs / mine for theirs, mine in zip(baseline, ours, strict=True))
