"""Engine that runs a Hugging Face model in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...envs.errors import ConfigurationError
from ...envs.extras import missing_extra
from ..checks import check_count
from ..tokens.templates import turn_end_ids
from .base import Completion, Engine, Finish, Request, Usage
from .model_check import ADAPTER, check_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from .local.generation import Generation
    from .local.sampling import BatchSampling
    from .local.stop import StopTextMatcher

# Memory of the keys and values of idle conversations, if `cache_tokens` is None.
_IDLE_BYTES = 4 * 2**30


class TransformersEngine(Engine):
    """Engine that samples from any `AutoModelForCausalLM`, in this process.

    Requests are batched continuously: a finished reply's place in the batch is taken by the next request at once.
    Keys and values are kept between turns and shared between branches, so a turn costs its new tokens, not its
    history. A reply depends only on its request, not on the others in the batch (up to rounding, which differs
    between batch sizes).

    Models whose layers keep other state than plain keys and values (sliding windows shorter than the context
    window, state spaces), or whose attention kernels accept no mask (flash attention), are run one conversation at
    a time, and every turn is encoded from its beginning; `keeps_cache` is False for these.

    Args:
        model: Folder or Hugging Face hub name of a model, "sapling" for the shipped one, or a model object. A
            model object is used in place: call `invalidate` after its weights have changed.
        tokenizer: Folder, hub name or tokenizer object. None uses the model's; a model object requires one.
        device: "cuda", "mps" or "cpu"; None uses the best available one, or the device of the model object.
        dtype: Data type of the weights, such as "bfloat16"; None uses float32 on the CPU and the checkpoint's
            elsewhere.
        adapter: Folder or hub name of LoRA weights, which are merged into the loaded model; None for no adapter.
        max_batch: Maximum number of replies sampled at once. Memory is proportional to it times the longest
            conversation.
        context: Context window in tokens; None uses the model's.
        cache_tokens: Maximum number of cached tokens of idle conversations; the least recently used ones are
            evicted and encoded again on their next turn. None allows 4 GiB.
        processed_logprobs: Report log-probabilities of the sampling distribution, after temperature, top-p and
            top-k, as trainers need them, instead of those at temperature 1.
        name: Name in records; None uses "transformers:" and the model's name.

    Attributes:
        end_ids: Tokens that end a reply; agents add those of their chat template.
        refused: Number of replies that failed because of NaN or infinite logits.
        keeps_cache: True if keys and values are kept between turns.

    Raises:
        ConfigurationError: torch is not installed, or the model, tokenizer or adapter cannot be loaded.
    """

    def __init__(
        self,
        model: PreTrainedModel | str | Path,
        tokenizer: PreTrainedTokenizerBase | str | Path | None = None,
        *,
        device: str | None = None,
        dtype: str | None = None,
        adapter: str | Path | None = None,
        max_batch: int = 64,
        context: int | None = None,
        cache_tokens: int | None = None,
        processed_logprobs: bool = False,
        name: str | None = None,
    ) -> None:
        check_count("max_batch", max_batch, 1)
        for option, value, least in (("context", context, 1), ("cache_tokens", cache_tokens, 0)):
            if value is not None:
                check_count(option, value, least)
        if isinstance(model, (str, Path)):
            check_model(model)
        if adapter is not None:
            check_model(adapter, ADAPTER)
        try:
            import torch

            from .local import device as devices
            from .local import load
        except ImportError as error:
            raise missing_extra("the transformers engine", "lm", error) from None
        self._torch = torch
        self.model: Any
        if isinstance(model, (str, Path)):
            self.model = load.load_model(model, device or devices.best_device(), dtype, adapter)
            tokenizer = model if tokenizer is None else tokenizer
        else:
            if tokenizer is None or device is not None or dtype is not None or adapter is not None:
                raise ConfigurationError("a model object needs a tokenizer, and takes no device, dtype or adapter")
            self.model = model
        self.tokenizer = load.load_tokenizer(tokenizer) if isinstance(tokenizer, (str, Path)) else tokenizer
        config = self.model.config.get_text_config(decoder=True)
        self.name = name or f"transformers:{getattr(self.model, 'name_or_path', '') or config.model_type}"
        limits = [context, load.context_of(self.model.config)]
        self.context = min((limit for limit in limits if limit), default=None)
        self.end_ids: Set[int] = turn_end_ids(self.tokenizer) | _as_ids(
            getattr(self.model.generation_config, "eos_token_id", None)
        )
        self.usage = Usage()
        self.refused = 0
        with _InferenceMode(self):
            self._cache = load.choose_cache(self.model, self.context, max_batch, cache_tokens, _IDLE_BYTES)
        self.keeps_cache: bool = self._cache.keeps_cache
        self._max_batch = max_batch
        self._processed_logprobs = processed_logprobs
        self._waiting: deque[Generation] = deque()
        self._active: list[Generation] = []
        self._done: list[tuple[str, Completion]] = []
        self._matchers: dict[tuple[str, ...], StopTextMatcher] = {}
        self._settings: tuple[list[Generation], BatchSampling] | None = None
        self._is_woken = False

    @property
    def computed_tokens(self) -> int:
        """Number of tokens that the model has encoded, padding included."""
        return self._cache.computed_tokens

    def submit(self, request: Request) -> None:
        """Queue a request and return at once.

        Raises:
            ValueError: The request has no prompt, or its conversation has a pending request.
        """
        if not request.prompt_ids:
            raise ValueError(
                f"conversation {request.conversation!r} has no prompt_ids, but this engine requires token ids."
            )
        if any(one.request.conversation == request.conversation for one in (*self._active, *self._waiting)):
            raise ValueError(f"conversation {request.conversation!r} already has a pending request.")
        self._waiting.append(self._new_generation(request))

    def collect(self) -> list[tuple[str, Completion]]:
        """Sample until at least one reply is complete or `wake` is called, and return all that are complete.

        Returns:
            Pairs of conversation name and completion.

        Raises:
            RuntimeError: No request is pending.
        """
        if not self._waiting and not self._active:
            raise RuntimeError("no request is pending.")
        with _InferenceMode(self):
            while not self._done and (self._waiting or self._active) and not self._is_woken:
                self._admit()
                if self._active:
                    self._step()
        self._is_woken = False
        done, self._done = self._done, []
        return done

    def wake(self) -> None:
        """Have a `collect` in progress, or else the next one, return before its next token."""
        self._is_woken = True

    def release(self, conversation: str) -> None:
        """Drop the cache of a conversation, and its request if one is pending."""
        self._active = [one for one in self._active if one.request.conversation != conversation]
        self._waiting = deque(one for one in self._waiting if one.request.conversation != conversation)
        self._cache.forget(conversation)

    def invalidate(self) -> None:
        """Drop all keys and values; call it after the model's weights have changed."""
        with _InferenceMode(self):
            self._cache.invalidate()

    def close(self) -> None:
        """Release the model."""
        self._waiting.clear()
        self._active.clear()
        self._done.clear()
        self._cache.close()
        self.model = None

    def _new_generation(self, request: Request) -> Generation:
        from .local.generation import Generation
        from .local.sampling import draw_uniforms
        from .local.stop import StopTextMatcher

        assert request.prompt_ids is not None
        ids, sampling = list(request.prompt_ids), request.sampling
        room = sampling.max_tokens if self.context is None else min(sampling.max_tokens, self.context - len(ids))
        uniforms = draw_uniforms(request.seed, max(room, 0)) if sampling.temperature > 0 else []
        matcher = None
        if any(sampling.stop):
            matcher = self._matchers.setdefault(sampling.stop, StopTextMatcher(self.tokenizer, sampling.stop))
        return Generation(request, ids, len(ids), uniforms, matcher)

    def _admit(self) -> None:
        """Move waiting generations into the batch, as far as there is room."""
        while self._waiting and len(self._active) < self._max_batch:
            generation = self._waiting[0]
            if self._is_full(generation):
                self._waiting.popleft()
                self._complete(generation, "length")
            elif self._cache.admit(generation):
                self._active.append(self._waiting.popleft())
            else:
                return

    def _step(self) -> None:
        """Sample one more token of every reply in the batch."""
        from .local.sampling import BatchSampling, sample_tokens

        generations, logits = self._cache.advance(self._active)
        if self._settings is None or self._settings[0] != generations:
            rows = [one.request.sampling for one in generations]
            self._settings = generations, BatchSampling(rows, logits.device, processed=self._processed_logprobs)
        uniforms = [one.uniforms[len(one.logprobs)] if one.uniforms else 0.0 for one in generations]
        sampled = sample_tokens(logits, uniforms, self._settings[1])
        finished: set[int] = set()
        for n, (generation, token, logprob, usable) in enumerate(zip(generations, *sampled, strict=True)):
            if not usable:
                self._fail(generation)
                finished.add(n)
                continue
            generation.ids.append(token)
            generation.logprobs.append(logprob)
            finish, text = self._finish_reason(generation, token)
            if finish is not None:
                self._cache.finish(generation)
                self._complete(generation, finish, text)
                finished.add(n)
        if finished:
            self._active = [one for n, one in enumerate(generations) if n not in finished]

    def _finish_reason(self, generation: Generation, token: int) -> tuple[Finish | None, str | None]:
        """Return the reason why a reply ends with the token just sampled (None if it does not), and its text.

        The text is None unless a stop text ended the reply.
        """
        if token in self.end_ids:
            return "stop", None
        if generation.matcher is not None and (text := generation.matcher.match(generation.sampled)) is not None:
            return "stop", text
        if len(generation.logprobs) >= generation.request.sampling.max_tokens or self._is_full(generation):
            return "length", None
        return None, None

    def _is_full(self, generation: Generation) -> bool:
        return self.context is not None and len(generation.ids) >= self.context

    def _complete(self, generation: Generation, finish: Finish, text: str | None = None) -> None:
        from .local.stop import decode

        sampled = generation.sampled
        if text is None:
            ended = bool(sampled) and sampled[-1] in self.end_ids
            text = decode(self.tokenizer, sampled[:-1] if ended else sampled)
        usage = Usage(generation.prompt_length, generation.reused, len(sampled))
        self.usage.add(usage)
        completion = Completion(text, finish, sampled, generation.logprobs, usage)
        self._done.append((generation.request.conversation, completion))

    def _fail(self, generation: Generation) -> None:
        """Finish a generation with an error, because its logits are not finite."""
        reason = "the model's logits are NaN or infinite; check its weights and dtype."
        self.refused += 1
        self._cache.finish(generation, poisoned=True)
        usage = Usage(generation.prompt_length, generation.reused, len(generation.logprobs))
        self.usage.add(usage)
        failed = Completion("", "error", generation.sampled, generation.logprobs, usage, reason)
        self._done.append((generation.request.conversation, failed))


class _InferenceMode:
    """Context without gradients and dropout; restores the model's training mode on exit."""

    def __init__(self, engine: TransformersEngine) -> None:
        self._model = engine.model
        self._inference = engine._torch.inference_mode()

    def __enter__(self) -> None:
        self._was_training = self._model.training
        if self._was_training:
            self._model.eval()
        self._inference.__enter__()

    def __exit__(self, *exception: Any) -> None:
        self._inference.__exit__(*exception)
        if self._was_training:
            self._model.train()


def _as_ids(value: int | Iterable[int] | None) -> set[int]:
    if value is None:
        return set()
    return {value} if isinstance(value, int) else set(value)
