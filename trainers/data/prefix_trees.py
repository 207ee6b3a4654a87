"""Sequences with common prefixes as trees in which every prefix is computed once.

A tree holds the tokens of several sequences, in *spans*: the first sequence is a span of its own, and every
further one adds the span of its tokens after the prefix that it shares with the one before. A token attends to the
tokens of its own sequence only. This is the case if token i attends to token j exactly where

    position_j < limit[span_i, span_j]   and   position_j ≤ position_i

where a position is a depth in the tree, and limit[s, t] is the length of the prefix that the sequence of span s
shares with that of span t (unlimited for s = t, 0 for a span that comes later).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .segments import IntArray

UNLIMITED = 1 << 30
"""Entry of `PrefixTree.limits` that allows every position."""


class PrefixTree(NamedTuple):
    """Tokens of sequences with common prefixes.

    Attributes:
        tokens: Token ids, [T].
        positions: Position of each token in its sequences, [T].
        spans: Span of each token, [T].
        limits: Number of positions of span t that span s attends to, [K, K].
        paths: Index of each token of each sequence in the tree.
    """

    tokens: IntArray
    positions: IntArray
    spans: IntArray
    limits: IntArray
    paths: list[IntArray]


def common_prefix(a: IntArray, b: IntArray) -> int:
    """Return the number of equal tokens at the start of two sequences."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def build_tree(sequences: Sequence[IntArray]) -> PrefixTree:
    """Return the tree of sequences that are in lexicographic order, so that neighbors share the most."""
    limits = np.zeros((len(sequences), len(sequences)), dtype=np.int64)
    parts: list[IntArray] = []
    paths: list[IntArray] = []
    size = 0
    for number, sequence in enumerate(sequences):
        shared = common_prefix(sequences[number - 1], sequence) if number else 0
        if number:
            limits[number] = np.minimum(limits[number - 1], shared)
        limits[number, number] = UNLIMITED
        added = np.arange(size, size + len(sequence) - shared)
        paths.append(np.concatenate([paths[-1][:shared], added]) if number else added)
        parts.append(sequence[shared:])
        size += len(added)
    lengths = [len(part) for part in parts]
    starts = np.repeat([len(s) - n for s, n in zip(sequences, lengths, strict=True)], lengths)
    within = np.arange(size) - np.repeat(np.cumsum([0, *lengths[:-1]]), lengths)
    return PrefixTree(
        tokens=np.concatenate(parts),
        positions=starts + within,
        spans=np.repeat(np.arange(len(parts)), lengths),
        limits=limits,
        paths=paths,
    )


def group_by_prefix(sequences: Sequence[IntArray], max_tokens: int, attention_cost: float) -> list[list[int]]:
    """Divide sequences into trees wherever computing common prefixes once costs less than their wider attention.

    A sequence of L tokens costs L + attention_cost · L² / 2, since its attention is causal; a tree of T tokens,
    whose attention is a full square with a mask, costs T + attention_cost · T².

    Args:
        sequences: Token ids.
        max_tokens: Maximum size of a tree of several sequences.
        attention_cost: Cost of attention from one token to another, relative to the cost of a token in all other
            layers.

    Returns:
        Indices of the sequences in each tree, in lexicographic order of their tokens.
    """
    keys = [sequence.astype(">i8").tobytes() for sequence in sequences]
    order = sorted(range(len(sequences)), key=keys.__getitem__)
    trees: list[list[int]] = []
    size, cost = 0, 0.0
    for i in order:
        length = len(sequences[i])
        alone = length + attention_cost * length**2 / 2
        if trees:
            joined = size + length - common_prefix(sequences[trees[-1][-1]], sequences[i])
            joined_cost = joined + attention_cost * joined**2
            if joined <= max_tokens and joined_cost < cost + alone:
                trees[-1].append(i)
                size, cost = joined, joined_cost
                continue
        trees.append([i])
        size, cost = length, alone
    return trees
