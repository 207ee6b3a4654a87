"""Power of paired comparisons: the smallest difference that given tasks show, and the tasks that one needs.

On entry e of E, let ψ be the mean squared difference of a task; with one episode per task it is the discordance,
the share of tasks that only one of two agents solves. If the agents differ by δ, the mean difference over the
entries has with T tasks per entry the variance

    V0 = Σ ψ / (T E²)  if there is no difference,    V1 = Σ (ψ - δ²) / (T E²)  if it is δ,

and a two-sided test at level α rejects with probability 1 - β where

    z[1 - α / 2] √V0 + z[1 - β] √V1 = δ - c

(Miettinen, Biometrics 24:339, 1968; Connor, Biometrics 43:207, 1987, for one entry). The continuity correction c
is that of McNemar's test (Edwards, Psychometrika 13:185, 1948): one task's share for outcomes of single episodes,
which the exact test needs, and 0 for means. As ψ is at least δ between agents whose tasks differ by 0 or 1, a
larger δ than the observed ψ takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

POWER = 0.8
ALPHA = 0.05


class Design(NamedTuple):
    """Tasks of a paired comparison.

    Attributes:
        discordance: Mean squared difference ψ of a task, by entry.
        tasks: Number of tasks, by entry; at least 1.
        is_single: True if each agent has one episode of each task.
    """

    discordance: Sequence[float]
    tasks: Sequence[int]
    is_single: bool


def _least_tasks(alpha: float) -> int:
    """Return the number of tasks n from which on a sign-flip test can reach a level: 2 / 2^n is at most that."""
    return math.ceil(1 - math.log2(alpha))


def smallest_difference(design: Design, power: float = POWER, alpha: float = ALPHA) -> float | None:
    """Return the smallest difference that the tasks of a comparison show with a given power.

    None is returned if no task differs, so that nothing can be estimated, and if the tasks are too few to show
    even the largest difference.

    Args:
        design: The comparison.
        power: Probability 1 - β of a significant difference.
        alpha: Level of the two-sided test.
    """
    is_possible = any(design.discordance) and sum(design.tasks) >= _least_tasks(alpha)
    if not is_possible or _tasks_factor(design, 1.0, power, alpha) > 1:
        return None
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        if _tasks_factor(design, middle, power, alpha) > 1:
            low = middle
        else:
            high = middle
    return high


def needed_tasks(design: Design, difference: float, power: float = POWER, alpha: float = ALPHA) -> int | None:
    """Return the number of tasks that show a difference with a given power, over entries in the same proportion.

    None is returned if no task differs, so that nothing can be estimated.

    Args:
        design: The comparison.
        difference: Difference to show, above 0 and at most 1.
        power: Probability 1 - β of a significant difference.
        alpha: Level of the two-sided test.
    """
    if not any(design.discordance):
        return None
    factor = _tasks_factor(design, difference, power, alpha)
    return max(_least_tasks(alpha), math.ceil(factor * sum(design.tasks) - 1e-9))


def _tasks_factor(design: Design, difference: float, power: float, alpha: float) -> float:
    """Return the factor by which the numbers of tasks must grow to show a difference."""
    if difference <= 0:
        return math.inf
    normal, entries = NormalDist(), len(design.tasks)
    null = alternative = 0.0
    for discordance, tasks in zip(design.discordance, design.tasks, strict=True):
        psi = max(discordance, difference) if design.is_single else max(discordance, difference**2)
        null += psi / (tasks * entries**2)
        alternative += (psi - difference**2) / (tasks * entries**2)
    spread = normal.inv_cdf(1 - alpha / 2) * math.sqrt(null)
    spread += normal.inv_cdf(power) * math.sqrt(max(alternative, 0.0))
    # With n = factor · Σ T tasks the spread is that of one factor over √factor, and c is 1 / n:
    # spread / √factor = δ - c1 / factor, a quadratic equation in √factor.
    correction = 1 / sum(design.tasks) if design.is_single else 0.0
    root = (spread + math.sqrt(spread**2 + 4 * difference * correction)) / (2 * difference)
    return root**2
