"""Engine that runs vLLM in this process, with weights that a trainer can update in place."""

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
from ...envs.extras import missing_extra
from ..base import Stop
from ..tokens.templates import turn_end_ids
from .base import Completion, Engine, Finish, Request, Usage
from .model_check import check_model
from .shipped_models import model_source
from .vllm_worker import replace_weights

_kept: list[Any] = []
"""Closed instances of `vllm.LLM`, whose deletion would destroy the process group that they shared."""


class VLLMEngine(Engine):
    """Engine that samples from a model with vLLM, in this process.

    Requests are batched continuously, and `collect` returns as soon as any is finished. Prefixes that a
    conversation shares with earlier ones, such as its own previous turns, are not computed again (prefix cache);
    `Usage.cached_tokens` is the number of such tokens.

    Log-probabilities are those at temperature 1 over the whole vocabulary, or with
    `logprobs_mode="processed_logprobs"` those of the sampling distribution. A reply with NaN log-probabilities
    finishes with "error".

    Args:
        model: Folder or Hugging Face hub name of a model, or "sapling" for the shipped one.
        context: Context window in tokens; None uses the model's.
        **options: Further arguments of `vllm.LLM`, such as `dtype`, `gpu_memory_utilization`, `enforce_eager`,
            `tensor_parallel_size`, `tokenizer`, `trust_remote_code`. In processes of one process group, which all
            make an engine at the same time, `distributed_executor_backend` must be "external_launcher".

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
        check_model(model)
        with _quiet_in_process(), _isolated_rng():
            try:
                import torch
                from vllm import LLM
            except ImportError as error:
                raise missing_extra("the vllm engine", "vllm", error) from None
            source = str(model_source(model))
            # The process group of training processes, which vLLM joins, must outlive the engine.
            self._shares_process_group = torch.distributed.is_available() and torch.distributed.is_initialized()
            try:
                self._llm: Any = LLM(source, **options)
            except (OSError, ValueError, RuntimeError, TypeError) as error:
                text = " ".join(str(error).split())[:400]
                raise ConfigurationError(f"vLLM cannot run {model!r}: {text}") from error
        self.name = f"vllm:{model}"
        self.tokenizer = self._llm.get_tokenizer()
        self.context = int(self._engine.model_config.max_model_len)
        self.end_ids: set[int] = turn_end_ids(self.tokenizer)
        self.usage = Usage()
        self._next_id = itertools.count()
        self._request_ids: dict[str, str] = {}  # by conversation
        self._conversations: dict[str, str] = {}  # by request id
        self._overlong: list[tuple[str, Completion]] = []  # completions of prompts that fill the context window
        self._is_woken = False

    @property
    def _engine(self) -> Any:
        if self._llm is None:
            raise RuntimeError("the engine is closed.")
        return self._llm.llm_engine

    # ------------------------------------------------------------------ interface of Engine

    def submit(self, request: Request) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        engine = self._engine
        if request.prompt_ids is None:
            raise ConfigurationError(f"{self.name} requires token ids, but the request has no prompt_ids.")
        if request.conversation in self._request_ids:
            raise RuntimeError(f"conversation {request.conversation!r} already has a pending request.")
        sampling = request.sampling
        request_id = f"{next(self._next_id)}"
        if len(request.prompt_ids) >= (self.context or math.inf):
            self._request_ids[request.conversation] = request_id
            self._overlong.append((request.conversation, Completion("", "length", [], [])))
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
            engine.add_request(request_id, prompt, parameters)
        except Exception as error:
            raise ConfigurationError(f"{self.name} rejects the request: {error}") from error
        self._request_ids[request.conversation] = request_id
        self._conversations[request_id] = request.conversation

    def collect(self) -> list[tuple[str, Completion]]:
        engine = self._engine
        if not self._request_ids:
            raise RuntimeError("no request is pending.")
        ready, self._overlong = self._overlong, []
        while not ready and not self._is_woken:
            if not engine.has_unfinished_requests():
                raise Stop(f"{self.name} lost {len(self._request_ids)} requests.")
            try:
                outputs = engine.step()
            except Exception as error:
                raise Stop(f"{self.name} failed: {type(error).__name__}: {error}") from error
            for output in outputs:
                conversation = self._conversations.pop(output.request_id, None)
                if conversation is not None and output.finished:
                    completion = self._read(output)
                    self.usage.add(completion.usage)
                    ready.append((conversation, completion))
        self._is_woken = False
        for conversation, _ in ready:
            del self._request_ids[conversation]
        return ready

    def wake(self) -> None:
        self._is_woken = True

    def release(self, conversation: str) -> None:
        request_id = self._request_ids.pop(conversation, None)
        if request_id is None or self._llm is None:
            return
        self._overlong = [item for item in self._overlong if item[0] != conversation]
        if self._conversations.pop(request_id, None) is not None:
            self._engine.abort_request([request_id])

    def close(self) -> None:
        if self._llm is None:
            return
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory, destroy_model_parallel

        if self._shares_process_group:
            self._engine.model_executor.shutdown()
            destroy_model_parallel()
            _kept.append(self._llm)
        else:
            self._engine.engine_core.shutdown()
        self._llm = None
        self._request_ids.clear()
        self._conversations.clear()
        gc.collect()
        if not self._shares_process_group:
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
            return Completion("", "error", usage=usage, error=f"vLLM aborted the reply ({reply.finish_reason}).")
        text = strip_end_token(reply.text, token_ids, self)
        finish: Finish = "length" if reply.finish_reason == "length" else "stop"
        return nan_completion(logprobs, usage) or Completion(text, finish, token_ids, logprobs, usage)

    # ------------------------------------------------------------------ training

    def update_weights(self, tensors: Iterable[tuple[str, Any]]) -> None:
        """Replace weights in place and clear the prefix cache.

        Args:
            tensors: Names and values as in the model's checkpoint (`model.named_parameters()` of the Hugging Face
                model with LoRA merged), consumed one by one. They may be on any device and are cast to the
                engine's dtype. Weights that are not among them stay unchanged.

        Raises:
            RuntimeError: Requests are pending.
            ConfigurationError: The model has no weight of a name, or one of another shape. The weights before it
                have been replaced.
        """
        if self._request_ids:
            raise RuntimeError("weights cannot change while requests are pending; collect or release them first.")
        try:
            self._llm.collective_rpc(replace_weights, args=(tensors,))
        finally:
            if not self._llm.reset_prefix_cache():
                raise RuntimeError("vLLM could not clear the prefix cache of the old weights.")


def strip_end_token(text: str, token_ids: list[int], engine: Engine) -> str:
    """Return the text without its end-of-turn token; vLLM itself omits only those that are special tokens."""
    if token_ids and token_ids[-1] in engine.end_ids:
        return text.removesuffix(engine.tokenizer.decode(token_ids[-1:]))
    return text


def nan_completion(logprobs: list[float], usage: Usage) -> Completion | None:
    """Return an error completion if any log-probability is NaN, else None."""
    if any(map(math.isnan, logprobs)):
        reason = "the model's log-probabilities are NaN; check its weights and dtype."
        return Completion("", "error", usage=usage, error=reason)
    return None


@contextmanager
def _quiet_in_process() -> Iterator[None]:
    """Set the variables that vLLM reads at start: its engine must share this process to accept new weights."""
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
    """Restore the states of the global random generators, which vLLM seeds at start."""
    import numpy

    python, legacy = random.getstate(), numpy.random.get_state()  # noqa: NPY002
    try:
        import torch
    except ImportError:
        yield  # vLLM's own import then fails with an error message
        return
    generator = torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(legacy)  # noqa: NPY002
        torch.set_rng_state(generator)
