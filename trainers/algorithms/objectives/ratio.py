"""Importance ratios of the policy over the policy before the update, per token, turn or sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from .settings import Ratio

_MAX_LOG_RATIO = 20.0


def log_ratios(logp: Tensor, old_logp: Tensor) -> Tensor:
    """Return log π - log π_old, clamped to ±20 so that its exponential remains finite; any shape."""
    return torch.clamp(logp - old_logp, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def importance_ratios(
    logp: Tensor,
    old_logp: Tensor,
    kind: Ratio = "token",
    *,
    rows: Tensor | None = None,
    turns: Tensor | None = None,
) -> Tensor:
    """Return the importance ratio in each token's loss.

    * "token": π / π_old of the token itself (PPO, GRPO).
    * "sequence": the geometric mean over the token's sequence, with the gradient of the mean (GSPO, Zheng et al.,
      arXiv:2507.18071, eq. 7).
    * "sequence-token": the same value, with the gradient of the token alone (GSPO-token, eq. 14).
    * "turn": the geometric mean over the token's turn.

    Args:
        logp: log π of the sampled tokens, shape [N], with gradient.
        old_logp: log π_old of the same tokens, shape [N].
        kind: Span of a ratio, see above.
        rows: Sequence of each token, numbered from 0, shape [N]; sequences must be complete.
        turns: Turn of each token, numbered from 0, shape [N]; turns must be complete.

    Returns:
        Ratios, shape [N].
    """
    change = log_ratios(logp, old_logp)
    if kind == "token":
        return torch.exp(change)
    unit = turns if kind == "turn" else rows
    assert unit is not None, f"ratio {kind!r} needs {'turns' if kind == 'turn' else 'rows'}"
    mean = segment_means(logp - old_logp, unit).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    if kind == "sequence-token":
        # The token's own factor has value 1 and contributes only its gradient.
        return torch.exp(mean.detach()) * torch.exp(logp - logp.detach())
    return torch.exp(mean)


def segment_means(values: Tensor, segments: Tensor) -> Tensor:
    """Return the mean of each value's segment; see `segment_sums`."""
    return segment_sums(values, segments) / segment_sums(torch.ones_like(values), segments)


def segment_sums(values: Tensor, segments: Tensor) -> Tensor:
    """Return the sum of each value's segment, broadcast to all its members.

    Args:
        values: Numbers, shape [N].
        segments: Segment of each value, numbered from 0, shape [N].

    Returns:
        Sums, shape [N].
    """
    size = int(segments.max()) + 1 if segments.numel() else 0
    sums = torch.zeros(size, dtype=values.dtype, device=values.device).index_add(0, segments, values)
    return sums[segments]
