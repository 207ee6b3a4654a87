"""Sampler and trainer compute the same policy with other kernels: measure the difference, and correct for it."""

from __future__ import annotations

import torch
from torch import Tensor

from .ratio import log_ratios, segment_sums
from .settings import Mismatch


def sampler_weights(old_logp: Tensor, sampler_logp: Tensor, settings: Mismatch, rows: Tensor) -> Tensor:
    """Importance weights of the trainer's policy over the sampler's (truncated importance sampling).

    w = min(π_trainer / π_sampler, C), or with `excess="mask"` 0 where the ratio is above C.

    Args:
        old_logp: the trainer's log-probabilities of the sampled tokens before the update, shape [N].
        sampler_logp: those that the engine reported, shape [N].
        settings: C and its kind; with `cap` None all weights are 1.
        rows: sequence of each token, shape [N]; whole sequences must be present.

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
