"""Inputs of the loss at the sampled tokens of a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tokens:
    """Sampled tokens of one micro-batch, each attribute of shape [n].

    Attributes:
        logp: log π under the policy being trained, with gradient.
        advantages: Advantage A.
        weights: Weight of the token in the loss of the optimizer batch; see `token_weights`.
        rows: Sequence of the token, numbered from 0.
        turns: Turn of the token, numbered from 0; required by the turn ratio.
        old_logp: log π before the update; None if the update has a single step, where it equals `logp`.
        ref_logp: log π_ref; required by a KL term in the loss.
        sampler_logp: Log-probability under the distribution that the engine sampled from, as reported by the
            engine.
        entropy: Entropy of the policy at the token.
    """

    logp: Tensor
    advantages: Tensor
    weights: Tensor
    rows: Tensor
    turns: Tensor | None = None
    old_logp: Tensor | None = None
    ref_logp: Tensor | None = None
    sampler_logp: Tensor | None = None
    entropy: Tensor | None = None
