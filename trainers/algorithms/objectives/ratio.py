"""How far the policy has moved since it sampled, in importance ratios of tokens, turns or sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from .settings import Ratio

_LIMIT = 20.0


def log_ratios(logp: Tensor, old_logp: Tensor) -> Tensor:
    """log π - log π_old, cut to ±20 so that its exponential stays finite."""
    return torch.clamp(logp - old_logp, -_LIMIT, _LIMIT)


def importance_ratios(
    logp: Tensor,
    old_logp: Tensor,
    kind: Ratio = "token",
    *,
    rows: Tensor | None = None,
    turns: Tensor | None = None,
) -> Tensor:
    """The ratio that each token's loss is built on.

    * "token": π / π_old of the token itself (PPO, GRPO).
    * "sequence": the geometric mean over the token's sequence, one number with one gradient (GSPO, Zheng et al.,
      arXiv:2507.18071, eq. 7).
    * "sequence-token": the same value, but each token has its own gradient (GSPO-token, eq. 14).
    * "turn": the geometric mean over the token's turn.

    Args:
        logp: log π of the sampled tokens, shape [N]; carries the gradient.
        old_logp: log π_old, shape [N].
        kind: which.
        rows: sequence of each token, shape [N], small integers; whole sequences must be present.
        turns: turn of each token, shape [N], small integers; whole turns must be present.

    Returns:
        Ratios, shape [N].
    """
    change = log_ratios(logp, old_logp)
    if kind == "token":
        return torch.exp(change)
    unit = turns if kind == "turn" else rows
    assert unit is not None, f"the {kind} ratio needs to know which tokens belong together"
    mean = segment_means(logp - old_logp, unit).clamp(-_LIMIT, _LIMIT)
    if kind == "sequence-token":
        # The token's own factor is exactly 1, and only lends its gradient.
        return torch.exp(mean.detach()) * torch.exp(logp - logp.detach())
    return torch.exp(mean)


def segment_means(values: Tensor, segments: Tensor) -> Tensor:
    """The mean of each value's segment, at every place of it. Shapes [N]; segments are small integers ≥ 0."""
    return segment_sums(values, segments) / segment_sums(torch.ones_like(values), segments)


def segment_sums(values: Tensor, segments: Tensor) -> Tensor:
    """The sum of each value's segment, at every place of it. Shapes [N]; segments are small integers ≥ 0."""
    size = int(segments.max()) + 1 if segments.numel() else 0
    sum_by_group = torch.zeros(size, dtype=values.dtype, device=values.device).index_add(0, segments, values)
    return sum_by_group[segments]
