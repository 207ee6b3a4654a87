"""Optimizer batches, and the micro-batches that fit into memory.

Neither layout nor cut changes the gradient: the weights of `objectives.aggregate` are computed over an optimizer
batch before it is cut, and a micro-batch only determines which tokens share a forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...envs.errors import ConfigurationError
from .prefix_trees import PrefixTree, build_tree, group_by_prefix
from .rollouts import Rollouts
from .segments import BoolArray, IntArray, factorize


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
    """Sequences of one forward pass.

    A line of the batch is one sequence, or a tree of sequences with common prefixes (see `prefix_trees`).

    Attributes:
        tokens: Token ids, padded on the right with 0, [B, T].
        sources: Flattened index of the token whose logits predict each sampled token, [n].
        targets: Token id of each sampled token, [n].
        copies: Index of each copy of these tokens on the copy axis of the rollouts, [m]; selects advantages,
            weights and old log-probabilities.
        copy_source: Index of each copy's token among the n sampled tokens, [m]. Equal tokens after equal prefixes
            are scored once.
        rows: Sequence of each copy, numbered from 0 within the micro-batch, [m]. Copies of several episodes in
            one sequence are in different rows.
        turns: Turn of each copy, numbered from 0 within the micro-batch, [m].
        positions: Position of each token in its sequences, 0 on padding, [B, T]; None if no line is a tree, where
            attention is causal and padding on the right cannot affect a token.
        spans: Span of each token, -1 on padding, [B, T]; None with `positions`.
        limits: See `PrefixTree.limits`, padded with 0, [B, K, K]; None with `positions`.
    """

    tokens: IntArray
    sources: IntArray
    targets: IntArray
    copies: IntArray
    copy_source: IntArray
    rows: IntArray
    turns: IntArray
    positions: IntArray | None = None
    spans: IntArray | None = None
    limits: IntArray | None = None


def make_microbatches(
    rollouts: Rollouts,
    episodes: IntArray | None,
    max_tokens: int,
    *,
    attention_cost: float | None = None,
    multiple_of: int = 1,
    keep: BoolArray | None = None,
) -> list[MicroBatch]:
    """Cut an optimizer batch into micro-batches of at most `max_tokens` tokens, padding included.

    A row ends before its last sampled token that is in the loss, which is only predicted; rows without such a
    token are left out. A row longer than `max_tokens` forms a micro-batch of its own.

    Args:
        rollouts: Episodes of the update.
        episodes: Indices of the episodes of the optimizer batch; None for all.
        max_tokens: Maximum size of a micro-batch in tokens.
        attention_cost: Compute common prefixes of rows once where that costs less; see `group_by_prefix`. None
            computes every row for itself, which every model allows.
        multiple_of: Number of which the number of micro-batches becomes a multiple (the ranks that share them), if
            there are enough rows.
        keep: Mask of the copies in the loss, [M]; None keeps all.

    Returns:
        Micro-batches, those with the longest lines first, so that memory runs out in the first one or never.

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
    ends = np.cumsum(counts)
    starts = ends - counts
    # The last sampled token of a row determines the longest prefix to compute.
    lengths = np.maximum.reduceat(rollouts.action_position[rollouts.copies.action[copies]], starts)
    prefixes = [rollouts.rows[row][:length] for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)]
    if attention_cost is None:
        lines = [[i] for i in range(len(rows))]
    else:
        lines = group_by_prefix(prefixes, max_tokens, attention_cost)
    trees = [build_tree([prefixes[i] for i in line]) for line in lines]
    parts = [[copies[starts[i] : ends[i]] for i in line] for line in lines]
    sizes = [len(tree.tokens) for tree in trees]
    return [
        _lay_out(rollouts, [trees[i] for i in batch], [parts[i] for i in batch])
        for batch in split_by_tokens(sizes, max_tokens, multiple_of=multiple_of)
    ]


def split_by_tokens(
    lengths: IntArray | Sequence[int], max_tokens: int, *, multiple_of: int = 1
) -> list[list[int]]:
    """Divide lines into sets whose number times the longest length is at most `max_tokens`.

    Args:
        lengths: Number of tokens of each line.
        max_tokens: Maximum size; a single line may exceed it.
        multiple_of: Split the largest sets until their number is a multiple of this, or all sets are single.

    Returns:
        Indices of the lines in each set, longest first.
    """
    sets: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        # The first line of a set is its longest, which determines the padded width.
        if sets and (len(sets[-1]) + 1) * lengths[sets[-1][0]] <= max_tokens:
            sets[-1].append(i)
        else:
            sets.append([i])
    while len(sets) % multiple_of and any(len(part) > 1 for part in sets):
        largest = max(range(len(sets)), key=lambda k: (len(sets[k]) > 1, sum(lengths[i] for i in sets[k])))
        part = sets.pop(largest)
        half = (len(part) + 1) // 2
        sets[largest:largest] = [part[:half], part[half:]]
    return sets


def _lay_out(rollouts: Rollouts, trees: Sequence[PrefixTree], copies: Sequence[Sequence[IntArray]]) -> MicroBatch:
    """Return one micro-batch.

    Args:
        rollouts: Episodes of the update.
        trees: Tree of each line.
        copies: Copies in the loss of each sequence of each line.
    """
    width = max(len(tree.tokens) for tree in trees)
    tokens, positions, spans = (np.full((len(trees), width), fill, dtype=np.int64) for fill in (0, 0, -1))
    most = max(len(tree.paths) for tree in trees)
    limits = np.zeros((len(trees), most, most), dtype=np.int64)
    sources: list[IntArray] = []
    for line, (tree, parts) in enumerate(zip(trees, copies, strict=True)):
        span = slice(0, len(tree.tokens))
        tokens[line, span], positions[line, span], spans[line, span] = tree.tokens, tree.positions, tree.spans
        limits[line, : len(tree.paths), : len(tree.paths)] = tree.limits
        for path, part in zip(tree.paths, parts, strict=True):
            sources.append(line * width + path[rollouts.action_position[rollouts.copies.action[part]] - 1])
    in_order = [part for parts in copies for part in parts]
    all_copies, all_sources = np.concatenate(in_order), np.concatenate(sources)
    actions = rollouts.copies.action[all_copies]
    targets = rollouts.action_tokens[actions]
    pairs, copy_source = np.unique(np.stack([all_sources, targets], axis=1), axis=0, return_inverse=True)
    sequence = np.repeat(np.arange(len(in_order)), [len(part) for part in in_order])
    is_tree = most > 1
    return MicroBatch(
        tokens=tokens,
        sources=pairs[:, 0],
        targets=pairs[:, 1],
        copies=all_copies,
        copy_source=copy_source.reshape(-1),
        rows=factorize(zip(sequence.tolist(), rollouts.copies.episode[all_copies].tolist(), strict=True)),
        turns=factorize(rollouts.copies.path[all_copies].tolist()),
        positions=positions if is_tree else None,
        spans=spans if is_tree else None,
        limits=limits if is_tree else None,
    )
