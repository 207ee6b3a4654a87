"""Weights of linear layers cast once for the many forward passes of decoding under autocast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@contextmanager
def autocast_with_cast_weights(
    model: nn.Module, autocast: Callable[[], AbstractContextManager[Any]]
) -> Iterator[None]:
    """Context of autocast in which the linear layers of a model have weights in the lower precision already.

    Autocast caches cast weights neither in inference mode nor of frozen layers. A decoding step uses all weights
    for a few tokens, so that casting them takes as long as the rest of the step. The results are the same, bit for
    bit. The weights must not change within the context; at its end the memory of the cast ones is freed.

    Args:
        model: Model that computes without gradients.
        autocast: Returns the context of autocast; if it is disabled there, nothing is cast.
    """
    with autocast():
        layers = []
        try:
            for layer in model.modules():
                # A subclass, or a layer with a forward of its own, may compute something else.
                if type(layer) is nn.Linear and "forward" not in vars(layer):
                    dtype = _lower_precision(layer.weight)
                    if dtype is not None:
                        layer.forward = _cast_forward(layer, dtype)
                        layers.append(layer)
            yield
        finally:
            for layer in layers:
                del layer.forward


def _lower_precision(weight: Tensor) -> torch.dtype | None:
    """Return the data type to which autocast casts a weight; None if it leaves the weight as it is."""
    device = weight.device.type
    if weight.dtype != torch.float32 or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def _cast_forward(layer: nn.Linear, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Return the forward function of a linear layer with cast weights; autocast casts its input."""
    weight = layer.weight.detach().to(dtype)
    bias = None if layer.bias is None else layer.bias.detach().to(dtype)

    def forward(states: Tensor) -> Tensor:
        return functional.linear(states, weight, bias)

    return forward
