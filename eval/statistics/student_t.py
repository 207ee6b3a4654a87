"""Student's t distribution for any positive number of degrees of freedom, without SciPy."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_NORMAL_FROM = 1e7
"""Degrees of freedom from which on the normal distribution takes its place; they differ by less than 1e-7."""


def two_sided_p(t: float, df: float) -> float:
    """Return the probability that |T| is at least |t|, which is I_x(df / 2, 1 / 2) at x = df / (df + t²).

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.1 with 26.5.27.

    Args:
        t: Value of the statistic; infinite values have probability 0.
        df: Degrees of freedom, above 0.
    """
    if math.isinf(t):
        return 0.0
    if df >= _NORMAL_FROM:  # infinite df included
        return 2 * NormalDist().cdf(-abs(t))
    return incomplete_beta(df / 2, 0.5, df / (df + t * t), t * t / (df + t * t))


@lru_cache(maxsize=1024)
def two_sided_quantile(confidence: float, df: float) -> float:
    """Return the t with P(|T| < t) = `confidence`, by bisection to a relative error of 1e-12.

    Args:
        confidence: Confidence level between 0 and 1.
        df: Degrees of freedom, above 0.
    """
    tail = 1 - confidence
    low, high = 0.0, 1.0
    while two_sided_p(high, df) > tail:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if two_sided_p(middle, df) > tail:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def incomplete_beta(a: float, b: float, x: float, complement: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b).

    Args:
        a, b: Parameters, above 0.
        x: Argument between 0 and 1.
        complement: 1 - x, without the rounding of the difference.
    """
    if x <= 0.0 or complement <= 0.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges slowly there
        return 1.0 - incomplete_beta(b, a, complement, x)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * math.log(x) + b * math.log(complement) - log_beta) / a
    return front / _beta_fraction(a, b, x)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function (ibid., 26.5.8) by Lentz's method."""
    value = c = 1.0
    d = 0.0
    for step in range(1, 100_000):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 / (1.0 + term * d)
        c = 1.0 + term / c
        value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value
