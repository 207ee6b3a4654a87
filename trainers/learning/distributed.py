"""How processes share the learning: alone, each with all weights (DDP), with pieces of them (FSDP), or with pieces
of the optimizer (DeepSpeed ZeRO); decided by how the process was started, through Hugging Face Accelerate."""

from __future__ import annotations

import os
from typing import Any

import torch

from ...envs.errors import ConfigurationError


def make_accelerator(device: str | None, precision: str, trackers: tuple[str, ...] = (), folder: str = ".") -> Any:
    """Hugging Face Accelerate's view of this process: alone, or one of many if its launcher started it.

    Raises:
        ConfigurationError: it is set up in a way that this trainer cannot work in.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import InitProcessGroupKwargs

    if PartialState._shared_state and PartialState().num_processes == 1:
        # Settings of an earlier run in this process must not decide over this one.
        AcceleratorState._reset_state(reset_partial_state=True)
    on_cpu = device == "cpu" or not torch.accelerator.is_available()
    with_zero, sharded = _asked("ACCELERATE_USE_DEEPSPEED"), _asked("ACCELERATE_USE_FSDP")
    if sharded:
        _check_sharding()
    options: dict[str, Any] = {}
    if with_zero and on_cpu:  # Accelerate's mode for CPUs would leave DeepSpeed out
        options["kwargs_handlers"] = [InitProcessGroupKwargs(backend="gloo")]
    try:
        accelerator = Accelerator(
            cpu=on_cpu and not with_zero,
            # DeepSpeed would put the weights themselves into 16 bits; see `_prepare_zero`.
            mixed_precision="bf16" if precision == "bfloat16" and not with_zero else "no",
            log_with=list(trackers) or None,
            project_dir=folder,
            **options,
        )
        if sharded and accelerator.num_processes > 1:
            _prepare_sharding(accelerator)
    except (ValueError, ImportError) as error:
        raise ConfigurationError(f"Accelerate cannot be set up: {error}") from None
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != launched:
        raise ConfigurationError(
            f"{launched} processes were started, but Accelerate makes out {accelerator.num_processes}; start them "
            "with `accelerate launch`."
        )
    kind = str(accelerator.distributed_type.value)
    if kind == "DEEPSPEED":
        _prepare_zero(accelerator, precision)
    elif kind not in ("NO", "MULTI_GPU", "MULTI_CPU", "FSDP"):
        raise ConfigurationError(
            f"Accelerate is configured for {kind}; this trainer knows DDP, FSDP 2 and DeepSpeed ZeRO 2."
        )
    return accelerator


def _asked(variable: str) -> bool:
    """Whether Accelerate's launcher set this."""
    return os.environ.get(variable, "false").lower() == "true"


def _check_sharding() -> None:
    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise ConfigurationError("Accelerate is configured for FSDP 1; set fsdp_version: 2 in its configuration.")
    if _asked("FSDP_CPU_RAM_EFFICIENT_LOADING"):
        raise ConfigurationError(
            "every process loads the model, since every one samples; set fsdp_cpu_ram_efficient_loading: false in "
            "Accelerate's configuration."
        )


def _prepare_sharding(accelerator: Any) -> None:
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    state = accelerator.state
    if state.distributed_type == DistributedType.MULTI_CPU:
        # Accelerate shards over GPUs only, torch over CPUs as well.
        state.fsdp_plugin = FullyShardedDataParallelPlugin()
        if accelerator.mixed_precision != "no":
            state.fsdp_plugin.set_mixed_precision(accelerator.mixed_precision)
        state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP


def _prepare_zero(accelerator: Any, precision: str) -> None:
    """Leave to DeepSpeed what is spread, and to this trainer what is learnt: clipping, accumulation, precision."""
    config = accelerator.state.deepspeed_plugin.deepspeed_config
    zero = config.get("zero_optimization", {})
    if not 0 < int(zero.get("stage", 0)) <= 2:
        raise ConfigurationError(
            f"DeepSpeed is configured for ZeRO stage {zero.get('stage', 0)}; use zero_stage: 2, or FSDP to spread "
            "the weights themselves."
        )
    if zero.get("offload_optimizer", {}).get("device", "none") not in (None, "none"):
        raise ConfigurationError(
            "DeepSpeed is configured to offload the optimizer, which this trainer does not know; set "
            "offload_optimizer_device: none."
        )
    config["train_micro_batch_size_per_gpu"] = 1  # it only ever enters DeepSpeed's own reports
    config["gradient_accumulation_steps"] = 1
    config["gradient_clipping"] = 0.0
    if precision == "bfloat16":
        config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
