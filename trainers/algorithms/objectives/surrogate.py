"""The clipped surrogate of PPO, with the clips that were added to it.

    l = max(-A·ρ, -A·clip(ρ, 1 - ε_low, 1 + ε_high))

PPO (Schulman et al., arXiv:1707.06347, eq. 7, negated); two clips are DAPO's "clip-higher" (arXiv:2503.14476).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Surrogate(NamedTuple):
    """The loss of each token and what was clipped, all of one shape.

    Attributes:
        losses: to be minimised.
        upper: the ratio was above 1 + ε_high at a positive advantage: no gradient.
        lower: the ratio was below 1 - ε_low at a negative advantage: no gradient.
        dual: the loss was held down by the dual clip (or the ratio's cap) at a negative advantage: no gradient.
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
    """The loss of each token.

    Args:
        ratios: ρ, any shape.
        advantages: A, of the same shape.
        clip_low, clip_high: ε_low, ε_high.
        dual_clip: c > 1: where A < 0 the loss is at most -A·c (Ye et al., arXiv:1912.09729, eq. 5).
        ratio_cap: the ratio of the first term is cut above this (TRL's `delta`); bites only where A < 0.
    """
    free = ratios if ratio_cap is None else ratios.clamp(max=ratio_cap)
    losses = torch.maximum(-advantages * free, -advantages * ratios.clamp(1.0 - clip_low, 1.0 + clip_high))
    negative = advantages < 0
    dual = torch.zeros_like(negative) if ratio_cap is None else negative & (ratios > ratio_cap)
    if dual_clip is not None:
        bound = -advantages * dual_clip
        dual = dual | (negative & (losses > bound))
        losses = torch.where(negative, torch.minimum(losses, bound), losses)
    upper = (advantages > 0) & (ratios > 1.0 + clip_high)
    lower = negative & (ratios < 1.0 - clip_low)
    return Surrogate(losses, upper, lower, dual)
