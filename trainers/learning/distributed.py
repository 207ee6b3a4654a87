"""Distributed training through Hugging Face Accelerate: one process, DDP, FSDP 2 or DeepSpeed ZeRO 2.

The launcher that started the process decides which of them it is.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ...envs.errors import ConfigurationError
from ..algorithms.recipe import Critic, Optimization
from .optimizer import PolicyOptimizer
from .policy import Policy
from .zero_optimizer import ZeroPolicyOptimizer

if TYPE_CHECKING:
    from accelerate import Accelerator

_log = logging.getLogger(__name__)

T = TypeVar("T")


def any_process(accelerator: Accelerator, flag: bool) -> bool:
    """Return True if the flag is True in any process; a collective operation."""
    return any(gather_lists(accelerator, [flag]))


def computes_bfloat16() -> bool:
    """Return True if this processor has instructions for bfloat16, or for the vectors that emulate it."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def make_accelerator(
    device: str | None, precision: str, trackers: tuple[str, ...] = (), folder: str = "."
) -> Accelerator:
    """Return Hugging Face Accelerate's view of this process: the only one, or one of several under its launcher.

    Args:
        device: "cpu", or None for the best available device.
        precision: "float32" or "bfloat16".
        trackers: Names of Accelerate's trackers.
        folder: Folder of the trackers' files.

    Raises:
        ConfigurationError: Accelerate is configured in a way that this trainer does not support.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import InitProcessGroupKwargs

    if PartialState._shared_state and PartialState().num_processes == 1:
        # Accelerate keeps the settings of an earlier run in the same process.
        AcceleratorState._reset_state(reset_partial_state=True)
    # Accelerate imports an installed DeepSpeed even if it is not used, which then warns that there is no GPU.
    logging.getLogger("DeepSpeed").addFilter(_is_not_on_devices)
    on_cpu = device == "cpu" or not torch.accelerator.is_available()
    if on_cpu and precision == "bfloat16" and not computes_bfloat16():
        _log.warning(
            "This processor has no instructions for bfloat16, and computes it several times as slowly as float32;"
            " use --precision float32."
        )
    with_zero, sharded = _is_set("ACCELERATE_USE_DEEPSPEED"), _is_set("ACCELERATE_USE_FSDP")
    if sharded:
        _check_sharding()
    options: dict[str, Any] = {}
    if with_zero and on_cpu:  # Accelerate's CPU mode would disable DeepSpeed.
        options["kwargs_handlers"] = [InitProcessGroupKwargs(backend="gloo")]
    try:
        accelerator = Accelerator(
            cpu=on_cpu and not with_zero,
            # DeepSpeed would store the weights in 16 bits; see `_prepare_zero`.
            mixed_precision="bf16" if precision == "bfloat16" and not with_zero else "no",
            log_with=list(trackers) or None,
            project_dir=folder,
            **options,
        )
        if sharded and accelerator.num_processes > 1:
            _prepare_sharding(accelerator)
    except (ValueError, ImportError) as error:
        raise ConfigurationError(f"Accelerate cannot be configured: {error}") from None
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != launched:
        raise ConfigurationError(
            f"{launched} processes were started, but Accelerate counts {accelerator.num_processes}; start them "
            "with `accelerate launch`."
        )
    kind = str(accelerator.distributed_type.value)
    if kind == "DEEPSPEED":
        _prepare_zero(accelerator, precision)
    elif kind not in ("NO", "MULTI_GPU", "MULTI_CPU", "FSDP"):
        raise ConfigurationError(
            f"Accelerate is configured for {kind}; this trainer supports DDP, FSDP 2 and DeepSpeed ZeRO 2."
        )
    return accelerator


def _is_not_on_devices(record: logging.LogRecord) -> bool:
    """Return False for the message in which DeepSpeed reports that it found no GPU."""
    return record.funcName != "get_accelerator"


def _is_set(variable: str) -> bool:
    """Return True if Accelerate's launcher set a variable to true."""
    return os.environ.get(variable, "false").lower() == "true"


def _check_sharding() -> None:
    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise ConfigurationError("Accelerate is configured for FSDP 1; set fsdp_version: 2 in its configuration.")
    if _is_set("FSDP_CPU_RAM_EFFICIENT_LOADING"):
        raise ConfigurationError(
            "every process must load the model, because every process samples; set "
            "fsdp_cpu_ram_efficient_loading: false in Accelerate's configuration."
        )


def _prepare_sharding(accelerator: Accelerator) -> None:
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    state = accelerator.state
    if state.distributed_type == DistributedType.MULTI_CPU:
        # Accelerate enables FSDP for GPUs only; torch shards over CPUs as well.
        state.fsdp_plugin = FullyShardedDataParallelPlugin()
        if accelerator.mixed_precision != "no":
            state.fsdp_plugin.set_mixed_precision(accelerator.mixed_precision)
        state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP


def _prepare_zero(accelerator: Accelerator, precision: str) -> None:
    """Leave sharding to DeepSpeed, and clipping, accumulation and precision to this trainer."""
    config = accelerator.state.deepspeed_plugin.deepspeed_config
    zero = config.get("zero_optimization", {})
    if not 0 < int(zero.get("stage", 0)) <= 2:
        raise ConfigurationError(
            f"DeepSpeed is configured for ZeRO stage {zero.get('stage', 0)}; use zero_stage: 2, or FSDP to shard "
            "the weights."
        )
    if zero.get("offload_optimizer", {}).get("device", "none") not in (None, "none"):
        raise ConfigurationError(
            "DeepSpeed is configured to offload the optimizer, which this trainer does not support; set "
            "offload_optimizer_device: none."
        )
    config["train_micro_batch_size_per_gpu"] = 1  # Only DeepSpeed's own reports use it.
    config["gradient_accumulation_steps"] = 1
    config["gradient_clipping"] = 0.0
    if precision == "bfloat16":
        config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}


def gather_lists(accelerator: Accelerator, own: list[T]) -> list[T]:
    """Return the items of all processes, in order of rank; a collective operation of all processes."""
    if accelerator.num_processes == 1:
        return own
    from accelerate.utils import gather_object

    gathered: list[T] = gather_object(own)
    return gathered


def make_optimizer(
    accelerator: Accelerator, policy: Policy, optimization: Optimization, critic: Critic | None = None
) -> PolicyOptimizer:
    """Make the optimizer for the accelerator's kind of distributed training; see `PolicyOptimizer`."""
    if str(accelerator.distributed_type.value) == "DEEPSPEED":
        return ZeroPolicyOptimizer(accelerator, policy, optimization, critic)
    return PolicyOptimizer(accelerator, policy, optimization, critic)
