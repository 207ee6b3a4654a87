"""Sequences with common prefixes as a tree in which every prefix stands once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .segments import IntArray


class PrefixTree(NamedTuple):
    """Tokens of several sequences, every common prefix once.

    Attributes:
        tokens: Token ids, [T].
        positions: Position of each token in its sequences, [T].
        paths: Index in the tree of each token of each sequence.
    """

    tokens: IntArray
    positions: IntArray
    paths: list[IntArray]


def lexicographic_order(sequences: Sequence[IntArray]) -> list[int]:
    """Return the order of sequences by their tokens, in which neighbors share the longest prefixes."""
    keys = [sequence.astype(">i8").tobytes() for sequence in sequences]
    return sorted(range(len(sequences)), key=keys.__getitem__)


def common_prefix(a: IntArray, b: IntArray) -> int:
    """Return the number of equal tokens at the start of two sequences."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def merge_prefixes(sequences: Sequence[IntArray]) -> PrefixTree:
    """Return the tree of sequences in lexicographic order."""
    added: list[IntArray] = []
    positions: list[IntArray] = []
    paths: list[IntArray] = []
    size = 0
    for number, sequence in enumerate(sequences):
        shared = common_prefix(sequences[number - 1], sequence) if number else 0
        own = np.arange(size, size + len(sequence) - shared)
        paths.append(np.concatenate([paths[-1][:shared], own]) if number else own)
        added.append(sequence[shared:])
        positions.append(np.arange(shared, len(sequence)))
        size += len(own)
    return PrefixTree(np.concatenate(added), np.concatenate(positions), paths)
