"""vLLM in this process: sampling beside a trainer, with weights that can be updated in place."""

from __future__ import annotations

import gc
import itertools
import math
import os
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ...envs.errors import ConfigurationError
from ..base import Stop
from ..tokens.templates import turn_end_ids
from .base import Completion, Engine, Finish, Request, Usage
from .shipped_models import model_source


class VLLMEngine(Engine):
    """A model in this process, served by vLLM: requests of many conversations share every forward pass.

    Requests join and leave the running batch one by one; `collect` returns as soon as any is answered. What a
    conversation has in common with earlier ones, its own last turn above all, is not computed again (prefix
    cache); `Usage.cached_tokens` tells how much that was.

    Token ids are what was sampled; log-probabilities are those at temperature 1 of the whole vocabulary, or with
    `logprobs_mode="processed_logprobs"` those of the distribution that a token was drawn from. A reply whose
    log-probabilities are not numbers is refused: it comes back with finish "error".

    Args:
        model: a model's folder, its name on the Hugging Face hub, or "seed" for the one that is shipped.
        context: longest conversation in tokens; default: the model's own.
        **options: further arguments of `vllm.LLM`, such as `dtype`, `gpu_memory_utilization`, `enforce_eager`,
            `tensor_parallel_size`, `tokenizer`, `trust_remote_code`.

    Raises:
        ConfigurationError: vLLM is not installed, or cannot run the model.
    """

    def __init__(self, model: str, *, context: int | None = None, **options: Any) -> None:
        options = {
            "enable_prefix_caching": True,
            "disable_log_stats": True,
            "logprobs_mode": "raw_logprobs",
            "max_model_len": context,
            **options,
        }
        with _quiet_in_process(), _isolated_rng():
            try:
                from vllm import LLM
            except ImportError as error:
                raise ConfigurationError(
                    f'the vllm engine needs the extra "vllm" ({error}): pip install "arboretum[vllm]".'
                ) from None
            try:
                self._llm: Any = LLM(str(model_source(model)), **options)
            except (OSError, ValueError, RuntimeError, TypeError) as error:
                text = " ".join(str(error).split())[:400]
                raise ConfigurationError(f"vLLM cannot run {model!r}: {text}") from error
        self.name = f"vllm:{model}"
        self.tokenizer = self._llm.get_tokenizer()
        self.context = int(self._engine.model_config.max_model_len)
        self.end_ids: set[int] = turn_end_ids(self.tokenizer)
        self.usage = Usage()
        self._ids = itertools.count()
        self._open: dict[str, str] = {}  # request ids by conversation
        self._asked: dict[str, str] = {}  # conversations by request id
        self._early: list[tuple[str, Completion]] = []
        self._shapes: dict[str, tuple[int, ...]] | None = None

    @property
    def _engine(self) -> Any:
        if self._llm is None:
            raise RuntimeError("the engine is closed.")
        return self._llm.llm_engine

    # ------------------------------------------------------------------ the engine's interface

    def submit(self, request: Request) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        engine = self._engine
        if request.prompt_ids is None:
            raise ConfigurationError(f"{self.name} takes tokens, but the request has no prompt_ids.")
        if request.conversation in self._open:
            raise RuntimeError(f"conversation {request.conversation!r} has a request under way already.")
        sampling = request.sampling
        name = f"{next(self._ids)}"
        if len(request.prompt_ids) >= (self.context or math.inf):
            self._open[request.conversation] = name
            self._early.append((request.conversation, Completion("", "length", [], [])))
            return
        try:
            parameters = SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                max_tokens=sampling.max_tokens,
                stop=list(sampling.stop),
                include_stop_str_in_output=True,
                stop_token_ids=sorted(self.end_ids),
                seed=request.seed % 2**63 if sampling.temperature > 0 else None,
                logprobs=0,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            (prompt,) = engine.renderer.render_cmpl([{"prompt_token_ids": list(request.prompt_ids)}])
            engine.add_request(name, prompt, parameters)
        except Exception as error:
            raise ConfigurationError(f"{self.name} cannot take the request: {error}") from error
        self._open[request.conversation] = name
        self._asked[name] = request.conversation

    def collect(self) -> list[tuple[str, Completion]]:
        engine = self._engine
        if not self._open:
            raise RuntimeError("nothing was submitted.")
        ready, self._early = self._early, []
        while not ready:
            if not engine.has_unfinished_requests():
                raise Stop(f"{self.name} lost {len(self._open)} requests.")
            try:
                outputs = engine.step()
            except Exception as error:
                raise Stop(f"{self.name} failed: {type(error).__name__}: {error}") from error
            for output in outputs:
                conversation = self._asked.pop(output.request_id, None)
                if conversation is not None and output.finished:
                    completion = self._read(output)
                    self.usage.add(completion.usage)
                    ready.append((conversation, completion))
        for conversation, _ in ready:
            del self._open[conversation]
        return ready

    def release(self, conversation: str) -> None:
        name = self._open.pop(conversation, None)
        if name is None or self._llm is None:
            return
        self._early = [item for item in self._early if item[0] != conversation]
        if self._asked.pop(name, None) is not None:
            self._engine.abort_request([name])

    def close(self) -> None:
        if self._llm is None:
            return
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self._engine.engine_core.shutdown()
        self._llm = None
        self._open.clear()
        self._asked.clear()
        gc.collect()
        cleanup_dist_env_and_memory()

    def _read(self, output: Any) -> Completion:
        reply = output.outputs[0]
        token_ids = list(reply.token_ids)
        logprobs = [float(step[token].logprob) for token, step in zip(token_ids, reply.logprobs, strict=True)]
        usage = Usage(
            prompt_tokens=len(output.prompt_token_ids),
            cached_tokens=output.num_cached_tokens or 0,
            completion_tokens=len(token_ids),
        )
        if reply.finish_reason in ("error", "abort"):
            return Completion("", "error", usage=usage, error=f"vLLM broke off ({reply.finish_reason}).")
        text = without_end(reply.text, token_ids, self)
        finish: Finish = "length" if reply.finish_reason == "length" else "stop"
        return checked_logprobs(token_ids, logprobs, usage) or Completion(text, finish, token_ids, logprobs, usage)

    # ------------------------------------------------------------------ training

    def update_weights(self, tensors: Iterable[tuple[str, Any]]) -> None:
        """Sample from these weights from now on; what was cached of earlier ones is forgotten.

        Args:
            tensors: names and values as in the model's checkpoint (`model.named_parameters()` of the Hugging Face
                model, LoRA merged), taken one by one; on any device, cast to the engine's type. Weights that are
                not among them stay as they are.

        Raises:
            RuntimeError: requests are under way.
            ConfigurationError: a name or a shape is not the model's. Those before it are in effect.
        """
        if self._open:
            raise RuntimeError("weights cannot change while requests are under way; collect or release them.")
        fault: list[BaseException] = []

        def checked() -> Iterator[tuple[str, Any]]:
            # An exception inside of vLLM's loading would leave the model without weights: end early instead.
            try:
                for name, tensor in tensors:
                    self._check(name, tuple(tensor.shape))
                    yield name, tensor.detach()
            except BaseException as error:
                fault.append(error)

        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": checked()})
        self._llm.apply_model(_repack)
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not let go of the prefix cache of the old weights.")
        if fault:
            raise fault[0]

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        if self._shapes is None:
            self._shapes = self._model_shapes()
        expected = self._shapes.get(name)
        if expected is None and self._shapes:
            raise ConfigurationError(f"{self.name} has no weight {name!r}; merge LoRA and take wrappers off.")
        if expected is not None and expected != shape:
            raise ConfigurationError(f"weight {name!r} has shape {shape}, but {self.name} has {expected}.")

    def _model_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the model's weights as Hugging Face knows it; empty if it does not."""
        import torch
        from transformers import AutoModelForCausalLM

        config = self._engine.model_config.hf_config
        try:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config)
        except (ValueError, KeyError, AttributeError):
            return {}
        return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _repack(model: Any) -> None:
    """On a CPU vLLM keeps packed copies of matrices; that of an output layer tied to the input would stay old."""
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and weight is not None and weight.numel():
            module.quant_method.process_weights_after_loading(module)


