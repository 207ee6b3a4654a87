"""Confidence intervals and paired tests for success rates and means.

In the formulas, z is the two-sided normal quantile of the confidence level: 1.96 for 95 %.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .student_t import incomplete_beta, two_sided_quantile

Tally = Mapping[tuple[int, int], int]
"""Number of tasks by their numbers of episodes and of successes."""

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
    return tallied_rate(tally(groups), confidence)


def tally(groups: Iterable[Sequence[bool]]) -> Tally:
    """Return the number of tasks by their numbers of episodes and successes.

    Args:
        groups: Outcomes of the episodes of each task.
    """
    return Counter(map(_count, groups))


def tallied_rate(tasks: Tally, confidence: float = 0.95) -> Interval:
    """Return the success rate over tasks as `rate` does, from their tally."""
    n, k = sum(m * size for (size, _), m in tasks.items()), sum(tasks.values())
    successes = sum(m * c for (_, c), m in tasks.items())
    if n == k:
        return wilson(successes, n, confidence)
    if k == 1:
        return wilson(successes / n, 1, confidence)
    p = successes / n
    effect = 1.0
    if 0 < successes < n:
        # In integers, so that the result does not depend on the order of the tasks.
        squares = sum(m * (c * n - successes * size) ** 2 for (size, c), m in tasks.items())
        between = k / (k - 1) * (squares / n**2) / n**2
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


class Moments:
    """Exact sums of numbers and of their squares, in memory that does not depend on how many there are.

    Attributes:
        count: Number of numbers so far.
    """

    __slots__ = ("_squares", "_sums", "count")

    def __init__(self) -> None:
        self.count = 0
        # Numerators by denominator, which is a power of 2.
        self._sums: defaultdict[int, int] = defaultdict(int)
        self._squares: defaultdict[int, int] = defaultdict(int)

    def add(self, value: float) -> None:
        """Add a finite number."""
        numerator, denominator = value.as_integer_ratio()
        self.count += 1
        self._sums[denominator] += numerator
        self._squares[denominator] += numerator * numerator

    def mean(self) -> float:
        """Return the mean, which is that of `statistics.fmean`; NaN without numbers."""
        return float(self._total()) / self.count if self.count else math.nan

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return the mean with the interval of the function `mean`."""
        if not self.count:
            return Interval(math.nan, math.nan, math.nan)
        center = self.mean()
        half = _z(confidence) * self._error() if self.count > 1 else math.inf
        return Interval(center, center - half, center + half)

    def share(self, confidence: float = 0.95) -> Interval:
        """Return the mean of numbers between 0 and 1, with an interval that stays between these.

        It is Wilson's at the sample size at which a binomial rate has the half-width of Student's interval, as for
        rates of surveys (Dean and Pagano, Journal of Survey Statistics and Methodology 3:484, 2015). Where that
        width is 0, and for one number, the sample size is the count.
        """
        value, size = self.mean(), float(self.count)
        if self.count > 1 and (error := self._error()) > 0.0:
            half = two_sided_quantile(confidence, self.count - 1) * error
            size = value * (1.0 - value) * (_z(confidence) / half) ** 2
        return wilson(value * size, size, confidence)._replace(value=value)

    def _error(self) -> float:
        """Return the standard error of the mean of two or more numbers."""
        squares = sum((Fraction(n, d * d) for d, n in self._squares.items()), Fraction())
        variance = (squares - self._total() ** 2 / self.count) / (self.count - 1)
        return _root(variance) / math.sqrt(self.count)

    def _total(self) -> Fraction:
        return sum((Fraction(n, d) for d, n in self._sums.items()), Fraction())


def _root(value: Fraction) -> float:
    """Return the square root, rounded once as `statistics.stdev` does."""
    with localcontext(prec=60):
        return float((Decimal(value.numerator) / Decimal(value.denominator)).sqrt())


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
    return tallied_pairs(Counter(zip(*(map(_count, outcomes) for outcomes in (a, b)), strict=True)), confidence)


def _count(outcomes: Sequence[bool]) -> tuple[int, int]:
    return len(outcomes), sum(outcomes)


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
    only_a, only_b = int(counts[differences > _TIE].sum()), int(counts[differences < -_TIE].sum())
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


def weighted_mean(parts: Sequence[Interval], weights: Sequence[float]) -> Interval:
    """Return the weighted mean of independent estimates, such as success rates of several environments.

    The interval is made of theirs by the method of variance estimates recovery (Zou and Donner, Statistics in
    Medicine 27:1693, 2008): with shares w of the weights, estimates p and bounds l and u, it is
    Σ w p - sqrt(Σ (w (p - l))²) to Σ w p + sqrt(Σ (w (u - p))²).

    Args:
        parts: Estimates with their intervals.
        weights: Weight of each, above 0; only their ratios count.
    """
    total = math.fsum(weights)
    shares = [weight / total for weight in weights]
    value = math.fsum(share * one.value for share, one in zip(shares, parts, strict=True))
    below = math.hypot(*(share * (one.value - one.low) for share, one in zip(shares, parts, strict=True)))
    above = math.hypot(*(share * (one.high - one.value) for share, one in zip(shares, parts, strict=True)))
    return Interval(value, value - below, value + above)


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
    return max(-1.0, min(1.0, covariance / scale)) if scale > _TIE else 0.0


def _recover(x: float, y: float, correlation: float) -> float:
    """Return the distance of a bound of a difference from those of two correlated estimates."""
    return math.sqrt(max(0.0, x * x - 2 * correlation * x * y + y * y))


def sign_flips(
    differences: Sequence[float] | NDArray[np.float64],
    draws: int = 10_000,
    counts: NDArray[np.int64] | None = None,
) -> float:
    """Return the two-sided p-value of a zero mean by a sign-flip permutation test.

    Differences of equal size are exchangeable: the sum of m of them is binomial. This makes all sign patterns few
    enough to evaluate in most cases, however many tasks there are.

    Args:
        differences: Paired differences; zeros have no effect.
        draws: All sign patterns are evaluated if they have at most this many different sums, before equal ones
            are merged. Otherwise this many random ones are drawn from a fixed seed and the observed one is added,
            so that the p-value is at least 1 / (draws + 1).
        counts: Number of times that each difference occurs; None for once.
    """
    values = np.asarray(differences, dtype=np.float64)
    times = np.ones(len(values), dtype=np.int64) if counts is None else counts
    observed = abs(float((values * times).sum()))
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0:
        return 1.0
    # Rounding errors must not part differences that are equal, such as 0.3 - 0.1 and 0.2.
    sizes, places = np.unique(np.abs(values / largest).round(12), return_inverse=True)
    numbers = np.zeros(len(sizes), dtype=np.int64)
    np.add.at(numbers, places, times)
    sizes, numbers = sizes[sizes > 0] * largest, numbers[sizes > 0]
    threshold = observed - 1e-9 * largest
    if math.prod(int(count) + 1 for count in numbers) <= draws:
        sums, weights = np.zeros(1), np.ones(1)
        for size, count in zip(sizes, numbers, strict=True):
            heads = np.arange(count + 1)
            sums = np.add.outer(sums, size * (2 * heads - count)).ravel()
            weights = np.outer(weights, _binomial(int(count))).ravel()
        return float(min(1.0, weights[np.abs(sums) >= threshold].sum()))
    rng = np.random.Generator(np.random.PCG64(0))
    sums = np.zeros(draws)
    for size, count in zip(sizes[numbers > 1], numbers[numbers > 1], strict=True):
        sums += size * (2 * rng.binomial(count, 0.5, draws) - count)
    single = sizes[numbers == 1]
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
