"""Micro-batches run through the model, by one process or by several that share them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ..algorithms.objectives.loss import Sums
from ..data.microbatches import MicroBatch, micro_batches
from ..data.rollouts import Rollouts
from ..data.segments import BoolArray
from .optimizer import Descent
from .policy import on_device


def shared_micros(
    descent: Descent, rollouts: Rollouts, micro_tokens: int, keep: BoolArray | None = None
) -> Iterator[tuple[MicroBatch, bool]]:
    """This process's micro-batches, as many as every other's; the second says whether one counts or only fills."""
    world, rank = descent.world, descent.accelerator.process_index
    micros = micro_batches(rollouts, None, micro_tokens, multiple_of=world, keep=keep)
    real = len(micros)
    micros += micros[:1] * (-real % world)
    for number in range(rank, len(micros), world):
        yield micros[number], number < real


def run_micros(
    descent: Descent,
    micros: Sequence[tuple[MicroBatch, bool]],
    temperature: float,
    loss_of: Callable[[MicroBatch, Sequence[Tensor]], tuple[Tensor, Sums]],
    *,
    entropy_grad: bool = False,
    learns: bool = True,
) -> list[Sums]:
    """Forward and backward over the micro-batches of one optimizer batch; the step is left to the caller.

    Args:
        descent: the model.
        micros: micro-batches, and whether each counts (fillers do not).
        temperature: of the policy.
        loss_of: the summand of the loss that a micro-batch bears, and what to log of it.
        entropy_grad: whether the loss needs the gradient of entropies.
        learns: whether to go backward; else what is logged is all that comes of it.
    """
    parts = []
    for number, (micro, counts) in enumerate(micros, 1):
        with descent.part(last=number == len(micros)) if learns else torch.no_grad():
            inputs = on_device(micro, descent.accelerator.device)
            with descent.autocast():  # FSDP does not bring its own
                scores = descent.model(**inputs, temperature=temperature, entropy_grad=entropy_grad)
            loss, sums = loss_of(micro, scores)
            if learns:
                descent.backward(loss if counts else loss * 0.0)
        if counts:
            parts.append(sums)
    return parts
