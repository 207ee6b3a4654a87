"""Engines that sample with the weights of the policy in training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...agents.engines.base import Engine
from ...agents.engines.local.load import rescaling_length
from ...agents.engines.transformers import TransformersEngine
from ..config.settings import HardwareConfig
from ..learning.cast_weights import autocast_with_cast_weights
from ..learning.optimizer import PolicyOptimizer
from ..learning.sharding import full_tensor, merged_weights, reshard

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass
class PolicyEngine:
    """Engine that samples with the current policy.

    Attributes:
        engine: Engine; reports log-probabilities under the distributions that tokens were sampled from.
        load_weights: Makes the engine use the current weights; a collective operation of all processes.
        version: Returns the version of the weights; None if `load_weights` costs nothing and always runs.
        precision: Returns the context in which the engine samples.
        check: Raises `Stop` if the engine has not sampled with the weights that it loaded last. None if it cannot
            lose them.
    """

    engine: Engine
    load_weights: Callable[[], None]
    version: Callable[[], int] | None = None
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext
    check: Callable[[], None] | None = None
    _loaded: int | None = field(default=None, init=False)

    def refresh(self) -> None:
        """Load the weights into the engine if they have changed since the last call."""
        version = None if self.version is None else self.version()
        if version is None or version != self._loaded:
            self.load_weights()
        self._loaded = version

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Context in which the engine samples with the current weights."""
        self.refresh()
        with self.precision():
            yield
        if self.check is not None:
            self.check()


def model_engine(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    in_flight: int,
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> PolicyEngine:
    """Return an engine that samples with the trained model itself, for models that are not sharded.

    Args:
        model: Model; shared with the trainer, not copied.
        tokenizer: Tokenizer of the model.
        in_flight: Replies to sample at the same time.
        precision: Context of autocast, in which the engine samples.
    """
    # Longer sequences would be scored at other positions than sampled, since the trainer pads rows to one length.
    context = rescaling_length(model.config)
    engine = TransformersEngine(
        model, tokenizer, max_batch=in_flight, processed_logprobs=True, name="policy", context=context
    )
    return PolicyEngine(engine, engine.invalidate, None, partial(autocast_with_cast_weights, model, precision))


def make_policy_engine(
    hardware: HardwareConfig,
    optimizer: PolicyOptimizer,
    tokenizer: PreTrainedTokenizerBase,
    load_copy: Callable[[], PreTrainedModel],
    source: str,
    folder: Path,
) -> PolicyEngine:
    """Return the sampling engine of a run.

    Args:
        hardware: Kind of engine and precision.
        optimizer: Policy in training.
        tokenizer: Tokenizer of the model.
        load_copy: Loads the model once more; called if the one in training is sharded.
        source: Folder or name of the model, which vLLM loads.
        folder: Folder of the run, from which vLLM's servers take weights.

    Raises:
        ConfigurationError: The engine cannot be used.
    """
    if hardware.engine == "vllm":
        return _vllm_engine(hardware, optimizer, source)
    if hardware.engine == "vllm-server":
        from .policy_servers import server_engine

        return server_engine(hardware, optimizer, tokenizer, folder)
    model = optimizer.policy.model
    if not optimizer.is_sharded:
        return model_engine(model, tokenizer, hardware.in_flight, optimizer.autocast)
    copy = load_copy().requires_grad_(False)
    targets = dict(copy.named_parameters())
    engine = model_engine(copy, tokenizer, hardware.in_flight, optimizer.autocast)
    invalidate = engine.load_weights

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def load_weights() -> None:
        reshard(optimizer.policy)
        for name, weight in model.named_parameters():
            targets[name].copy_(full_tensor(weight))
        invalidate()

    engine.load_weights, engine.version = load_weights, lambda: optimizer.version
    return engine


def _vllm_engine(hardware: HardwareConfig, optimizer: PolicyOptimizer, source: str) -> PolicyEngine:
    from ...agents.engines.vllm import VLLMEngine

    options: dict[str, Any] = {
        "dtype": hardware.precision,
        "logprobs_mode": "processed_logprobs",
        "max_num_seqs": hardware.in_flight,
        "gpu_memory_utilization": hardware.vllm_memory,
    }
    if optimizer.world_size > 1:
        options["distributed_executor_backend"] = "external_launcher"  # an engine of its own in every process
    if optimizer.accelerator.device.type == "cpu":
        options["enforce_eager"] = True  # Compilation takes a minute on a CPU.
        options["enable_chunked_prefill"] = False  # On CPUs it fails for requests with a seed.
        # The processes of a machine share its memory; GPUs are their own.
        options["gpu_memory_utilization"] /= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    model = optimizer.policy.model
    engine = VLLMEngine(source, context=rescaling_length(model.config), **options)

    def load_weights() -> None:
        weights = merged_weights(model)
        try:
            engine.update_weights(weights)
        finally:
            for _ in weights:  # Gathering sharded weights takes all processes, even if this one has failed.
                pass

    return PolicyEngine(engine, load_weights, lambda: optimizer.version)
