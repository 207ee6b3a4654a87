"""Optimizer batches, and the micro-batches that fit into memory.

Neither layout nor cut changes the gradient: the weights of `objectives.aggregate` are computed over an optimizer
batch before it is cut, and a micro-batch only determines which tokens share a forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...envs.errors import ConfigurationError
from .prefix_trees import (
    TreeLayout,
    largest_first,
    lexicographic_order,
    merge_prefixes,
    shared_lengths,
    split_tree,
    tree_size,
)
from .rollouts import Rollouts
from .segments import BoolArray, IntArray, factorize

MIN_SEGMENT = 16
"""Least number of tokens between two branches of a tree. Attention makes a pass for each segment, which for fewer
tokens costs more than it saves."""
MIN_SHARED = 0.05
"""Least fraction of the tokens that a tree must save; rows that share less are laid out side by side."""


def optimizer_batches(rollouts: Rollouts, episodes: int | None, *, seed: int) -> list[IntArray]:
    """Divide the episodes at random into optimizer batches of nearly equal size.

    Args:
        rollouts: Episodes of the update.
        episodes: Episodes per batch; None makes one batch of all. If it does not divide their number, the sizes
            of the batches differ by at most one; no episode is repeated or dropped.
        seed: Seed of this pass over the rollouts.

    Returns:
        Episode indices of each batch, ascending.
    """
    order = np.random.default_rng(seed).permutation(rollouts.episodes)
    count = 1 if episodes is None else max(1, round(rollouts.episodes / max(episodes, 1)))
    return [np.sort(part) for part in np.array_split(order, count) if len(part)]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Sequences of one forward pass, side by side or as a tree of their common prefixes.

    Attributes:
        tokens: Token ids of the sequences, padded on the right with 0, [B, T]. Attention is causal, so padding
            cannot affect a token. As a tree: the distinct tokens, [1, T].
        sources: Flattened index of the token whose logits predict each sampled token, [n].
        targets: Token id of each sampled token, [n].
        copies: Index of each copy of these tokens on the copy axis of the rollouts, [m]; selects advantages,
            weights and old log-probabilities.
        copy_source: Index of each copy's token among the n sampled tokens, [m]. Equal tokens after equal prefixes
            are scored once in a tree.
        rows: Sequence of each copy, numbered from 0 within the micro-batch, [m]. Copies of several episodes in
            one sequence are in different rows.
        turns: Turn of each copy, numbered from 0 within the micro-batch, [m].
        positions: Position of each token in its sequences, [1, T]; None unless the sequences are a tree.
        segments: See `PrefixTree.segments`, [S, 3]; None unless the layout is "segments".
        paths: Index in the tree of each token of each sequence, padded on the right with 0, [R, L]; None unless
            the layout is "paths".
        owners: Flattened index in `paths` of one occurrence of each token, [T]; None likewise.
    """

    tokens: IntArray
    sources: IntArray
    targets: IntArray
    copies: IntArray
    copy_source: IntArray
    rows: IntArray
    turns: IntArray
    positions: IntArray | None = None
    segments: IntArray | None = None
    paths: IntArray | None = None
    owners: IntArray | None = None


def make_microbatches(
    rollouts: Rollouts,
    episodes: IntArray | None,
    max_tokens: int,
    *,
    tree: TreeLayout | None = None,
    multiple_of: int = 1,
    keep: BoolArray | None = None,
) -> list[MicroBatch]:
    """Cut an optimizer batch into micro-batches of at most `max_tokens` tokens, padding included.

    A row ends before its last sampled token that is in the loss, which is only predicted; rows without such a
    token are left out. A row longer than `max_tokens` forms a micro-batch of its own.

    Args:
        rollouts: Episodes of the update.
        episodes: Indices of the episodes of the optimizer batch; None for all.
        max_tokens: Maximum size of a micro-batch in tokens. With the layout "paths", whose attention repeats
            shared tokens, they count as often as they occur.
        tree: Layout of the rows of a micro-batch as a tree, for models whose attention accepts it. None lays them
            out side by side, as are rows that share too little for a tree to save time.
        multiple_of: Number of which the number of micro-batches becomes a multiple (the ranks that share them), if
            there are enough rows.
        keep: Mask of the copies in the loss, [M]; None keeps all.

    Returns:
        Micro-batches, those with the longest rows (of trees: with the most tokens) first, so that memory runs out
        in the first one or never.

    Raises:
        ConfigurationError: `max_tokens` is not positive.
    """
    if max_tokens < 1:
        raise ConfigurationError(f"max_tokens must be a positive number of tokens, but is {max_tokens}.")
    chosen = np.ones(len(rollouts.copies.action), dtype=bool) if keep is None else keep.copy()
    if episodes is not None:
        chosen &= np.isin(rollouts.copies.episode, episodes)
    copies = np.flatnonzero(chosen)
    copies = copies[np.argsort(rollouts.copies.row[copies], kind="stable")]
    rows, counts = np.unique(rollouts.copies.row[copies], return_counts=True)
    if len(rows) == 0:
        return []
    parts = np.split(copies, np.cumsum(counts)[:-1])
    # The last sampled token of a row determines the longest prefix to compute.
    ends = [int(rollouts.action_position[rollouts.copies.action[part]].max()) for part in parts]
    sequences = [rollouts.rows[row][:end] for row, end in zip(rows.tolist(), ends, strict=True)]
    if tree is not None:
        order = lexicographic_order(sequences)
        sequences, parts = [sequences[i] for i in order], [parts[i] for i in order]
        lengths = [len(sequence) for sequence in sequences]
        shared = shared_lengths(sequences, MIN_SEGMENT)
        if sum(shared) >= MIN_SHARED * sum(lengths):
            order = largest_first(lengths, shared)
            sequences, parts = [sequences[i] for i in order], [parts[i] for i in order]
            lengths, shared = [lengths[i] for i in order], shared_lengths(sequences, MIN_SEGMENT)
            if tree == "segments":
                sets = split_tree(lengths, shared, max_tokens, multiple_of=multiple_of)
            else:
                sets = split_by_tokens(lengths, range(len(lengths)), max_tokens, multiple_of=multiple_of)
            sets.sort(key=lambda batch: -tree_size(batch, lengths, shared))
            return [
                _make(
                    rollouts,
                    _as_tree([sequences[i] for i in batch], [shared[i] for i in batch], tree),
                    [parts[i] for i in batch],
                )
                for batch in sets
            ]
    lengths = [len(sequence) for sequence in sequences]
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [
        _make(rollouts, _side_by_side([sequences[i] for i in batch]), [parts[i] for i in batch])
        for batch in split_by_tokens(lengths, order, max_tokens, multiple_of=multiple_of)
    ]


