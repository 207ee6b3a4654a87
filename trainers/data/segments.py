"""The two operations that all credit rules are made of: statistics within groups, sums over futures."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SAME = 1e-10
"""Numbers no further apart than this (relative to their size, where that is above 1) are equal: the same rewards
summed in another order differ in their last digits."""

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def factorize(keys: Iterable[Hashable]) -> IntArray:
    """Number keys 0, 1, … in the order in which they first appear: equal keys, equal numbers."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.int64)


def equal(a: FloatArray, b: FloatArray) -> BoolArray:
    """Where two arrays are equal but for rounding; see `SAME`."""
    near: BoolArray = np.abs(a - b) <= SAME * np.maximum(1.0, np.maximum(np.abs(a), np.abs(b)))
    return near


def sum_by_group(values: FloatArray, groups: IntArray, size: int = 0) -> FloatArray:
    """The sum of `values` [N] in each of the `groups` [N] (numbered from 0), [at least `size`]."""
    sums: FloatArray = np.bincount(groups, weights=values, minlength=size).astype(np.float64)
    return sums


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Statistics by group, each an array [G].

    Attributes:
        count: members.
        mean: one of the members where all are equal but for rounding (`SAME`); 0 for an empty group.
        std: sample standard deviation (n - 1); exactly 0 where all members are equal, or there is only one.
    """

    count: IntArray
    mean: FloatArray
    std: FloatArray


def group_statistics(values: FloatArray, groups: IntArray, size: int | None = None) -> GroupStatistics:
    """Count, mean and sample deviation of `values` [N] within `groups` [N] (numbered from 0).

    Args:
        values: finite numbers.
        groups: the group of each value.
        size: how many groups there are, where the last may be empty.
    """
    n = size if size is not None else int(groups.max(initial=-1)) + 1
    count = np.bincount(groups, minlength=n)
    mean = sum_by_group(values, groups, n) / np.maximum(count, 1)
    low, high = mean.copy(), mean.copy()
    np.minimum.at(low, groups, values)
    np.maximum.at(high, groups, values)
    flatten = equal(low, high)
    mean = np.where(flatten, low, mean)
    squares = sum_by_group((values - mean[groups]) ** 2, groups, n)
    std = np.where(flatten, 0.0, np.sqrt(squares / np.maximum(count - 1, 1)))
    return GroupStatistics(count, mean, std)


def segment_starts(segments: IntArray) -> IntArray:
    """Indices at which a new segment begins in a run-length labelling [N]."""
    if len(segments) == 0:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.r_[True, segments[1:] != segments[:-1]])


def next_in_segment(values: FloatArray, segments: IntArray) -> FloatArray:
    """The value that follows each one within its segment; 0.0 after the last. Shapes [N]."""
    following = np.zeros_like(values)
    if len(values) > 1:
        following[:-1] = np.where(segments[1:] == segments[:-1], values[1:], 0.0)
    return following


def discounted_sums(values: FloatArray, segments: IntArray, decay: float) -> FloatArray:
    """y_t = x_t + decay · y_{t+1} within each segment, y beyond its end being 0.

    Args:
        values: x, shape [N].
        segments: label of each entry, shape [N]; entries of one segment stand together, in time order.
        decay: the discount.

    Returns:
        y, shape [N].
    """
    starts = segment_starts(segments)
    lengths = np.diff(np.r_[starts, len(values)])
    if len(starts) == 0:
        return values.copy()
    # The recursion runs over time, right-aligned, for all segments at once.
    width = int(lengths.max())
    row = np.repeat(np.arange(len(starts)), lengths)
    column = np.arange(len(values)) - np.repeat(starts, lengths) + width - lengths[row]
    grid = np.zeros((width, len(starts)))
    grid[column, row] = values
    for t in range(width - 2, -1, -1):
        grid[t] += decay * grid[t + 1]
    sums: FloatArray = grid[column, row]
    return sums
