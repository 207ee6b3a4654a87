"""Array operations of all credit rules: statistics within groups, and sums over the remainder of a segment.

Groups and segments are integer labels. A segment is contiguous; the members of a group may be anywhere.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TOLERANCE = 1e-10
"""Difference up to which two numbers are equal, relative to the larger one where that exceeds 1. The same rewards
summed in another order differ in their last digits."""

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def factorize(keys: Iterable[Hashable]) -> IntArray:
    """Number keys 0, 1, … in the order of their first appearance, shape [N]; equal keys get equal numbers."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.int64)


def nearly_equal(a: FloatArray, b: FloatArray) -> BoolArray:
    """Return True where two arrays are equal up to rounding errors (`TOLERANCE`), elementwise."""
    near: BoolArray = np.abs(a - b) <= TOLERANCE * np.maximum(1.0, np.maximum(np.abs(a), np.abs(b)))
    return near


def sum_by_group(values: FloatArray, groups: IntArray, size: int = 0) -> FloatArray:
    """Sum values within groups.

    Args:
        values: Numbers, shape [N].
        groups: Group of each value, numbered from 0, shape [N].
        size: Minimum length of the result.

    Returns:
        Sums, shape [G] with G = max(size, largest group + 1).
    """
    sums: FloatArray = np.bincount(groups, weights=values, minlength=size).astype(np.float64)
    return sums


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Statistics of every group, each of shape [G].

    Attributes:
        count: Number of members.
        mean: Mean; 0 for an empty group.
        std: Sample standard deviation (n - 1). Exactly 0 if all members are nearly equal, or there is only one.
    """

    count: IntArray
    mean: FloatArray
    std: FloatArray


def group_statistics(values: FloatArray, groups: IntArray, size: int | None = None) -> GroupStatistics:
    """Return count, mean and sample standard deviation within groups.

    Args:
        values: Finite numbers, shape [N].
        groups: Group of each value, numbered from 0, shape [N].
        size: Number of groups G, some of which may be empty. None takes the largest group + 1.
    """
    values, groups = np.asarray(values, dtype=np.float64), np.asarray(groups, dtype=np.int64)
    largest = int(groups.max(initial=-1))
    n = size if size is not None else largest + 1
    if largest >= n:
        raise ValueError(f"there are {n} groups, so that they are numbered up to {n - 1}, not {largest}.")
    count = np.bincount(groups, minlength=n)
    mean = sum_by_group(values, groups, n) / np.maximum(count, 1)
    low, high = mean.copy(), mean.copy()
    np.minimum.at(low, groups, values)
    np.maximum.at(high, groups, values)
    constant = nearly_equal(low, high)
    mean = np.where(constant, low, mean)
    squares = sum_by_group((values - mean[groups]) ** 2, groups, n)
    std = np.where(constant, 0.0, np.sqrt(squares / np.maximum(count - 1, 1)))
    return GroupStatistics(count, mean, std)


def segment_starts(segments: IntArray) -> IntArray:
    """Return the index of the first entry of every segment, ascending.

    Args:
        segments: Label of each entry, shape [N]; entries of a segment are contiguous.
    """
    if len(segments) == 0:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.r_[True, segments[1:] != segments[:-1]])


def next_in_segment(values: FloatArray, segments: IntArray) -> FloatArray:
    """Return the value that follows each entry in its segment, shape [N]; 0 for the last entry of a segment.

    Args:
        values: Numbers, shape [N].
        segments: Label of each entry, shape [N]; entries of a segment are contiguous.
    """
    following = np.zeros_like(values)
    if len(values) > 1:
        following[:-1] = np.where(segments[1:] == segments[:-1], values[1:], 0.0)
    return following


def discounted_sums(values: FloatArray, segments: IntArray, decay: float) -> FloatArray:
    """Return y_t = x_t + decay · y_{t+1} within each segment, with y = 0 beyond its end.

    Args:
        values: x, shape [N].
        segments: Label of each entry, shape [N]; entries of a segment are contiguous and in time order.
        decay: Factor per entry.

    Returns:
        y, shape [N].
    """
    values, segments = np.asarray(values, dtype=np.float64), np.asarray(segments)
    if len(values) != len(segments):
        raise ValueError(f"{len(values)} values have {len(segments)} labels of segments; give each one.")
    starts = segment_starts(segments)
    lengths = np.diff(np.r_[starts, len(values)])
    if len(starts) == 0:
        return values.copy()
    # All segments are right-aligned in one grid, so that the recursion over time is vectorized over segments.
    width = int(lengths.max())
    row = np.repeat(np.arange(len(starts)), lengths)
    column = np.arange(len(values)) - np.repeat(starts, lengths) + width - lengths[row]
    grid = np.zeros((width, len(starts)))
    grid[column, row] = values
    for t in range(width - 2, -1, -1):
        grid[t] += decay * grid[t + 1]
    sums: FloatArray = grid[column, row]
    return sums
