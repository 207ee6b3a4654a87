"""Confidence intervals of success rates and means.

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

from ...envs.errors import ConfigurationError
from .student_t import two_sided_quantile

Tally = Mapping[tuple[int, int], int]
"""Number of tasks by their numbers of episodes and of successes."""


class Interval(NamedTuple):
    """Estimate with its confidence interval."""

    value: float
    low: float
    high: float


def normal_quantile(confidence: float) -> float:
    """Return the two-sided normal quantile z of a confidence level."""
    if not 0.0 < confidence < 1.0:
        raise ConfigurationError(f"the confidence level must be between 0 and 1, not {confidence!r}.")
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def binomial_size(value: float, half: float, confidence: float) -> float:
    """Return the sample size at which the normal interval of a rate, `value`, has a given half-width."""
    return value * (1.0 - value) * (normal_quantile(confidence) / half) ** 2


def wilson(successes: float, n: float, confidence: float = 0.95) -> Interval:
    """Return the Wilson score interval of a binomial rate (Wilson 1927).

    Args:
        successes: Number of successes; fractional for clustered data with an effective sample size.
        n: Number of trials; 0 gives the interval (NaN, 0, 1).
        confidence: Confidence level.

    Raises:
        ConfigurationError: There are more successes than trials, fewer than none, or no such confidence level.
    """
    if not 0 <= successes <= max(n, 0):
        raise ConfigurationError(f"{successes} successes in {n} trials are impossible.")
    if n <= 0:
        return Interval(math.nan, 0.0, 1.0)
    z = normal_quantile(confidence)
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
    binomial variance, and at least 1. At 0 % and 100 %, where it is undefined, the size is k: such episodes do not
    show whether those of one task can differ. With one episode per task this is the plain Wilson interval.

    Args:
        groups: Outcomes of the episodes of each task; tasks without any are left out.
        confidence: Confidence level.
    """
    return tallied_rate(tally(groups), confidence)


def count_outcomes(outcomes: Sequence[bool]) -> tuple[int, int]:
    """Return the numbers of episodes and of successes of a task."""
    return len(outcomes), sum(outcomes)


def tally(groups: Iterable[Sequence[bool]]) -> Tally:
    """Return the number of tasks by their numbers of episodes and successes.

    Args:
        groups: Outcomes of the episodes of each task; tasks without any are left out.
    """
    return Counter(count_outcomes(outcomes) for outcomes in groups if len(outcomes))


def tallied_rate(tasks: Tally, confidence: float = 0.95) -> Interval:
    """Return the success rate over tasks as `rate` does, from their tally."""
    n, k = sum(m * size for (size, _), m in tasks.items()), sum(tasks.values())
    successes = sum(m * c for (_, c), m in tasks.items())
    if n == k:
        return wilson(successes, n, confidence)
    p = successes / n
    if k == 1 or p in (0.0, 1.0):
        return wilson(p * k, k, confidence)
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
    half = normal_quantile(confidence) * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
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
        half = normal_quantile(confidence) * self._error() if self.count > 1 else math.inf
        return Interval(center, center - half, center + half)

    def share(self, confidence: float = 0.95) -> Interval:
        """Return the mean of numbers between 0 and 1, with an interval that stays between these.

        It is Wilson's at the sample size at which a binomial rate has the half-width of Student's interval, as for
        rates of surveys (Dean and Pagano, Journal of Survey Statistics and Methodology 3:484, 2015). Where that
        width is 0, and for one number, the sample size is the count. Without numbers it is (NaN, 0, 1).
        """
        if not self.count:
            return Interval(math.nan, 0.0, 1.0)
        value, size = self.mean(), float(self.count)
        if self.count > 1 and (error := self._error()) > 0.0:
            half = two_sided_quantile(confidence, self.count - 1) * error
            size = binomial_size(value, half, confidence)
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
