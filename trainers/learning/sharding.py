"""Full tensors of parameters that may be sharded over processes.

Under FSDP every process holds a shard of each parameter, a `DTensor`. Gathering one is a collective operation, so
all processes must request the same parameters in the same order. Without FSDP a parameter is its own full tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...envs.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from transformers import PreTrainedModel


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the unsharded, detached tensor; the tensor itself where it is not sharded."""
    detached = tensor.detach()
    return detached.full_tensor() if hasattr(detached, "full_tensor") else detached


@torch.no_grad()  # type: ignore[untyped-decorator]
def assign(target: Tensor, value: Tensor) -> None:
    """Overwrite a parameter, or this process's shard of it, with a full tensor that every process has."""
    target.copy_(_shard_like(target, value))


def reshard(module: nn.Module) -> None:
    """Reshard parameters that FSDP left unsharded after the last forward pass."""
    for part in module.modules():
        if hasattr(part, "reshard"):
            part.reshard()


def full_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """Return `module.state_dict()` with full tensors; tied weights remain one tensor."""
    reshard(module)
    gathered: dict[int, Tensor] = {}
    state = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in gathered:
            gathered[id(tensor)] = full_tensor(tensor)
        state[name] = gathered[id(tensor)]
    return state


def load_full_state_dict(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Overwrite parameters by name; parameters that `state` omits keep their values."""
    reshard(module)
    targets = module.state_dict(keep_vars=True)
    for name, value in state.items():
        assign(targets[name], value)


def merged_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield the full weights of a causal language model under their checkpoint names, LoRA adapters merged.

    Raises:
        ConfigurationError: an adapter wraps something other than a linear layer.
    """
    reshard(model)
    for name, weight in model.named_parameters():
        if ".lora_" in name:
            continue
        path, found, leaf = name.rpartition(".base_layer.")
        if not found:
            yield name, full_tensor(weight)
        elif leaf != "weight":
            yield f"{path}.{leaf}", full_tensor(weight)
        else:
            layer = model.get_submodule(path)
            yield f"{path}.{leaf}", full_tensor(weight) + _adapter_delta(layer, path)


def _adapter_delta(layer: Any, path: str) -> Tensor:
    """Return the sum of `scale · B A` over the adapters of a linear layer, in the layout of its weight."""
    if not layer.lora_A:
        raise ConfigurationError(f"lora.targets: {path} is not a linear layer, so its adapter cannot be merged.")
    delta: Any = 0.0
    for adapter, scale in layer.scaling.items():
        product = full_tensor(layer.lora_B[adapter].weight) @ full_tensor(layer.lora_A[adapter].weight)
        delta = delta + scale * (product.T if layer.fan_in_fan_out else product)
    return delta


# ---------------------------------------------------------------------- optimizer state


def full_optimizer_state(model: nn.Module, optimizer: Optimizer) -> dict[str, dict[str, Tensor]]:
    """Return the optimizer state of every parameter, unsharded, by parameter name.

    Hyper-parameters such as the learning rate are left out, and nothing depends on the number of processes, so any
    number of them can load the result.
    """
    reshard(model)
    return {
        name: {key: full_tensor(value).cpu() for key, value in optimizer.state[parameter].items()}
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
    }


def load_full_optimizer_state(
    model: nn.Module, optimizer: Optimizer, state: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Load a `full_optimizer_state`."""
    reshard(model)
    optimizer.state.clear()
    for name, parameter in model.named_parameters():
        if name in state:
            optimizer.state[parameter] = {
                key: _shard_like(parameter, value) if value.shape == parameter.shape else value.clone()
                for key, value in state[name].items()
            }


def _shard_like(target: Any, value: Tensor) -> Tensor:
    """Copy a full tensor to the device of `target`, sharded as `target` is."""
    value = value.to(target.device, copy=True)
    if not hasattr(target, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    # Every process cuts its shard from its own full copy, so nothing is sent.
    return distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
