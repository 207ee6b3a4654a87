"""Paired comparisons of two agents on the tasks that both completed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .exact_tests import mcnemar, sign_flips
from .intervals import Interval, count_outcomes, student_mean, tallied_rate

TIE = 1e-12
"""Size below which a difference of two means is a rounding error."""


class Paired(NamedTuple):
    """Paired comparison of agents a and b on the tasks that both completed.

    Attributes:
        n: Number of shared tasks.
        only_a: Number of tasks on which a has the higher success rate.
        only_b: Number of tasks on which b has the higher success rate.
        difference: Success rate of a minus that of b, with its interval.
        p_value: Two-sided p-value of equal rates.
    """

    n: int
    only_a: int
    only_b: int
    difference: Interval
    p_value: float


def paired(a: Sequence[Sequence[bool]], b: Sequence[Sequence[bool]], confidence: float = 0.95) -> Paired:
    """Compare two agents task by task; the task is the unit, so episodes of one task are one cluster.

    The interval is Newcombe's hybrid score interval for paired proportions (Statistics in Medicine 17:2635, 1998,
    method 10). With repeats, the two single intervals are those of `rate`, which allow for clusters, and the
    correlation is that of the tasks' rates, as in the method of variance estimates recovery (Zou and Donner,
    Statistics in Medicine 27:1693, 2008). The test is McNemar's exact test with one episode per task, and a
    sign-flip permutation test over tasks with repeats, which is the same test where differences are -1, 0 and 1.

    Args:
        a: Outcomes of a's episodes of each task.
        b: Outcomes of b's episodes of the same tasks, in the same order. Tasks without an episode of both are left
            out.
        confidence: Confidence level.
    """
    counts = ([count_outcomes(outcomes) for outcomes in one] for one in (a, b))
    both = (pair for pair in zip(*counts, strict=True) if pair[0][0] and pair[1][0])
    return tallied_pairs(Counter(both), confidence)


def tallied_pairs(
    tasks: Mapping[tuple[tuple[int, int], tuple[int, int]], int], confidence: float = 0.95
) -> Paired:
    """Compare two agents as `paired` does, from a tally.

    Args:
        tasks: Number of tasks by the numbers of episodes and successes of a, and those of b.
        confidence: Confidence level.
    """
    if not tasks:
        return Paired(0, 0, 0, Interval(math.nan, -1.0, 1.0), 1.0)
    pairs = sorted(tasks)  # So that rounding does not depend on the order of the tasks.
    counts = np.asarray([tasks[pair] for pair in pairs])
    ours, theirs = (np.asarray([pair[one][1] / pair[one][0] for pair in pairs]) for one in (0, 1))
    tally_a, tally_b = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for (a, b), m in tasks.items():
        tally_a[a] += m
        tally_b[b] += m
    n = sum(tasks.values())
    sizes = [sum(size * m for (size, _), m in one.items()) for one in (tally_a, tally_b)]
    differences = ours - theirs
    only_a, only_b = int(counts[differences > TIE].sum()), int(counts[differences < -TIE].sum())
    is_single = n == min(sizes) == max(sizes)
    p_value = mcnemar(only_a, only_b) if is_single else sign_flips(differences, counts=counts)
    value = float((counts * differences).sum()) / n
    rate_a, rate_b = tallied_rate(tally_a, confidence), tallied_rate(tally_b, confidence)
    correlation = _correlation(ours, theirs, counts, min(sizes))
    below = _recover(rate_a.value - rate_a.low, rate_b.high - rate_b.value, correlation)
    above = _recover(rate_a.high - rate_a.value, rate_b.value - rate_b.low, correlation)
    interval = Interval(value, max(-1.0, value - below), min(1.0, value + above))
    return Paired(n, only_a, only_b, interval, p_value)


def paired_means(differences: Sequence[float], confidence: float = 0.95) -> Paired:
    """Compare two agents by numbers such as scores, with Student's interval and a sign-flip permutation test.

    Args:
        differences: Mean of a minus mean of b on each task.
        confidence: Confidence level.
    """
    return Paired(
        len(differences),
        sum(d > TIE for d in differences),
        sum(d < -TIE for d in differences),
        student_mean(differences, confidence),
        sign_flips(differences),
    )


def stratified(strata: Sequence[Paired], differences: Sequence[Sequence[float]]) -> Paired:
    """Combine comparisons on several entries into that of the mean over entries, each with the same weight.

    The interval is made of those of the entries by the method of variance estimates recovery (Zou and Donner,
    ibid.): the squared distances of the bounds, times the squared weights, add up. The test is a sign-flip
    permutation test within the entries.

    Args:
        strata: Comparisons on the entries; one of them alone is returned as it is.
        differences: Mean of a minus mean of b on each task, by entry.
    """
    if len(strata) == 1:
        return strata[0]
    k = len(strata)
    value = sum(one.difference.value for one in strata) / k
    below = math.hypot(*(one.difference.value - one.difference.low for one in strata)) / k
    above = math.hypot(*(one.difference.high - one.difference.value for one in strata)) / k
    weighted = [d / (k * len(tasks)) for tasks in differences for d in tasks]
    return Paired(
        sum(one.n for one in strata),
        sum(one.only_a for one in strata),
        sum(one.only_b for one in strata),
        Interval(value, value - below, value + above),
        sign_flips(weighted),
    )


def _correlation(
    a: NDArray[np.float64], b: NDArray[np.float64], counts: NDArray[np.int64], episodes: int
) -> float:
    """Return the correlation of the tasks' rates; a positive one with Newcombe's continuity correction.

    Rates a and b occur `counts` times. The correction lowers the covariance by half an episode's share. 0 if
    either rate is the same on all tasks.
    """
    weights = counts / counts.sum()
    from_a, from_b = a - float(weights @ a), b - float(weights @ b)
    covariance = float(weights @ (from_a * from_b))
    if covariance > 0:
        covariance = max(0.0, covariance - 1 / (2 * episodes))
    scale = math.sqrt(float(weights @ from_a**2) * float(weights @ from_b**2))
    return max(-1.0, min(1.0, covariance / scale)) if scale > TIE else 0.0


def _recover(x: float, y: float, correlation: float) -> float:
    """Return the distance of a bound of a difference from those of two correlated estimates."""
    return math.sqrt(max(0.0, x * x - 2 * correlation * x * y + y * y))
