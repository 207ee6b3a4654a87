"""Seconds of the phases of a training step on one device, as linear functions of counted work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from .devices import Assumptions, Device
from .model_shape import ModelShape

Phase = Literal["decode", "prefill", "score", "update", "turn"]
Work = Mapping[str, float]
"""Amounts of work of one phase, by the name of a coefficient."""

PHASES: Mapping[Phase, tuple[str, ...]] = {
    "decode": ("step", "layer", "byte", "flop", "sequence"),
    "prefill": ("call", "layer", "flop", "sequence"),
    "score": ("microbatch", "layer", "flop"),
    "update": ("microbatch", "layer", "flop", "parameter"),
    "turn": ("turn",),
}
"""Coefficients of every phase."""


def decode_work(shape: ModelShape, sequences: float, context: float) -> Work:
    """Return the work of sampling one token of every sequence.

    Args:
        shape: Sizes of the model.
        sequences: Number of sequences.
        context: Tokens of all sequences together, whose keys and values are read.
    """
    return {
        "step": 1.0,
        "layer": shape.layers,
        "byte": shape.weight_bytes + context * shape.cache_bytes,
        "flop": shape.forward_flops(sequences, sequences, context),
        "sequence": sequences,
    }


def prefill_work(shape: ModelShape, tokens: float, context: float, sequences: float = 1.0) -> Work:
    """Return the work of encoding new tokens of conversations in one call.

    Args:
        shape: Sizes of the model.
        tokens: New tokens of all conversations.
        context: Tokens of one conversation before these.
        sequences: Number of conversations.
    """
    each = tokens / sequences
    attended = tokens * context + sequences * each * (each + 1) / 2
    return {
        "call": 1.0,
        "layer": shape.layers,
        "flop": shape.forward_flops(tokens, sequences, attended),
        "sequence": sequences,
    }


def score_work(shape: ModelShape, lengths: list[int], scored: float, microbatches: float) -> Work:
    """Return the work of the log-probabilities of sampled tokens.

    Args:
        shape: Sizes of the model.
        lengths: Tokens of every row.
        scored: Sampled tokens.
        microbatches: Number of micro-batches.
    """
    attended = sum(length * (length + 1) / 2 for length in lengths)
    return {
        "microbatch": microbatches,
        "layer": microbatches * shape.layers,
        "flop": shape.forward_flops(sum(lengths), scored, attended),
    }


def update_work(shape: ModelShape, lengths: list[int], scored: float, microbatches: float, steps: float) -> Work:
    """Return the work of forward and backward passes and of optimizer steps.

    Args:
        shape: Sizes of the model.
        lengths: Tokens of every row.
        scored: Sampled tokens.
        microbatches: Number of micro-batches.
        steps: Number of optimizer steps.
    """
    forward = score_work(shape, lengths, scored, microbatches)
    return {**forward, "flop": 3 * forward["flop"], "parameter": steps * shape.parameters}


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds per unit of work, for each phase.

    Attributes:
        device: Name of the device.
        seconds: Coefficients by phase and name; see `PHASES`.
        measured: True if the coefficients are fitted to measured points, False if they follow from peaks.
    """

    device: str
    seconds: dict[Phase, dict[str, float]]
    measured: bool

    def of(self, phase: Phase, work: Work) -> float:
        """Return the seconds of an amount of work."""
        seconds = self.seconds[phase]
        return sum(seconds[name] * amount for name, amount in work.items())


def assumed_costs(name: str, device: Device, assumptions: Assumptions) -> Costs:
    """Return the coefficients that follow from a device's peaks and the assumed fractions of them.

    Decoding takes the time of its memory traffic plus that of its operations, which overlap in practice: the sum
    is at most twice the larger one.
    """
    assumptions.check()
    flop = 1 / (device.flops * assumptions.prefill_flops)
    return Costs(
        name,
        {
            "decode": {
                "step": assumptions.step_seconds,
                "layer": 0.0,
                "byte": 1 / (device.bandwidth * assumptions.bandwidth),
                "flop": flop,
                "sequence": assumptions.sequence_seconds,
            },
            "prefill": {"call": 0.0, "layer": 0.0, "flop": flop, "sequence": assumptions.sequence_seconds},
            "score": {"microbatch": 0.0, "layer": 0.0, "flop": flop},
            "update": {
                "microbatch": 0.0,
                "layer": 0.0,
                "flop": 1 / (device.flops * assumptions.update_flops),
                # AdamW reads weight, gradient and two moments, and writes three of them, in float32.
                "parameter": 28 / (device.bandwidth * assumptions.bandwidth),
            },
            "turn": {"turn": 0.0},
        },
        measured=False,
    )
