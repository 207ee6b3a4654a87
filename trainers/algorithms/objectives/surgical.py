"""T-STAR's surgical loss: prefer the rectified thought to the one that failed (arXiv:2604.07165, eq. 10-12)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def surgical_margins(logp_rect: Tensor, ref_rect: Tensor, logp_neg: Tensor, ref_neg: Tensor) -> Tensor:
    """Δ = [log π(z_rect) - log π_ref(z_rect)] - [log π(z⁻) - log π_ref(z⁻)] of each pair (eq. 12).

    Args:
        logp_rect, ref_rect: summed log-probabilities of the rectified thought's tokens, shape [pairs].
        logp_neg, ref_neg: the same of the thought that went wrong.
    """
    return (logp_rect - ref_rect) - (logp_neg - ref_neg)


def surgical_losses(margins: Tensor, beta: float = 0.1) -> Tensor:
    """-log σ(β Δ) of each pair (eq. 11); log 2 where the policy is the reference."""
    return -logsigmoid(beta * margins)


def total_loss(policy: Tensor, surgical: Tensor, weight: float = 0.15) -> Tensor:
    """L = L_policy + λ · mean of the surgical losses (eq. 10); L_policy alone where there are no pairs."""
    return policy + weight * surgical.mean() if surgical.numel() else policy


def averaged(reference: Tensor, policy: Tensor, decay: float = 0.95) -> Tensor:
    """π_ref ← α π_ref + (1 - α) π, weight by weight, after each update (alg. 1, line 11)."""
    return torch.lerp(policy, reference, decay)