def split_by_tokens(
    lengths: Sequence[int], order: Sequence[int], max_tokens: int, *, multiple_of: int = 1
) -> list[list[int]]:
    """Cut sequences into sets whose number times the longest length is at most `max_tokens`.

    Args:
        lengths: Number of tokens of each sequence.
        order: Order of the sequences; a set has consecutive ones.
        max_tokens: Maximum size; a single sequence may exceed it.
        multiple_of: Split the largest sets until their number is a multiple of this, or all sets are single.

    Returns:
        Indices of the sequences in each set.
    """
    sets: list[list[int]] = []
    width = 0
    for i in order:
        width = max(width, lengths[i])
        if sets and (len(sets[-1]) + 1) * width <= max_tokens:
            sets[-1].append(i)
        else:
            sets.append([i])
            width = lengths[i]
    while len(sets) % multiple_of and any(len(part) > 1 for part in sets):
        largest = max(range(len(sets)), key=lambda k: (len(sets[k]) > 1, sum(lengths[i] for i in sets[k])))
        part = sets.pop(largest)
        half = (len(part) + 1) // 2
        sets[largest:largest] = [part[:half], part[half:]]
    return sets


class _Layout(NamedTuple):
    """Arrays of `MicroBatch` that depend on the tokens only, and the flattened index of each sequence's tokens."""

    places: list[IntArray]
    tokens: IntArray
    positions: IntArray | None = None
    segments: IntArray | None = None
    paths: IntArray | None = None
    owners: IntArray | None = None


def _side_by_side(sequences: Sequence[IntArray]) -> _Layout:
    width = max(map(len, sequences))
    places = [line * width + np.arange(len(sequence)) for line, sequence in enumerate(sequences)]
    return _Layout(places, _pad(sequences, width))


def _as_tree(sequences: Sequence[IntArray], shared: Sequence[int], kind: TreeLayout) -> _Layout:
    tokens, positions, places, segments = merge_prefixes(sequences, shared)
    if kind == "segments":
        return _Layout(places, tokens[None], positions[None], segments=segments)
    width = max(map(len, sequences))
    owners = np.empty(len(tokens), dtype=np.int64)
    for line, path in enumerate(places):
        owners[path] = line * width + np.arange(len(path))
    return _Layout(places, tokens[None], positions[None], paths=_pad(places, width), owners=owners)


def _pad(arrays: Sequence[IntArray], width: int) -> IntArray:
    padded = np.zeros((len(arrays), width), dtype=np.int64)
    for line, array in enumerate(arrays):
        padded[line, : len(array)] = array
    return padded


def _make(rollouts: Rollouts, layout: _Layout, parts: Sequence[IntArray]) -> MicroBatch:
    """Return one micro-batch.

    Args:
        rollouts: Episodes of the update.
        layout: Layout of its sequences.
        parts: Copies in the loss of each sequence.
    """
    copies = np.concatenate(parts)
    actions = rollouts.copies.action[copies]
    sources = [
        places[rollouts.action_position[rollouts.copies.action[part]] - 1]
        for places, part in zip(layout.places, parts, strict=True)
    ]
    pairs, copy_source = np.unique(
        np.stack([np.concatenate(sources), rollouts.action_tokens[actions]], axis=1), axis=0, return_inverse=True
    )
    sequence = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return MicroBatch(
        tokens=layout.tokens,
        sources=pairs[:, 0],
        targets=pairs[:, 1],
        copies=copies,
        copy_source=copy_source.reshape(-1),
        rows=factorize(zip(sequence.tolist(), rollouts.copies.episode[copies].tolist(), strict=True)),
        turns=factorize(rollouts.copies.path[copies].tolist()),
        positions=layout.positions,
        segments=layout.segments,
        paths=layout.paths,
        owners=layout.owners,
    )
