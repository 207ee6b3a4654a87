"""The critic's loss."""

from __future__ import annotations

import torch
from torch import Tensor


def value_losses(
    values: Tensor, targets: Tensor, old_values: Tensor | None = None, clip: float | None = None
) -> Tensor:
    """½ max((V - R)², (clip(V, V_old ± c) - R)²): PPO's clipped squared error.

    Args:
        values: V, any shape; carries the gradient.
        targets: R, the advantages + values of the rollout.
        old_values: V_old, the values at the time of the rollout; needed with `clip`.
        clip: c: 0.5 in verl, 0.2 in TRL and SkyRL; None for the plain squared error.

    Returns:
        Losses, of the shape of `values`; weigh them with `token_weights` and add them up.
    """
    errors = (values - targets) ** 2
    if clip is not None:
        assert old_values is not None, "a clipped value loss needs the values of the rollout"
        near = torch.maximum(torch.minimum(values, old_values + clip), old_values - clip)
        errors = torch.maximum(errors, (near - targets) ** 2)
    return 0.5 * errors
