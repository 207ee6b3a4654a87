"""Confidence intervals and paired tests for success rates and means.

In the formulas, z is the two-sided normal quantile of the confidence level: 1.96 for 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .student_t import incomplete_beta, two_sided_quantile

_TIE = 1e-12
"""Size below which a difference of two means is a rounding error."""
_CHUNK = 256
"""Differences whose signs are drawn at once."""


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
    quantiles = two_sided_quantile(confidence, n - 1) / two_sided_quantile(confidence, k - 1)
    effective = n / effect * quantiles**2
    effective = min(effective, n)
    return wilson(p * effective, effective, confidence)._replace(value=p)  # Without the rounding error.


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
    """Compare two agents task by task; the task is the unit, so episodes of one task are one cluster.

    The interval is Newcombe's hybrid score interval for paired proportions (Statistics in Medicine 17:2635, 1998,
    method 10). With repeats, the two single intervals are those of `rate`, which allow for clusters, and the
    correlation is that of the tasks' rates, as in the method of variance estimates recovery (Zou and Donner,
    Statistics in Medicine 27:1693, 2008). The test is McNemar's exact test with one episode per task, and a
    sign-flip permutation test over tasks with repeats, which is the same test where differences are -1, 0 and 1.

    Args:
        a: Outcomes of a's episodes of each task.
        b: Outcomes of b's episodes of the same tasks, in the same order.
        confidence: Confidence level.
    """
    if not a:
        return Paired(0, 0, 0, Interval(math.nan, -1.0, 1.0), 1.0)
    ours = np.asarray([sum(outcomes) / len(outcomes) for outcomes in a])
    theirs = np.asarray([sum(outcomes) / len(outcomes) for outcomes in b])
    differences = ours - theirs
    episodes = min(sum(map(len, a)), sum(map(len, b)))
    only_a, only_b = int((differences > _TIE).sum()), int((differences < -_TIE).sum())
    is_single = episodes == len(a) == max(sum(map(len, a)), sum(map(len, b)))
    p_value = mcnemar(only_a, only_b) if is_single else sign_flips(differences)
    value = float(differences.mean())
    rate_a, rate_b = rate(a, confidence), rate(b, confidence)
    correlation = _correlation(ours, theirs, episodes)
    below = _recover(rate_a.value - rate_a.low, rate_b.high - rate_b.value, correlation)
    above = _recover(rate_a.high - rate_a.value, rate_b.value - rate_b.low, correlation)
    interval = Interval(value, max(-1.0, value - below), min(1.0, value + above))
    return Paired(len(a), only_a, only_b, interval, p_value)


def paired_means(differences: Sequence[float], confidence: float = 0.95) -> Paired:
    """Compare two agents by numbers such as scores, with Student's interval and a sign-flip permutation test.

    Args:
        differences: Mean of a minus mean of b on each task.
        confidence: Confidence level.
    """
    return Paired(
        len(differences),
        sum(d > _TIE for d in differences),
        sum(d < -_TIE for d in differences),
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


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64], episodes: int) -> float:
    """Return the correlation of the tasks' rates; a positive one with Newcombe's continuity correction.

    The correction lowers the covariance by half an episode's share. 0 if either rate is the same on all tasks.
    """
    covariance = float(((a - a.mean()) * (b - b.mean())).mean())
    if covariance > 0:
        covariance = max(0.0, covariance - 1 / (2 * episodes))
    scale = float(a.std() * b.std())
    return max(-1.0, min(1.0, covariance / scale)) if scale > _TIE else 0.0


def _recover(x: float, y: float, correlation: float) -> float:
    """Return the distance of a bound of a difference from those of two correlated estimates."""
    return math.sqrt(max(0.0, x * x - 2 * correlation * x * y + y * y))


def sign_flips(differences: Sequence[float] | NDArray[np.float64], draws: int = 10_000) -> float:
    """Return the two-sided p-value of a zero mean by a sign-flip permutation test.

    Differences of equal size are exchangeable: the sum of m of them is binomial. This makes all sign patterns few
    enough to evaluate in most cases, however many tasks there are.

    Args:
        differences: Paired differences; zeros have no effect.
        draws: All sign patterns are evaluated if they have at most this many different sums, before equal ones
            are merged. Otherwise this many random ones are drawn from a fixed seed and the observed one is added,
            so that the p-value is at least 1 / (draws + 1).
    """
    values = np.asarray(differences, dtype=np.float64)
    observed = abs(float(values.sum()))
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0:
        return 1.0
    # Rounding errors must not part differences that are equal, such as 0.3 - 0.1 and 0.2.
    sizes, counts = np.unique(np.abs(values / largest).round(12), return_counts=True)
    sizes, counts = sizes[sizes > 0] * largest, counts[sizes > 0]
    threshold = observed - 1e-9 * largest
    if math.prod(int(count) + 1 for count in counts) <= draws:
        sums, weights = np.zeros(1), np.ones(1)
        for size, count in zip(sizes, counts, strict=True):
            heads = np.arange(count + 1)
            sums = np.add.outer(sums, size * (2 * heads - count)).ravel()
            weights = np.outer(weights, _binomial(int(count))).ravel()
        return float(min(1.0, weights[np.abs(sums) >= threshold].sum()))
    rng = np.random.Generator(np.random.PCG64(0))
    sums = np.zeros(draws)
    for size, count in zip(sizes[counts > 1], counts[counts > 1], strict=True):
        sums += size * (2 * rng.binomial(count, 0.5, draws) - count)
    single = sizes[counts == 1]
    for start in range(0, len(single), _CHUNK):
        block = single[start : start + _CHUNK]
        sums += (2.0 * rng.integers(0, 2, (draws, len(block)), dtype=np.int8) - 1) @ block
    return float((1 + np.sum(np.abs(sums) >= threshold)) / (draws + 1))


def _binomial(n: int) -> NDArray[np.float64]:
    """Return the probabilities of 0 to n heads in n tosses of a fair coin."""
    if n <= 1000:
        return np.asarray([math.comb(n, k) / (1 << n) for k in range(n + 1)])
    logs = [math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(n + 1)]
    probabilities = np.exp(np.asarray(logs) - n * math.log(2))
    return np.asarray(probabilities / probabilities.sum())


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the two-sided exact p-value of McNemar's test.

    If the rates are equal, each of the discordant pairs is equally likely to favor a or b.
    """
    m, fewer = only_a + only_b, min(only_a, only_b)
    if only_a == only_b:
        return 1.0
    if m > 1000:  # the sum below takes integers of m bits
        return min(1.0, 2 * incomplete_beta(m - fewer, fewer + 1, 0.5, 0.5))
    tail = sum(math.comb(m, k) for k in range(fewer + 1)) / (1 << m)
    return min(1.0, 2 * tail)
