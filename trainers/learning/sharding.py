"""What is learnt, whole, wherever its pieces lie.

Under FSDP every process holds a piece of each weight, a `DTensor`. To gather one is an act of all processes
together, so all must ask for the same ones in the same order. Without FSDP a weight is its own whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ...envs.errors import ConfigurationError


def whole(tensor: Tensor) -> Tensor:
    """A weight with all its pieces, without gradient; itself where it is not in pieces."""
    kept = tensor.detach()
    return kept.full_tensor() if hasattr(kept, "full_tensor") else kept


@torch.no_grad()  # type: ignore[untyped-decorator]
def put(place: Tensor, value: Tensor) -> None:
    """Overwrite a weight, or this process's piece of it, with a whole value that all processes have."""
    place.copy_(_pieces_like(place, value))


def gathered(module: Any) -> None:
    """Prepare to gather: a module that FSDP put together for its last forward pass goes back to its pieces."""
    for part in module.modules():
        if hasattr(part, "reshard"):
            part.reshard()


def whole_state(module: Any) -> dict[str, Tensor]:
    """`module.state_dict()`, whole; weights with two names remain one tensor."""
    gathered(module)
    found: dict[int, Tensor] = {}
    state = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in found:
            found[id(tensor)] = whole(tensor)
        state[name] = found[id(tensor)]
    return state


def put_state(module: Any, state: Mapping[str, Tensor]) -> None:
    """Overwrite weights by name; those that `state` does not name stay."""
    gathered(module)
    places = module.state_dict(keep_vars=True)
    for name, value in state.items():
        put(places[name], value)


def merged(causal: Any) -> Iterator[tuple[str, Tensor]]:
    """The weights of a causal language model, whole, one by one, under their names in a checkpoint; low-rank
    adapters are added to the weights that they adapt.

    Raises:
        ConfigurationError: an adapter is of another kind than peft's of linear layers.
    """
    gathered(causal)
    for name, weight in causal.named_parameters():
        if ".lora_" in name:
            continue
        path, found, leaf = name.rpartition(".base_layer.")
        if not found:
            yield name, whole(weight)
        elif leaf != "weight":
            yield f"{path}.{leaf}", whole(weight)
        else:
            layer = causal.get_submodule(path)
            yield f"{path}.{leaf}", whole(weight) + _adaptation(layer, path)


def _adaptation(layer: Any, path: str) -> Tensor:
    """What the adapters of a linear layer add to its weight."""
    if not layer.lora_A:
        raise ConfigurationError(f"lora.targets: {path} is no linear layer, and cannot be merged.")
    change: Any = 0.0
    for adapter, scale in layer.scaling.items():
        product = whole(layer.lora_B[adapter].weight) @ whole(layer.lora_A[adapter].weight)
        change = change + scale * (product.T if layer.fan_in_fan_out else product)
    return change


# ---------------------------------------------------------------------- the optimizer


def optimizer_state(model: Any, optimizer: Any) -> dict[str, dict[str, Tensor]]:
    """What a torch optimizer knows of each parameter, whole, by the parameter's name.

    Without settings such as the learning rate, and without a word of processes: any number of them can load it.
    """
    gathered(model)
    return {
        name: {key: whole(value).cpu() for key, value in optimizer.state[parameter].items()}
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
    }


def put_optimizer_state(model: Any, optimizer: Any, state: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Continue from an `optimizer_state`."""
    gathered(model)
    optimizer.state.clear()
    for name, parameter in model.named_parameters():
        if name in state:
            optimizer.state[parameter] = {
                key: _pieces_like(parameter, value) if value.shape == parameter.shape else value.clone()
                for key, value in state[name].items()
            }


def _pieces_like(place: Tensor, value: Tensor) -> Tensor:
    """A copy of a value that lies where, and in pieces as, another tensor of its shape does."""
    value = value.to(place.device, copy=True)
    if not hasattr(place, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    # Every process cuts its piece out of a whole that it has, so there is nothing to send.
    return distribute_tensor(value, place.device_mesh, place.placements, src_data_rank=None)
