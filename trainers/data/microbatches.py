"""How sequences are laid out for the model: optimizer batches, and the micro-batches that fit into memory.

Nothing here changes what is learnt: the weights of `objectives.aggregate` are computed over an optimizer batch
before it is cut, and a micro-batch only says which tokens to run through the model together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...envs.errors import ConfigurationError
from .rollouts import Rollouts
from .segments import BoolArray, FloatArray, IntArray, factorize

Layout = Literal["padded", "packed"]


def optimizer_batches(rollouts: Rollouts, episodes: int | None, *, seed: int) -> list[IntArray]:
    """Deal the episodes out into optimizer batches of about equal size, in an order drawn from `seed`.

    Args:
        rollouts: what was selected.
        episodes: episodes a batch; None for one batch of all. Where it does not divide their number, batches
            differ by one episode at most, and none is repeated or dropped.
        seed: of this pass over the rollouts.

    Returns:
        Episode numbers, ascending within each batch.
    """
    order = np.random.default_rng(seed).permutation(rollouts.episodes)
    count = 1 if episodes is None else max(1, round(rollouts.episodes / max(episodes, 1)))
    return [np.sort(part) for part in np.array_split(order, count) if len(part)]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Sequences to run through the model at once.

    Attributes:
        tokens: ids, [B, T] padded on the right with 0, or [1, ΣT] packed.
        positions: place of each token in its sequence, of the same shape; 0 on padding.
        segments: sequence of each token, numbered from 0, of the same shape; -1 on padding. Tokens attend to
            earlier ones of their own segment. The attention mask of a padded batch is `segments >= 0`.
        sources: for each sampled token the flattened index of the position before it, which predicts it, [n].
        targets: its id, [n].
        actions: its index on the rollouts' action axis, for advantages, weights and old log-probabilities, [n].
        rows: its sequence, numbered from 0 within the micro-batch, [n].
        turns: its turn, numbered from 0 within the micro-batch, [n].
    """

    tokens: IntArray
    positions: IntArray
    segments: IntArray
    sources: IntArray
    targets: IntArray
    actions: IntArray
    rows: IntArray
    turns: IntArray

    @property
    def waste(self) -> float:
        """Fraction of the model's input that is padding."""
        return float(np.mean(self.segments < 0))

    @property
    def boundaries(self) -> npt.NDArray[np.int32]:
        """Cumulative lengths of the sequences, [B + 1], as variable-length attention kernels take them."""
        inside = self.segments[self.segments >= 0]
        return np.concatenate([[0], np.cumsum(np.bincount(inside))]).astype(np.int32)


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

    What follows the last sampled token of a row that is in the loss is not run through the model, nor are rows
    without one. A row that is longer than `max_tokens` forms a micro-batch of its own.

    Args:
        rollouts: where the rows are.
        episodes: which episodes; None for all.
        max_tokens: what fits into memory.
        layout: "padded": rows of similar length side by side; "packed": rows behind each other in one long row,
            for models that can attend within segments.
        multiple_of: make the number of micro-batches a multiple of this (of the ranks that share them), as long
            as there are rows enough.
        keep: tokens that are in the loss, [N]; default all.

    Returns:
        Micro-batches, the longest rows first, so that memory runs out at once or never.
    """
    if max_tokens < 1:
        raise ConfigurationError(f"max_tokens must be a positive number of tokens, but is {max_tokens}.")
    chosen = np.ones(rollouts.actions, dtype=bool) if keep is None else keep.copy()
    if episodes is not None:
        chosen &= np.isin(rollouts.action_episode, episodes)
    actions = np.flatnonzero(chosen)
    rows, counts = np.unique(rollouts.action_row[actions], return_counts=True)
    if len(rows) == 0:
        return []
    # Actions of a row stand together and in order, so the last one is the longest prefix that is needed.
    ends = np.cumsum(counts)
    lengths = rollouts.action_position[actions[ends - 1]]
    groups = split_by_tokens(lengths, max_tokens, layout=layout, multiple_of=multiple_of)
    starts = ends - counts
    return [
        _lay_out(
            [rollouts.rows[rows[i]][: lengths[i]] for i in group],
            [actions[starts[i] : ends[i]] for i in group],
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

    The cost of a set is its number of sequences times the longest ("padded") or the sum of lengths ("packed").

    Args:
        lengths: tokens of each sequence.
        max_tokens: the bound; a single sequence may exceed it.
        layout: see above.
        multiple_of: split the largest sets until their number is a multiple of this, or all are single.

    Returns:
        Indices of the sequences in each set, longest first.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    sets: list[list[int]] = []
    if layout == "padded":
        for i in order:
            # The first of a set is its longest, and sets the price.
            if sets and (len(sets[-1]) + 1) * lengths[sets[-1][0]] <= max_tokens:
                sets[-1].append(i)
            else:
                sets.append([i])
    else:
        room: list[int] = []
        for i in order:  # first fit, decreasing
            place = next((k for k, free in enumerate(room) if lengths[i] <= free), None)
            if place is None:
                sets.append([i])
                room.append(max_tokens - int(lengths[i]))
            else:
                sets[place].append(i)
                room[place] -= int(lengths[i])
    while len(sets) % multiple_of and any(len(part) > 1 for part in sets):
        largest = max(range(len(sets)), key=lambda k: (len(sets[k]) > 1, sum(lengths[i] for i in sets[k])))
        part = sets.pop(largest)
        half = (len(part) + 1) // 2
        sets[largest:largest] = [part[:half], part[half:]]
    return sets


def shares(costs: FloatArray | Sequence[float], ways: int) -> list[list[int]]:
    """Deal items out to `ways` workers so that the largest total is small (longest processing time first).

    Args:
        costs: of each item.
        ways: workers.

    Returns:
        Item numbers of each worker, ascending; some are empty if there are fewer items than workers.
    """
    parts: list[list[int]] = [[] for _ in range(ways)]
    sum_by_group = [0.0] * ways
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        least = min(range(ways), key=lambda k: (sum_by_group[k], k))
        parts[least].append(i)
        sum_by_group[least] += costs[i]
    return [sorted(part) for part in parts]


def _lay_out(
    sequences: list[IntArray],
    actions: list[IntArray],
    rollouts: Rollouts,
    rows: IntArray,
    layout: Layout,
) -> MicroBatch:
    """One micro-batch: inputs are each row up to the token before its last sampled one."""
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
        place = slice(offset, offset + length)
        tokens.reshape(-1)[place] = sequence
        positions.reshape(-1)[place] = np.arange(length)
        segments.reshape(-1)[place] = number
    flatten = np.concatenate(actions)
    number_of = np.repeat(np.arange(len(actions)), [len(part) for part in actions])
    spots = rollouts.action_position[flatten]
    targets = np.concatenate(
        [rollouts.rows[row][rollouts.action_position[part]] for row, part in zip(rows, actions, strict=True)]
    )
    return MicroBatch(
        tokens=tokens,
        positions=positions,
        segments=segments,
        sources=offsets[number_of] + spots - 1,
        targets=targets,
        actions=flatten,
        rows=number_of,
        turns=factorize(rollouts.action_turn[flatten].tolist()),
    )
