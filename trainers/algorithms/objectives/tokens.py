"""Inputs of the loss: sampled tokens and preference pairs of a micro-batch."""

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


@dataclass(frozen=True, slots=True)
class Pairs:
    """Preference pairs of one micro-batch: a chosen and a rejected continuation, each attribute of shape [p].

    Attributes:
        chosen, rejected: log π of the whole continuation, the sum over its tokens, with gradient.
        chosen_tokens, rejected_tokens: Number of its tokens.
        ref_chosen, ref_rejected: log π_ref of the whole continuation; None where no term needs the reference.
    """

    chosen: Tensor
    rejected: Tensor
    chosen_tokens: Tensor
    rejected_tokens: Tensor
    ref_chosen: Tensor | None = None
    ref_rejected: Tensor | None = None
