"""Replacement of weights in vLLM's workers, in this process or in a server that was started with `WeightLoader`.

    vllm serve MODEL --worker-extension-cls arboretum.agents.engines.vllm_worker.WeightLoader

Importing this module imports neither vLLM nor torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ...envs.errors import ConfigurationError


class WeightLoader:
    """Extension of vLLM's worker, by which a server loads weights from a folder.

    A trainer calls the methods over HTTP, through `/collective_rpc` of a server in development mode. Arguments and
    results are plain data, and files are read as safetensors, so nothing is unpickled.
    """

    def arboretum_status(self) -> dict[str, str | None]:
        """Return the version of the weights (None until weights are loaded), the dtype and the `logprobs_mode`."""
        worker: Any = self
        return {
            "version": getattr(worker, "arboretum_version", None),
            "dtype": str(worker.model_config.dtype).removeprefix("torch."),
            "logprobs_mode": str(worker.model_config.logprobs_mode),
        }

    def arboretum_load(self, folder: str, version: str) -> dict[str, str | None]:
        """Replace the weights in place.

        Args:
            folder: Folder of safetensors files with the weights' names in the model's checkpoint.
            version: Version of the weights, for `arboretum_status`.

        Returns:
            `error`: Reason in one sentence why the weights were not loaded; None if they were.
        """
        worker: Any = self
        try:
            replace_weights(worker, read_weights(Path(folder)))
        except Exception as error:  # An exception would reach the trainer as a mere status 500.
            return {"error": f"{error}" if isinstance(error, ConfigurationError) else f"{error!r}"}
        worker.arboretum_version = version
        return {"error": None}


def read_weights(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the names and tensors in the safetensors files of a folder.

    Raises:
        ConfigurationError: There are none.
    """
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigurationError(f"there are no weights in {folder}; trainer and server must share this folder.")
    for path in files:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (the file is no mapping)
                yield name, file.get_tensor(name)


def replace_weights(worker: Any, tensors: Iterable[tuple[str, Any]]) -> None:
    """Replace weights of a worker's model in place.

    Args:
        worker: vLLM's worker.
        tensors: Names and values as in the model's checkpoint, consumed one by one. Weights that are not among
            them stay unchanged.

    Raises:
        ConfigurationError: The model has no weight of a name, or one of another shape. The weights before it have
            been replaced.
    """
    errors: list[BaseException] = []
    shapes = getattr(worker, "arboretum_shapes", None)
    if shapes is None:
        shapes = worker.arboretum_shapes = _checkpoint_shapes(worker.model_config.hf_config)

    def checked_tensors() -> Iterator[tuple[str, Any]]:
        # An exception within vLLM's loader would leave the model without weights, so end early instead.
        try:
            for name, tensor in tensors:
                _check_weight(shapes, name, tuple(tensor.shape))
                yield name, tensor.detach()
        except BaseException as error:
            errors.append(error)

    worker.reload_weights(weights_iterator=checked_tensors())
    _repack(worker.get_model())
    if errors:
        raise errors[0]


def _check_weight(shapes: dict[str, tuple[int, ...]], name: str, shape: tuple[int, ...]) -> None:
    expected = shapes.get(name)
    if expected is None and shapes:
        raise ConfigurationError(f"vLLM's model has no weight {name!r}; merge LoRA and remove wrappers.")
    if expected is not None and expected != shape:
        raise ConfigurationError(f"weight {name!r} has shape {shape}, but vLLM's model has {expected}.")


def _checkpoint_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's weights by name in transformers; empty if it lacks the architecture."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, AttributeError):
        return {}
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _repack(model: Any) -> None:
    """Renew the packed copies of weight matrices that vLLM keeps on CPUs.

    Reloading does not renew that of an output layer that is tied to the input embedding.
    """
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and weight is not None and weight.numel():
            module.quant_method.process_weights_after_loading(module)
