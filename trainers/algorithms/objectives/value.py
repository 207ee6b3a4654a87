"""Loss of the critic."""

from __future__ import annotations

import torch
from torch import Tensor


def value_losses(
    values: Tensor, targets: Tensor, old_values: Tensor | None = None, clip: float | None = None
) -> Tensor:
    """Return PPO's clipped squared error of each value, ½ max((V - R)², (clip(V, V_old ± c) - R)²).

    Args:
        values: V, any shape, with gradient.
        targets: R, advantages + values of the rollout, same shape.
        old_values: V_old, values at the time of the rollout, same shape; required by `clip`.
        clip: c; 0.5 in verl, 0.2 in TRL and SkyRL. None uses the plain squared error.

    Returns:
        Losses, of the shape of `values`. Their sum weighted by `token_weights` is the critic's loss.
    """
    errors = (values - targets) ** 2
    if clip is not None:
        assert old_values is not None, "a clipped value loss needs the values of the rollout"
        clipped = torch.maximum(torch.minimum(values, old_values + clip), old_values - clip)
        errors = torch.maximum(errors, (clipped - targets) ** 2)
    return 0.5 * errors
