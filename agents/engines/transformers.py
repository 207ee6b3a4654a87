"""The engine that runs a Hugging Face model in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...envs.errors import ConfigurationError
from ..tokens.templates import turn_end_ids
from .base import Completion, Engine, Finish, Request, Usage

if TYPE_CHECKING:
    from .local.generation import Task
    from .local.sampling import Settings
    from .local.stop import StopTexts

# What idle conversations may keep, unless `cache_tokens` says otherwise.
_IDLE_BYTES = 4 * 2**30


class TransformersEngine(Engine):
    """Samples from any `AutoModelForCausalLM`, many conversations at once.

    Keys and values stay between turns and are shared at branches: a turn costs its new tokens, not its history.
    The place of a finished reply in the batch is taken by the next request at once. A reply depends on its request
    only, not on those sampled beside it (up to rounding, which differs between batches of different sizes).

    Models whose layers keep something else than plain keys and values (sliding windows shorter than the context,
    state spaces), or whose attention kernels take no mask (flash), are run one conversation at a time, every turn
    from its beginning; `keeps_cache` tells.

    Attributes:
        end_ids: tokens that end a reply; a template that ends turns otherwise may add its own.
        refused: replies refused because the model gave NaN or infinite logits.
        keeps_cache: whether turns cost their new tokens only.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        device: str | None = None,
        dtype: str | None = None,
        adapter: str | Path | None = None,
        max_batch: int = 64,
        context: int | None = None,
        cache_tokens: int | None = None,
        logprobs_as_drawn: bool = False,
        name: str | None = None,
    ) -> None:
        """Load a model, or share one.

        Args:
            model: a folder, a name on the Hugging Face hub, or a model object, which is used in place: after its
                weights have changed call `invalidate`.
            tokenizer: a folder, hub name or tokenizer object; needed beside a model object.
            device: "cuda", "mps" or "cpu"; None for the best there is, or where the model object is.
            dtype: such as "bfloat16"; None for the checkpoint's, on the CPU float32.
            adapter: a folder or hub name of LoRA weights, merged into a model that is loaded here.
            max_batch: most replies sampled at once. Memory grows with it times the longest conversation.
            context: longest conversation in tokens; None for what the model was made for.
            cache_tokens: most tokens that idle conversations keep in memory; those idle longest are forgotten and
                encoded again when they come back. None for what fits 4 GiB.
            logprobs_as_drawn: report log-probabilities of the distribution that a token was drawn from, after
                temperature, top-p and top-k, as a trainer compares them, instead of those at temperature 1.
            name: how records call the engine; None for "transformers:" and the model's name.

        Raises:
            ConfigurationError: torch is missing, or the model, tokenizer or adapter cannot be had.
        """
        try:
            import torch

            from .local import load
        except ImportError as error:
            raise ConfigurationError(
                f"the transformers engine needs torch and transformers ({error}): pip install 'arboretum[lm]'"
            ) from None
        if max_batch < 1:
            raise ConfigurationError(f"max_batch is {max_batch}; it must be at least 1")
        self._torch = torch
        if isinstance(model, (str, Path)):
            self.model = load.load_model(model, device or load.best_device(), dtype, adapter)
            tokenizer = model if tokenizer is None else tokenizer
        else:
            if tokenizer is None or device is not None or dtype is not None or adapter is not None:
                raise ConfigurationError(
                    "a model object needs a tokenizer beside it, and no device, dtype or adapter"
                )
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
        with _Sampling(self):
            self._cache = load.choose_cache(self.model, self.context, max_batch, cache_tokens, _IDLE_BYTES)
        self.keeps_cache: bool = self._cache.keeps
        self._max_batch = max_batch
        self._as_drawn = logprobs_as_drawn
        self._waiting: deque[Task] = deque()
        self._active: list[Task] = []
        self._done: list[tuple[str, Completion]] = []
        self._stops: dict[tuple[str, ...], StopTexts] = {}
        self._settings: tuple[list[Task], Settings] | None = None

    @property
    def computed_tokens(self) -> int:
        """Tokens that went through the model so far, padding included."""
        return self._cache.computed

    def submit(self, request: Request) -> None:
        """Take a request.

        Raises:
            ValueError: it has no prompt, or its conversation has a request under way.
        """
        if not request.prompt_ids:
            raise ValueError(
                f"the request of {request.conversation!r} has no prompt_ids; this engine needs tokens"
            )
        if any(task.request.conversation == request.conversation for task in (*self._active, *self._waiting)):
            raise ValueError(f"{request.conversation!r} has a request under way already")
        self._waiting.append(self._task(request))

    def collect(self) -> list[tuple[str, Completion]]:
        """Sample until at least one reply is complete; return all that are, by conversation name.

        Raises:
            RuntimeError: nothing was submitted.
        """
        if not self._waiting and not self._active:
            raise RuntimeError("there is nothing to collect: no request was submitted")
        with _Sampling(self):
            while not self._done and (self._waiting or self._active):
                self._admit()
                if self._active:
                    self._step()
        done, self._done = self._done, []
        return done

    def release(self, conversation: str) -> None:
        """Forget a conversation, and drop its request if one is under way."""
        self._active = [task for task in self._active if task.request.conversation != conversation]
        self._waiting = deque(task for task in self._waiting if task.request.conversation != conversation)
        self._cache.forget(conversation)

    def invalidate(self) -> None:
        """Forget all that was computed; call it after the model's weights have changed."""
        with _Sampling(self):
            self._cache.invalidate()

    def close(self) -> None:
        """Let go of the model."""
        self._waiting.clear()
        self._active.clear()
        self._done.clear()
        self._cache.close()
        self.model = None

    def _task(self, request: Request) -> Task:
        from .local.generation import Task
        from .local.sampling import uniforms
        from .local.stop import StopTexts

        assert request.prompt_ids is not None
        ids, sampling = list(request.prompt_ids), request.sampling
        room = sampling.max_tokens if self.context is None else min(sampling.max_tokens, self.context - len(ids))
        draws = uniforms(request.seed, max(room, 0)) if sampling.temperature > 0 else []
        stop = None
        if any(sampling.stop):
            stop = self._stops.setdefault(sampling.stop, StopTexts(self.tokenizer, sampling.stop))
        return Task(request, ids, len(ids), draws, stop)

    def _admit(self) -> None:
        while self._waiting and len(self._active) < self._max_batch:
            task = self._waiting[0]
            if task.request.sampling.max_tokens < 1 or self._is_full(task):
                self._waiting.popleft()
                self._complete(task, "length")
            elif self._cache.admit(task):
                self._active.append(self._waiting.popleft())
            else:
                return

    def _step(self) -> None:
        """One more token for every reply under way."""
        from .local.sampling import Settings, draw

        tasks, logits = self._cache.advance(self._active)
        if self._settings is None or self._settings[0] != tasks:
            rows = [task.request.sampling for task in tasks]
            self._settings = tasks, Settings(rows, logits.device, as_drawn=self._as_drawn)
        uniform = [task.draws[len(task.logprobs)] if task.draws else 0.0 for task in tasks]
        drawn = draw(logits, uniform, self._settings[1])
        over: set[int] = set()
        for n, (task, token, logprob, usable) in enumerate(zip(tasks, *drawn, strict=True)):
            if not usable:
                self._refuse(task)
                over.add(n)
                continue
            task.ids.append(token)
            task.logprobs.append(logprob)
            finish, text = self._finish(task, token)
            if finish is not None:
                self._cache.finish(task)
                self._complete(task, finish, text)
                over.add(n)
        if over:
            self._active = [task for n, task in enumerate(tasks) if n not in over]

    def _finish(self, task: Task, token: int) -> tuple[Finish | None, str | None]:
        """Whether a reply ends with the token just sampled, and its text where that is known."""
        if token in self.end_ids:
            return "stop", None
        if task.stop is not None and (text := task.stop.cut(task.sampled)) is not None:
            return "stop", text
        if len(task.logprobs) >= task.request.sampling.max_tokens or self._is_full(task):
            return "length", None
        return None, None

    def _is_full(self, task: Task) -> bool:
        return self.context is not None and len(task.ids) >= self.context

    def _complete(self, task: Task, finish: Finish, text: str | None = None) -> None:
        from .local.stop import decode

        sampled = task.sampled
        if text is None:
            ended = bool(sampled) and sampled[-1] in self.end_ids
            text = decode(self.tokenizer, sampled[:-1] if ended else sampled)
        usage = Usage(task.prompt, task.reused, len(sampled))
        self.usage.add(usage)
        self._done.append((task.request.conversation, Completion(text, finish, sampled, task.logprobs, usage)))

    def _refuse(self, task: Task) -> None:
        reason = "the model gave NaN or infinite logits: its weights or its precision are at fault"
        self.refused += 1
        self._cache.finish(task, poisoned=True)
        usage = Usage(task.prompt, task.reused, len(task.logprobs))
        self.usage.add(usage)
        failed = Completion("", "error", task.sampled, task.logprobs, usage, reason)
        self._done.append((task.request.conversation, failed))


class _Sampling:
    """Within it the model computes no gradients and drops nothing out; afterwards it is as it was."""

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
