"""T-STAR's surgical loss: prefer the rectified thought to the failed one (arXiv:2604.07165, eq. 10-12).

The tree sampler and T-STAR recipe of the next milestone use this module; until then only tests do.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def surgical_margins(logp_rect: Tensor, ref_rect: Tensor, logp_neg: Tensor, ref_neg: Tensor) -> Tensor:
    """Return Δ = [log π(z_rect) - log π_ref(z_rect)] - [log π(z⁻) - log π_ref(z⁻)] of each pair (eq. 12).

    Args:
        logp_rect, ref_rect: Summed log-probabilities of the rectified thought's tokens under the policy and the
            reference, shape [pairs].
        logp_neg, ref_neg: Summed log-probabilities of the failed thought's tokens, shape [pairs].
    """
    return (logp_rect - ref_rect) - (logp_neg - ref_neg)


def surgical_losses(margins: Tensor, beta: float = 0.1) -> Tensor:
    """Return -log σ(β Δ) of each pair (eq. 11); log 2 if policy and reference are equal.

    Args:
        margins: Δ, shape [pairs].
        beta: β.
    """
    return -logsigmoid(beta * margins)


def total_loss(policy: Tensor, surgical: Tensor, weight: float = 0.15) -> Tensor:
    """Return L = L_policy + λ · mean of the surgical losses (eq. 10); L_policy if there are no pairs.

    Args:
        policy: L_policy, a scalar.
        surgical: Surgical loss of each pair, shape [pairs].
        weight: λ.
    """
    return policy + weight * surgical.mean() if surgical.numel() else policy


def update_reference(reference: Tensor, policy: Tensor, decay: float = 0.95) -> Tensor:
    """Return π_ref ← α π_ref + (1 - α) π, the moving average after each update (alg. 1, line 11).

    Args:
        reference: Weight of the reference policy, any shape.
        policy: Weight of the policy, same shape.
        decay: α.
    """
    return torch.lerp(policy, reference, decay)
