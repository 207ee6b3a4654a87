"""Gradient accumulation: micro-batches of one optimizer step, in one process or divided among several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..algorithms.objectives.loss import Sums
from ..data.microbatches import MicroBatch, make_microbatches
from ..data.prefix_trees import TreeLayout
from ..data.rollouts import Rollouts
from ..data.segments import BoolArray
from .optimizer import PolicyOptimizer
from .policy import forward_inputs


def rank_microbatches(
    optimizer: PolicyOptimizer,
    rollouts: Rollouts,
    max_tokens: int,
    keep: BoolArray | None = None,
    *,
    tree: TreeLayout | None = None,
) -> Iterator[tuple[MicroBatch, bool]]:
    """Yield this rank's micro-batches, padded to an equal count per rank; the flag is False for padding."""
    microbatches = make_microbatches(
        rollouts, None, max_tokens, tree=tree, multiple_of=optimizer.world_size, keep=keep
    )
    yield from share_among_ranks(optimizer, microbatches)


def share_among_ranks(
    optimizer: PolicyOptimizer, microbatches: Sequence[MicroBatch]
) -> list[tuple[MicroBatch, bool]]:
    """Return this rank's micro-batches, padded to an equal count per rank; the flag is False for padding."""
    world_size, rank = optimizer.world_size, optimizer.accelerator.process_index
    count = len(microbatches)
    padded = [*microbatches, *(list(microbatches[:1]) * (-count % world_size))]
    return [(padded[number], number < count) for number in range(rank, len(padded), world_size)]


@dataclass(frozen=True)
class Microbatching:
    """Division of rollouts into this rank's micro-batches.

    Attributes:
        optimizer: Policy and optimizer.
        max_tokens: Maximum size of a micro-batch in tokens.
        share_prefixes: See `HardwareConfig`.
    """

    optimizer: PolicyOptimizer
    max_tokens: int
    share_prefixes: bool | None = None

    def layout(self, rollouts: Rollouts, *, sequences: bool = False) -> TreeLayout | None:
        """Return the layout in which rollouts share their prefixes; None repeats them.

        Args:
            rollouts: Rollouts to lay out.
            sequences: True for sequences of equal beginnings that were not rolled out; they share these unless
                prefixes must not be shared.
        """
        share = self.share_prefixes
        if share is None:
            share = sequences or rollouts.has_branches
        return self.optimizer.policy.tree_layout if share else None

    def divide(
        self, rollouts: Rollouts, keep: BoolArray, *, sequences: bool = False
    ) -> list[tuple[MicroBatch, bool]]:
        """Return this rank's micro-batches of some copies; see `rank_microbatches`.

        Args:
            rollouts: Rollouts to divide.
            keep: Mask of the copies, [M].
            sequences: See `layout`.
        """
        tree = self.layout(rollouts, sequences=sequences)
        return list(rank_microbatches(self.optimizer, rollouts, self.max_tokens, keep, tree=tree))


def accumulate_gradients(
    optimizer: PolicyOptimizer,
    microbatches: Sequence[tuple[MicroBatch, bool]],
    temperature: float,
    loss_of: Callable[[MicroBatch, Sequence[Tensor]], tuple[Tensor, Sums]],
    *,
    entropy_grad: bool = False,
    backward: bool = True,
    more: bool = False,
) -> list[Sums]:
    """Run forward and backward over the micro-batches of one optimizer step; the caller takes the step.

    Args:
        optimizer: Policy and optimizer.
        microbatches: Micro-batches, each with a flag that is False for padding.
        temperature: Temperature of the policy.
        loss_of: Returns the summand of the loss that a micro-batch contributes, and metrics of it.
        entropy_grad: True if the loss differentiates entropies.
        backward: False computes metrics only.
        more: True if a further call adds to the gradients of this step, so that they need not synchronize yet.

    Returns:
        Metrics of every micro-batch that is not padding.
    """
    parts = []
    for number, (micro, counts) in enumerate(microbatches, 1):
        is_last = number == len(microbatches) and not more
        with optimizer.accumulate(is_last) if backward else torch.no_grad():
            inputs = forward_inputs(micro, optimizer.accelerator.device)
            with optimizer.autocast():  # FSDP does not apply it by itself.
                scores = optimizer.model(**inputs, temperature=temperature, entropy_grad=entropy_grad)
            loss, sums = loss_of(micro, scores)
            if backward:
                optimizer.backward(loss if counts else loss * 0.0)
        if counts:
            parts.append(sums)
    return parts
