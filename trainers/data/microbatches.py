"""Optimizer batches, and the micro-batches that fit into memory.

Neither layout nor cut changes the gradient: the weights of `objectives.aggregate` are computed over an optimizer
batch before it is cut, and a micro-batch only determines which tokens share a forward pass.

The tree sampler and T-STAR recipe of the next milestone use the packed layout; until then only tests do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...envs.errors import ConfigurationError
from .rollouts import Rollouts
from .segments import BoolArray, IntArray, factorize

Layout = Literal["padded", "packed"]


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

    Attributes:
        tokens: Token ids: [B, T], padded on the right with 0, or [1, ΣT] if packed.
        positions: Position of each token in its sequence, same shape; 0 on padding.
        segments: Sequence of each token, numbered from 0, same shape; -1 on padding. A token attends to earlier
            tokens of its own segment. The attention mask of a padded batch is `segments >= 0`.
        sources: Flattened index of the token whose logits predict each sampled token, [n].
        targets: Token id of each sampled token, [n].
        actions: Index of each sampled token on the action axis of the rollouts, [n].
        copies: Index of each copy of these tokens on the copy axis of the rollouts, [m]; selects advantages,
            weights and old log-probabilities.
        copy_source: Index of each copy's token among the n sampled tokens, [m].
        rows: Sequence of each copy, numbered from 0 within the micro-batch, [m]. Copies of several episodes in
            one sequence are in different rows.
        turns: Turn of each copy, numbered from 0 within the micro-batch, [m].
    """

    tokens: IntArray
    positions: IntArray
    segments: IntArray
    sources: IntArray
    targets: IntArray
    actions: IntArray
    copies: IntArray
    copy_source: IntArray
    rows: IntArray
    turns: IntArray


def make_microbatches(
    rollouts: Rollouts,
    episodes: IntArray | None,
    max_tokens: int,
    *,
    layout: Layout = "padded",
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
        layout: "padded" puts rows of similar length side by side; "packed" concatenates rows to one long row, for
            models whose attention is restricted to segments.
        multiple_of: Number of which the number of micro-batches becomes a multiple (the ranks that share them), if
            there are enough rows.
        keep: Mask of the copies in the loss, [M]; None keeps all.

    Returns:
        Micro-batches, those with the longest rows first, so that memory runs out in the first one or never.

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
    groups = split_by_tokens(lengths, max_tokens, layout=layout, multiple_of=multiple_of)
    return [
        _lay_out(
            [rollouts.rows[rows[i]][: lengths[i]] for i in group],
            [copies[starts[i] : ends[i]] for i in group],
            rollouts,
            rows[group],
            layout,
        )
        for group in groups
    ]


def split_by_tokens(
    lengths: IntArray | Sequence[int], max_tokens: int, *, layout: Layout = "padded", multiple_of: int = 1
) -> list[list[int]]:
    """Divide sequences into sets whose cost is at most `max_tokens`.

    The cost of a set is its number of sequences times the longest length ("padded"), or the sum of lengths
    ("packed").

    Args:
        lengths: Number of tokens of each sequence.
        max_tokens: Maximum cost; a single sequence may exceed it.
        layout: Cost model, see above.
        multiple_of: Split the largest sets until their number is a multiple of this, or all sets are single.

    Returns:
        Indices of the sequences in each set, longest first.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    sets: list[list[int]] = []
    if layout == "padded":
        for i in order:
            # The first sequence of a set is its longest, which determines the padded width.
            if sets and (len(sets[-1]) + 1) * lengths[sets[-1][0]] <= max_tokens:
                sets[-1].append(i)
            else:
                sets.append([i])
    else:
        room: list[int] = []
        for i in order:  # first-fit decreasing
            index = next((k for k, free in enumerate(room) if lengths[i] <= free), None)
            if index is None:
                sets.append([i])
                room.append(max_tokens - int(lengths[i]))
            else:
                sets[index].append(i)
                room[index] -= int(lengths[i])
    while len(sets) % multiple_of and any(len(part) > 1 for part in sets):
        largest = max(range(len(sets)), key=lambda k: (len(sets[k]) > 1, sum(lengths[i] for i in sets[k])))
        part = sets.pop(largest)
        half = (len(part) + 1) // 2
        sets[largest:largest] = [part[:half], part[half:]]
    return sets


def _lay_out(
    sequences: list[IntArray],
    copies: list[IntArray],
    rollouts: Rollouts,
    rows: IntArray,
    layout: Layout,
) -> MicroBatch:
    """Return one micro-batch.

    Args:
        sequences: Token ids of each row, up to the token before its last sampled one.
        copies: Copies in the loss of each row's sampled tokens.
        rollouts: Episodes of the update.
        rows: Index of each row in the rollouts.
        layout: See `make_microbatches`.
    """
    lengths = [len(sequence) for sequence in sequences]
    if layout == "packed":
        shape = (1, sum(lengths))
        offsets = np.cumsum([0, *lengths[:-1]])
    else:
        shape = (len(sequences), max(lengths))
        offsets = np.arange(len(sequences)) * shape[1]
    tokens = np.zeros(shape, dtype=np.int64)
    positions = np.zeros(shape, dtype=np.int64)
    segments = np.full(shape, -1, dtype=np.int64)
    for number, (sequence, offset, length) in enumerate(zip(sequences, offsets.tolist(), lengths, strict=True)):
        span = slice(offset, offset + length)
        tokens.reshape(-1)[span] = sequence
        positions.reshape(-1)[span] = np.arange(length)
        segments.reshape(-1)[span] = number
    # A row computes each of its sampled tokens once, for all episodes that pass through it.
    unique = [np.unique(rollouts.copies.action[part], return_inverse=True) for part in copies]
    sizes = np.array([len(actions) for actions, _ in unique])
    actions = np.concatenate([actions for actions, _ in unique])
    action_segment = np.repeat(np.arange(len(unique)), sizes)
    targets = np.concatenate(
        [rollouts.rows[row][rollouts.action_position[part]] for row, (part, _) in zip(rows, unique, strict=True)]
    )
    all_copies = np.concatenate(copies)
    copy_segment = np.repeat(np.arange(len(copies)), [len(part) for part in copies])
    episodes = rollouts.copies.episode[all_copies]
    return MicroBatch(
        tokens=tokens,
        positions=positions,
        segments=segments,
        sources=offsets[action_segment] + rollouts.action_position[actions] - 1,
        targets=targets,
        actions=actions,
        copies=all_copies,
        copy_source=np.concatenate(
            [places + first for (_, places), first in zip(unique, np.cumsum(sizes) - sizes, strict=True)]
        ),
        rows=factorize(zip(copy_segment.tolist(), episodes.tolist(), strict=True)),
        turns=factorize(rollouts.copies.path[all_copies].tolist()),
    )
