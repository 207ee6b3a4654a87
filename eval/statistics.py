"""Confidence intervals and paired tests for success rates and means.

In the formulas, z is the two-sided normal quantile of the confidence level: 1.96 for 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

import numpy as np

from .student_t import two_sided_quantile


class Interval(NamedTuple):
    """Estimate with its confidence interval."""

    value: float
    low: float
    high: float


def _z(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def wilson(successes: float, n: float, confidence: float = 0.95) -> Interval:
    """Return the Wilson score interval of a binomial rate (Wilson 1927).

    Args:
        successes: Number of successes; fractional for clustered data with an effective sample size.
        n: Number of trials; 0 gives the interval (NaN, 0, 1).
        confidence: Confidence level.
    """
    if n <= 0:
        return Interval(math.nan, 0.0, 1.0)
    z = _z(confidence)
    p = successes / n
    center = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # At p = 0 and p = 1 one bound equals the estimate exactly; rounding errors must not move it past.
    low = 0.0 if p == 0.0 else max(0.0, center - half)
    high = 1.0 if p == 1.0 else min(1.0, center + half)
    return Interval(p, low, high)


def rate(groups: Sequence[Sequence[bool]], confidence: float = 0.95) -> Interval:
    """Return the success rate over tasks with one or more episodes each.

    Episodes of one task are not independent. The Wilson interval is computed at Korn and Graubard's effective
    sample size (Survey Methodology 24:193, 1998): n / d times the squared ratio of t quantiles with n - 1 and
    k - 1 degrees of freedom. The design effect d is the variance of the rate between the k tasks, divided by the
    binomial variance; it is 1 where that ratio is smaller or, at 0 % and 100 %, undefined. With one episode per
    task this is the plain Wilson interval.

    Args:
        groups: Outcomes of the episodes of each task.
        confidence: Confidence level.
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
    """Return the two-sided quantile of Student's t (Cornish-Fisher expansion; error below 1 % for df ≥ 3)."""
    z = _z(confidence)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum((term / df**power for power, term in enumerate(terms, 1)), 0.0)


def mean(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the mean with its normal interval (standard error s / sqrt(n), with the sample deviation s)."""
    if not values:
        return Interval(math.nan, math.nan, math.nan)
    center = fmean(values)
    half = _z(confidence) * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return Interval(center, center - half, center + half)


def student_mean(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the mean with Student's interval, for few values such as the results of seeds; infinite for one."""
    if len(values) < 2:
        return mean(values, confidence)
    center = fmean(values)
    half = two_sided_quantile(confidence, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(center, center - half, center + half)


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
    """Compare two agents task by task.

    With one episode per task, the interval is Newcombe's hybrid score interval for paired proportions (Statistics
    in Medicine 17:2635, 1998, method 10) and the test is McNemar's exact test. With repeats, the task is the unit:
    the interval is that of the mean difference per task, and the test is a sign-flip permutation test.

    Args:
        a: Outcomes of a's episodes of each task.
        b: Outcomes of b's episodes of the same tasks, in the same order.
        confidence: Confidence level.
    """
    if all(len(x) == len(y) == 1 for x, y in zip(a, b, strict=True)):
        return _paired_proportions([x for (x,) in a], [y for (y,) in b], confidence)
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
    """Return the two-sided p-value of a zero mean by a sign-flip permutation test.

    Args:
        differences: Paired differences; zeros have no effect.
        draws: All sign patterns are evaluated if they are at most this many. Otherwise this many random ones are
            drawn from a fixed seed and the observed one is added, so that the p-value is at least 1 / (draws + 1).
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


def _paired_proportions(a: Sequence[bool], b: Sequence[bool], confidence: float) -> Paired:
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
    elif agreement > 0:  # Newcombe's continuity correction of phi
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
    """Return the two-sided exact p-value of McNemar's test.

    If the rates are equal, each of the discordant pairs is equally likely to favor a or b.
    """
    m = only_a + only_b
    tail = sum(math.comb(m, k) for k in range(min(only_a, only_b) + 1)) / (1 << m)
    return min(1.0, 2 * tail)
