"""Intervals and paired tests for success rates.

Formulas, on plain numbers. z is the normal quantile of the confidence level: 1.96 for 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple


class Interval(NamedTuple):
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float


def _z(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def wilson(successes: float, n: float, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a binomial rate (Wilson 1927).

    Args:
        successes: number of successes; fractional when clustered data are given an effective size.
        n: number of trials; 0 gives the empty estimate (nan, 0, 1).
    """
    if n <= 0:
        return Interval(math.nan, 0.0, 1.0)
    z = _z(confidence)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # At p = 0 and p = 1 the bound is exact; rounding must not move it past the estimate.
    low = 0.0 if p == 0.0 else max(0.0, centre - half)
    high = 1.0 if p == 1.0 else min(1.0, centre + half)
    return Interval(p, low, high)


def rate(groups: Sequence[Sequence[bool]], confidence: float = 0.95) -> Interval:
    """Success rate over tasks that were each played one or more times.

    Repeats of one task are not independent. The Wilson interval is taken at the effective sample size n / d,
    where the design effect d = Var_cluster / Var_binomial (Kish 1965), at least 1, compares the variance of the
    rate between tasks with the binomial one. With one play a task this is the plain Wilson interval.

    Args:
        groups: the outcomes of each task.
    """
    n = sum(len(group) for group in groups)
    successes = sum(sum(group) for group in groups)
    k = len(groups)
    if n == k:
        return wilson(successes, n, confidence)
    if successes in (0, n):  # no variance to compare: as if repeats told nothing new
        return wilson(successes / n * k, k, confidence)
    p = successes / n
    between = sum((sum(group) - p * len(group)) ** 2 for group in groups) / n**2
    if k > 1:
        between *= k / (k - 1)
    effect = max(1.0, between / (p * (1 - p) / n))
    return wilson(successes / effect, n / effect, confidence)


def mean(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean with a normal-theory interval (standard error s / sqrt(n), s with n - 1)."""
    if not values:
        return Interval(math.nan, math.nan, math.nan)
    centre = fmean(values)
    half = _z(confidence) * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return Interval(centre, centre - half, centre + half)


class Paired(NamedTuple):
    """Two players compared on the tasks that both played.

    Attributes:
        n: number of shared tasks.
        only_a, only_b: tasks that one solved and the other did not.
        difference: rate of a minus rate of b, with its interval.
        p_value: two-sided exact McNemar test of equal rates.
    """

    n: int
    only_a: int
    only_b: int
    difference: Interval
    p_value: float


def paired(a: Sequence[bool], b: Sequence[bool], confidence: float = 0.95) -> Paired:
    """Compare two players task by task.

    The interval is Newcombe's hybrid score interval for paired proportions (Newcombe 1998, Statistics in
    Medicine 17:2635, method 10); the test is McNemar's, exact.

    Args:
        a, b: outcomes on the same tasks in the same order.
    """
    n = len(a)
    both = sum(x and y for x, y in zip(a, b, strict=True))
    only_a = sum(a) - both
    only_b = sum(b) - both
    neither = n - both - only_a - only_b
    if n == 0:
        return Paired(0, 0, 0, Interval(math.nan, -1.0, 1.0), 1.0)
    rate_a, rate_b = wilson(sum(a), n, confidence), wilson(sum(b), n, confidence)
    margins = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    agreement = both * neither - only_a * only_b
    if margins == 0:
        phi = 0.0
    elif agreement > 0:  # Newcombe's continuity correction of the correlation
        phi = max(agreement - n / 2, 0.0) / math.sqrt(margins)
    else:
        phi = agreement / math.sqrt(margins)
    d = rate_a.value - rate_b.value
    la, ua = rate_a.value - rate_a.low, rate_a.high - rate_a.value
    lb, ub = rate_b.value - rate_b.low, rate_b.high - rate_b.value
    low = d - math.sqrt(max(0.0, la * la - 2 * phi * la * ub + ub * ub))
    high = d + math.sqrt(max(0.0, ua * ua - 2 * phi * ua * lb + lb * lb))
    return Paired(n, only_a, only_b, Interval(d, max(-1.0, low), min(1.0, high)), mcnemar(only_a, only_b))


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided exact p-value of McNemar's test: discordant pairs are fair coin flips if the rates are equal."""
    m = only_a + only_b
    tail = sum(math.comb(m, k) for k in range(min(only_a, only_b) + 1)) / (1 << m)
    return min(1.0, 2 * tail)
