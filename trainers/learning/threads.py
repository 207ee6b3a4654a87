"""Number of CPU threads of PyTorch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

SMALL_MODEL = 10_000_000
"""Number of parameters below which several threads gain little; beside other work, they wait for each other."""


def limit_threads(model: nn.Module) -> None:
    """Let PyTorch use one thread in this process if the model is small and on a CPU.

    The environment variable OMP_NUM_THREADS takes precedence.

    Args:
        model: The model to train.
    """
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    size = sum(parameter.numel() for parameter in model.parameters())
    if on_cpu and size < SMALL_MODEL and not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(1)
