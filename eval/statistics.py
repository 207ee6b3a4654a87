"""Intervals and paired tests for success rates.

Formulas, on plain numbers. z is the normal quantile of the confidence level: 1.96 for 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

import numpy as np


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

    Repeats of one task are not independent. The Wilson interval is taken at Korn and Graubard's effective sample
    size (Survey Methodology 24:193, 1998): n / d times the squared ratio of t quantiles with n - 1 and k - 1
    degrees of freedom, where the design effect d compares the variance of the rate between the k tasks with the
    binomial one, and is taken as 1 where it is smaller or, at 0 % and 100 %, unknown. With one play a task this is
    the plain Wilson interval.

    Args:
        groups: the outcomes of each task.
    """
    n, k = sum(len(group) for group in groups), len(groups)
    successes = sum(sum(group) for group in groups)
    if n == k:
        return wilson(successes, n, confidence)
    if k == 1:
        return wilson(successes / n, 1, confidence)
    p = successes / n
    effect = 1.0
    if 0 < successes < n:
        between = k / (k - 1) * sum((sum(group) - p * len(group)) ** 2 for group in groups) / n**2
        effect = max(1.0, between / (p * (1 - p) / n))
    effective = n / effect * (_t(confidence, n - 1) / _t(confidence, k - 1)) ** 2
    effective = min(effective, n)
    return wilson(p * effective, effective, confidence)


def _t(confidence: float, df: int) -> float:
    """The two-sided quantile of Student's t (Cornish-Fisher expansion; within 1 % from 3 degrees of freedom)."""
    z = _z(confidence)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum((term / df**power for power, term in enumerate(terms, 1)), 0.0)


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
        only_a, only_b: tasks on which one did better than the other.
        difference: rate of a minus rate of b, with its interval.
        p_value: two-sided test of equal rates.
    """

    n: int
    only_a: int
    only_b: int
    difference: Interval
    p_value: float


def paired(a: Sequence[Sequence[bool]], b: Sequence[Sequence[bool]], confidence: float = 0.95) -> Paired:
    """Compare two players task by task.

    With one play a task: Newcombe's hybrid score interval for paired proportions (Statistics in Medicine 17:2635,
    1998, method 10) and McNemar's exact test. With repeats the task is the unit: the interval of the mean
    difference between tasks, and a sign-flip permutation test of it.

    Args:
        a, b: outcomes of each task, the same tasks in the same order.
    """
    if all(len(x) == len(y) == 1 for x, y in zip(a, b, strict=True)):
        return _paired_once([x for (x,) in a], [y for (y,) in b], confidence)
    differences = [fmean(x) - fmean(y) for x, y in zip(a, b, strict=True)]
    value, low, high = mean(differences, confidence)
    return Paired(
        len(differences),
        sum(d > 0 for d in differences),
        sum(d < 0 for d in differences),
        Interval(value, max(-1.0, low), min(1.0, high)),
        sign_flips(differences),
    )


def sign_flips(differences: Sequence[float], draws: int = 10_000) -> float:
    """Two-sided p-value of a mean of zero: how often random signs give a mean as far from it.

    All sign patterns are tried where there are no more than `draws`; otherwise so many seeded ones are drawn, and
    the observed one counts as one of them (so the value is at least 1 / (draws + 1)).
    """
    values = np.asarray([d for d in differences if d])
    if not len(values):
        return 1.0
    observed = abs(values.sum()) - 1e-12
    if 2 ** len(values) <= draws:
        signs = 1 - 2 * ((np.arange(2 ** len(values))[:, None] >> np.arange(len(values))) & 1)
        return float(np.mean(np.abs(signs @ values) >= observed))
    signs = 1 - 2 * np.random.Generator(np.random.PCG64(0)).integers(0, 2, (draws, len(values)))
    return float((1 + np.sum(np.abs(signs @ values) >= observed)) / (draws + 1))


def _paired_once(a: Sequence[bool], b: Sequence[bool], confidence: float) -> Paired:
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
