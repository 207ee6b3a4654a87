"""Sequences with common prefixes as a tree in which every prefix occurs once.

The tokens of a tree are one line in depth-first order. A *segment* is a run of tokens without a branch; the tokens
that follow it in any sequence, its descendants, come directly after it in the line.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from .segments import IntArray

TreeLayout = Literal["segments", "paths"]
"""Description of a tree that attention reads: its segments, or the index of every token of every sequence."""


class PrefixTree(NamedTuple):
    """Tokens of several sequences, every common prefix once.

    Attributes:
        tokens: Token ids, [T].
        positions: Position of each token in its sequences, [T].
        paths: Index in the tree of each token of each sequence.
        segments: First token, end, and end of the descendants of each segment, [S, 3].
    """

    tokens: IntArray
    positions: IntArray
    paths: list[IntArray]
    segments: IntArray


def lexicographic_order(sequences: Sequence[IntArray]) -> list[int]:
    """Return the order of sequences by their tokens, in which neighbors share the longest prefixes."""
    keys = [sequence.astype(">i8").tobytes() for sequence in sequences]
    return sorted(range(len(sequences)), key=keys.__getitem__)


def common_prefix(a: IntArray, b: IntArray) -> int:
    """Return the number of equal tokens at the start of two sequences."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def shared_lengths(sequences: Sequence[IntArray], multiple_of: int = 1) -> list[int]:
    """Return the number of tokens that each sequence shares with the one before it; 0 for the first.

    Args:
        sequences: Sequences in lexicographic order, or another in which those with a common prefix are neighbors.
        multiple_of: Number to whose multiples the results are rounded down, so that no segment between two
            branches is shorter.
    """
    neighbors = itertools.pairwise(sequences)
    return [0, *(common_prefix(a, b) // multiple_of * multiple_of for a, b in neighbors)][: len(sequences)]


def largest_first(lengths: Sequence[int], shared: Sequence[int]) -> list[int]:
    """Return the order of sequences in which the largest of the branches at any point, in tokens, comes first.

    Args:
        lengths: Number of tokens of each sequence, in lexicographic order.
        shared: Number of tokens that each sequence shares with the one before it.
    """
    # A branch has its tokens, with those of the prefix before it, and its sequences. `last` is the one that is not
    # yet closed at the deepest of the open branching points.
    last: tuple[int, list[int]] = (0, [])
    points: list[tuple[int, list[tuple[int, list[int]]]]] = []

    def close() -> tuple[int, list[int]]:
        depth, branches = points.pop()
        branches = sorted([*branches, last], key=lambda branch: -branch[0])
        size = depth + sum(tokens - depth for tokens, _ in branches)
        return size, [number for _, numbers in branches for number in numbers]

    for number, (length, common) in enumerate(zip(lengths, shared, strict=True)):
        if number:
            while points and points[-1][0] > common:
                last = close()
            if not points or points[-1][0] < common:
                points.append((common, []))
            points[-1][1].append(last)
        last = (length, [number])
    while points:
        last = close()
    return last[1]


def merge_prefixes(sequences: Sequence[IntArray], shared: Sequence[int]) -> PrefixTree:
    """Return the tree of sequences.

    Args:
        sequences: Sequences in an order in which those with a common prefix are neighbors.
        shared: Number of tokens to share with the sequence before; see `shared_lengths`. The first one is ignored.
    """
    shared = [0, *shared[1:]]
    added: list[IntArray] = []
    positions: list[IntArray] = []
    paths: list[IntArray] = []
    size = 0
    for number, (sequence, common) in enumerate(zip(sequences, shared, strict=True)):
        own = np.arange(size, size + len(sequence) - common)
        paths.append(np.concatenate([paths[-1][:common], own]) if number else own)
        added.append(sequence[common:])
        positions.append(np.arange(common, len(sequence)))
        size += len(own)
    segments = _segments([len(sequence) for sequence in sequences], shared)
    return PrefixTree(np.concatenate(added), np.concatenate(positions), paths, segments)


class _Open(NamedTuple):
    """Segment whose descendants may not be complete: its first token in the line, and its depths."""

    first: int
    start: int
    end: int


def _segments(lengths: Sequence[int], shared: Sequence[int]) -> IntArray:
    """Return the segments of a tree from the lengths of its sequences; see `PrefixTree.segments`."""
    closed: list[tuple[int, int, int]] = []
    path: list[_Open] = []
    size = 0

    def close(segment: _Open) -> None:
        closed.append((segment.first, segment.first + segment.end - segment.start, size))

    for length, common in zip(lengths, shared, strict=True):
        while path and path[-1].start >= common:
            close(path.pop())
        if path and path[-1].end > common:
            last = path.pop()  # It branches within: its second part has the descendants so far.
            close(_Open(last.first + common - last.start, common, last.end))
            path.append(last._replace(end=common))
        if length > common:
            path.append(_Open(size, common, length))
            size += length - common
    while path:
        close(path.pop())
    return np.array(sorted(closed), dtype=np.int64).reshape(-1, 3)


def split_tree(
    lengths: Sequence[int], shared: Sequence[int], max_tokens: int, *, multiple_of: int = 1
) -> list[list[int]]:
    """Cut sequences into sets whose trees have at most `max_tokens` tokens, with the fewest tokens in all sets.

    A cut repeats the tokens that the sequences on its two sides share. Of cuts that repeat equally many, those
    into fewer sets are taken.

    Args:
        lengths: Number of tokens of each sequence, in an order in which those with a common prefix are neighbors.
        shared: Number of tokens that each sequence shares with the one before it.
        max_tokens: Maximum size; a single sequence may exceed it.
        multiple_of: Split the largest sets until their number is a multiple of this, or all sets are single.

    Returns:
        Indices of the sequences in each set.
    """
    count = len(lengths)
    best = [(0, 0)]  # tokens repeated and sets, of the first sequences
    begins = []
    for end in range(count):
        size = lengths[end]
        options = []
        for begin in range(end, -1, -1):
            if begin < end:
                # Sequence `begin` is whole now, and the next one shares tokens with it.
                size += lengths[begin] - shared[begin + 1]
                if size > max_tokens:
                    break
            repeated, sets = best[begin]
            options.append((repeated + (shared[begin] if begin else 0), sets + 1, begin))
        repeated, number, begin = min(options)
        best.append((repeated, number))
        begins.append(begin)
    parts: list[list[int]] = []
    end = count
    while end > 0:
        parts.append(list(range(begins[end - 1], end)))
        end = begins[end - 1]
    parts.reverse()
    while len(parts) % multiple_of and any(len(part) > 1 for part in parts):
        largest = max(range(len(parts)), key=lambda k: (len(parts[k]) > 1, tree_size(parts[k], lengths, shared)))
        part = parts.pop(largest)
        middle = len(part) / 2
        cut = min(range(1, len(part)), key=lambda i: (shared[part[i]], abs(i - middle)))
        parts[largest:largest] = [part[:cut], part[cut:]]
    return parts


def tree_size(part: Sequence[int], lengths: Sequence[int], shared: Sequence[int]) -> int:
    """Return the number of tokens in the tree of consecutive sequences; see `split_tree`."""
    return sum(lengths[i] for i in part) - sum(shared[i] for i in part[1:])
