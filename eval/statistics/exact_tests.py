"""Exact tests of paired outcomes: McNemar's, and permutations of signs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .student_t import incomplete_beta

_CHUNK = 256
"""Differences whose signs are drawn at once."""


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
