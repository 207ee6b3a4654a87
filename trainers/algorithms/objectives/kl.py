"""Estimators of the KL divergence from a reference policy (Schulman, "Approximating KL Divergence", 2020).

With d = log π - log π_ref at a token sampled from π:

    k1 = d        k2 = d² / 2        k3 = exp(-d) - 1 + d        abs = |d|

The expected values of k1 and k3 are KL(π ‖ π_ref). In a loss, only k2 has the gradient of that divergence (on
policy): the expected gradient of k1 is 0, and that of k3 belongs to the reverse divergence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....envs.errors import unknown_name
from .settings import ESTIMATORS, Estimator

_MAX_EXPONENT = 20.0
_MAX_ESTIMATE = 10.0


def kl_estimate(
    logp: Tensor, ref_logp: Tensor, estimator: Estimator = "k3", *, straight_through: bool = False
) -> Tensor:
    """Return the estimate of the divergence at each token.

    Args:
        logp: log π of the sampled tokens, any shape.
        ref_logp: log π_ref of the same tokens, same shape.
        estimator: Name of the estimator. k3 is clamped to ±10 and its exponent to ±20, as in verl and SkyRL.
        straight_through: Combine the estimator's value with the gradient of k2 (verl's "k3+").

    Returns:
        Estimates, of the shape of `logp`.

    Raises:
        ConfigurationError: The estimator is unknown.
    """
    d = logp - ref_logp
    if straight_through:
        half_square = 0.5 * d * d
        value = kl_estimate(logp.detach(), ref_logp.detach(), estimator)
        return half_square - half_square.detach() + value
    if estimator == "k1":
        return d
    if estimator == "abs":
        return d.abs()
    if estimator == "k2":
        return 0.5 * d * d
    if estimator == "k3":
        ratio = torch.exp(torch.clamp(-d, -_MAX_EXPONENT, _MAX_EXPONENT))
        return torch.clamp(ratio - 1.0 + d, -_MAX_ESTIMATE, _MAX_ESTIMATE)
    raise unknown_name("KL estimator", estimator, ESTIMATORS)
