"""Clipped surrogate loss of PPO and its variants.

    l = max(-A·ρ, -A·clip(ρ, 1 - ε_low, 1 + ε_high))

This is PPO (Schulman et al., arXiv:1707.06347, eq. 7, negated); ε_low ≠ ε_high is DAPO's "clip-higher"
(arXiv:2503.14476).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Surrogate(NamedTuple):
    """Losses of tokens, and the tokens without gradient; all of one shape.

    Attributes:
        losses: Loss of each token, to be minimized.
        upper: True where the ratio exceeds 1 + ε_high at a positive advantage.
        lower: True where the ratio is below 1 - ε_low at a negative advantage.
        dual: True where the dual clip or the cap of the ratio bounds the loss at a negative advantage.
    """

    losses: Tensor
    upper: Tensor
    lower: Tensor
    dual: Tensor


def clipped_surrogate(
    ratios: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    ratio_cap: float | None = None,
) -> Surrogate:
    """Return the loss of each token; see the module's equation.

    Args:
        ratios: ρ, any shape.
        advantages: A, same shape.
        clip_low, clip_high: ε_low and ε_high.
        dual_clip: c > 1; the loss is at most -A·c where A < 0 (Ye et al., arXiv:1912.09729, eq. 5). None turns
            it off.
        ratio_cap: Maximum of the unclipped ratio (TRL's `delta`), effective where A < 0. None turns it off.
    """
    unclipped = ratios if ratio_cap is None else ratios.clamp(max=ratio_cap)
    losses = torch.maximum(-advantages * unclipped, -advantages * ratios.clamp(1.0 - clip_low, 1.0 + clip_high))
    negative = advantages < 0
    dual = torch.zeros_like(negative) if ratio_cap is None else negative & (ratios > ratio_cap)
    if dual_clip is not None:
        bound = -advantages * dual_clip
        dual = dual | (negative & (losses > bound))
        losses = torch.where(negative, torch.minimum(losses, bound), losses)
    upper = (advantages > 0) & (ratios > 1.0 + clip_high)
    lower = negative & (ratios < 1.0 - clip_low)
    return Surrogate(losses, upper, lower, dual)
