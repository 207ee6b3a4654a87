"""Engines that sample with the policy as it is now, though it is being learnt."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ...agents.engines.base import Engine
from ...agents.engines.transformers import TransformersEngine
from ...envs.errors import ConfigurationError
from ..config.settings import Hardware
from ..learning.sharding import gathered, merged, whole

if TYPE_CHECKING:
    from ..learning.optimizer import Descent


@dataclass
class Live:
    """An engine and how it keeps up with the weights.

    Attributes:
        engine: samples; reports log-probabilities of the distributions that tokens were drawn from.
        take: makes it sample with the weights as they are now; an act of all processes together.
        version: changes whenever the weights do; None where `take` costs nothing.
        precision: within it replies are sampled.
    """

    engine: Engine
    take: Callable[[], None]
    version: Callable[[], int] | None = None
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext
    _taken: int | None = field(default=None, init=False)

    def refresh(self) -> None:
        """Sample with the weights as they are now."""
        now = None if self.version is None else self.version()
        if now is None or now != self._taken:
            self.take()
        self._taken = now


def shared(
    causal: Any,
    tokenizer: Any,
    in_flight: int,
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Live:
    """Samples with the very model that learns, which every process holds whole.

    Args:
        causal: the model; used in place.
        tokenizer: its tokenizer.
        in_flight: replies sampled at once.
        precision: see `Live`.
    """
    engine = TransformersEngine(causal, tokenizer, max_batch=in_flight, logprobs_as_drawn=True, name="policy")
    return Live(engine, engine.invalidate, None, precision)


def live_engine(hardware: Hardware, descent: Descent, tokenizer: Any, load: Callable[[], Any], model: str) -> Live:
    """The engine of a run.

    Args:
        hardware: which, and in what precision.
        descent: what learns.
        tokenizer: of the model.
        load: loads the model once more, for where the one that learns lies in pieces.
        model: where vLLM finds it.

    Raises:
        ConfigurationError: the engine cannot be had.
    """
    causal = descent.policy.causal
    if hardware.engine == "vllm":
        return _served(hardware, descent, model)
    if not descent.in_pieces:
        return shared(causal, tokenizer, hardware.in_flight, descent.autocast)
    copy = load().requires_grad_(False)
    places = dict(copy.named_parameters())
    live = shared(copy, tokenizer, hardware.in_flight, descent.autocast)
    forget = live.take

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def take() -> None:
        gathered(descent.policy)
        for name, weight in causal.named_parameters():
            places[name].copy_(whole(weight))
        forget()

    live.take, live.version = take, lambda: descent.version
    return live


def _served(hardware: Hardware, descent: Descent, model: str) -> Live:
    from ...agents.engines.vllm import VLLMEngine

    if descent.world > 1:
        raise ConfigurationError(
            "the vLLM engine lives in the one process that learns; with several, set engine = transformers."
        )
    options: dict[str, Any] = {
        "dtype": hardware.precision,
        "logprobs_mode": "processed_logprobs",
        "max_num_seqs": hardware.in_flight,
    }
    if descent.accelerator.device.type == "cuda":
        options["gpu_memory_utilization"] = hardware.vllm_memory
    else:
        options["enforce_eager"] = True  # compiling takes a minute on a CPU
    engine = VLLMEngine(model, **options)
    causal = descent.policy.causal

    def take() -> None:
        engine.update_weights(merged(causal))

    return Live(engine, take, lambda: descent.version)


__all__ = ["Live", "live_engine", "shared"]
