"""Correction for sampler mismatch.

Sampler and trainer compute the same policy with different kernels or precision, so their probabilities differ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .ratio import log_ratios, segment_sums
from .settings import Mismatch


def sampler_weights(old_logp: Tensor, sampler_logp: Tensor, settings: Mismatch, rows: Tensor) -> Tensor:
    """Return importance weights of the trainer's policy over the sampler's (truncated importance sampling).

    w = min(π_trainer / π_sampler, C); with `excess="mask"`, w = 0 if the ratio exceeds C.

    Args:
        old_logp: Log-probabilities of the sampled tokens under the trainer's policy before the update, shape [N].
        sampler_logp: Log-probabilities of the same tokens as reported by the engine, shape [N].
        settings: C and its use; with `cap=None` all weights are 1.
        rows: Sequence of each token, numbered from 0, shape [N]; sequences must be complete.

    Returns:
        Weights without gradient, shape [N].
    """
    with torch.no_grad():
        if settings.cap is None:
            return torch.ones_like(old_logp)
        change = log_ratios(old_logp, sampler_logp)
        if settings.level == "sequence":
            change = segment_sums(old_logp - sampler_logp, rows).clamp(-20.0, 20.0)
        weights = torch.exp(change)
        if settings.excess == "mask":
            return torch.where(weights > settings.cap, torch.zeros_like(weights), weights)
        return weights.clamp(max=settings.cap)