def without_end(text: str, token_ids: list[int], engine: Engine) -> str:
    """The text without its end-of-turn token, where that is no special token, which is left out anyway."""
    if token_ids and token_ids[-1] in engine.end_ids:
        return text.removesuffix(engine.tokenizer.decode(token_ids[-1:]))
    return text


def checked_logprobs(token_ids: list[int], logprobs: list[float], usage: Usage) -> Completion | None:
    """An error in place of a reply whose log-probabilities are no numbers."""
    if any(map(math.isnan, logprobs)):
        text = "the model's output is not a number (NaN): its weights or its precision are broken."
        return Completion("", "error", usage=usage, error=text)
    return None


@contextmanager
def _quiet_in_process() -> Iterator[None]:
    """vLLM reads these at start: its engine must share our process, or weights could not be handed over."""
    before = os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        yield
    finally:
        if before is None:
            del os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"]
        else:
            os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = before


@contextmanager
def _isolated_rng() -> Iterator[None]:
    """vLLM seeds the global generators of whoever starts it; put them back."""
    import numpy

    python, legacy = random.getstate(), numpy.random.get_state()  # noqa: NPY002
    try:
        import torch
    except ImportError:
        yield  # to fail with a sentence of its own
        return
    generator = torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(legacy)  # noqa: NPY002
        torch.set_rng_state(generator)
