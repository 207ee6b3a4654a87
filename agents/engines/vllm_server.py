"""Engine for a vLLM server, with token ids over HTTP."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ...envs.errors import ConfigurationError
from ...envs.extras import missing_extra
from ..base import Stop
from ..tokens.templates import turn_end_ids
from .base import Completion, Finish, Request
from .connection import Connection
from .cost import read_usage
from .faults import ContextOverflow, RequestRejected, RetryableError, error_text
from .openai import check_finish
from .remote import RemoteEngine
from .vllm import nan_completion, strip_end_token

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LOCAL_URL = "http://localhost:8000/v1"
_CONTACT_SECONDS = 15.0


class VLLMServerEngine(RemoteEngine):
    """Engine for a running vLLM server, which exchanges token ids.

    Requests are sent to `/v1/completions` with token ids and return the sampled token ids and their
    log-probabilities. They override the sampling defaults of the model's generation config, so that the
    distribution is exactly the requested one. Start the server with `--enable-prompt-tokens-details` to get the
    hits of its prefix cache in `Usage.cached_tokens`, and leave its `--logprobs-mode` at the default.

    Args:
        model: Name of the model on the server; None uses the first one that it serves.
        base_url: URL of the server, up to and including `/v1`.
        tokenizer: A tokenizer, or the name or folder of one; None uses the tokenizer of the served model.
        api_key: API key that the server was started with. None uses the environment variable VLLM_API_KEY.
        **options: See `RemoteEngine`.

    Raises:
        ConfigurationError: No server answers, it does not serve the model, or the tokenizer cannot be loaded.
    """

    path = "completions"

    def __init__(
        self,
        model: str | None = None,
        *,
        base_url: str = LOCAL_URL,
        tokenizer: PreTrainedTokenizerBase | str | None = None,
        api_key: str | None = None,
        **options: Any,
    ) -> None:
        api_key = api_key or os.environ.get("VLLM_API_KEY") or "none"
        headers = {"authorization": f"Bearer {api_key}", **(options.get("headers") or {})}
        card = model_card(base_url, model, headers)
        super().__init__(card["id"], base_url=base_url, api_key=api_key, **options)
        self.name = f"vllm:{self.model}"
        self.context = card.get("max_model_len")
        try:
            self.tokenizer = _load_tokenizer(card.get("root") or card["id"]) if tokenizer is None else tokenizer
            if isinstance(self.tokenizer, str):
                self.tokenizer = _load_tokenizer(self.tokenizer)
            self.end_ids: set[int] = turn_end_ids(self.tokenizer)
        except ConfigurationError:
            self.close()
            raise

    def submit(self, request: Request) -> None:
        if request.prompt_ids is None:
            raise ConfigurationError(f"{self.name} requires token ids, but the request has no prompt_ids.")
        super().submit(request)

    def body(self, request: Request) -> dict[str, Any]:
        assert request.prompt_ids is not None
        sampling = request.sampling
        max_tokens = sampling.max_tokens
        if self.context is not None:
            # The server rejects requests that exceed the context window.
            max_tokens = min(max_tokens, self.context - len(request.prompt_ids))
            if max_tokens < 1:
                raise ContextOverflow
        return {
            "model": self.model,
            "prompt": list(request.prompt_ids),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "max_tokens": max_tokens,
            "seed": request.seed % 2**63,
            "stop": list(sampling.stop),
            "include_stop_str_in_output": True,
            "stop_token_ids": sorted(self.end_ids),
            "logprobs": 0,
            "return_token_ids": True,
        } | self._extra

    def read(self, reply: dict[str, Any], request: Request) -> Completion:
        choice = reply["choices"][0]
        token_ids, prompt_ids = choice.get("token_ids"), choice.get("prompt_token_ids")
        if token_ids is None or prompt_ids is None or choice.get("logprobs") is None:
            raise Stop(f"{self.base_url} returns no token ids; it must be a vLLM server of version 0.11 or later.")
        assert request.prompt_ids is not None
        if prompt_ids != list(request.prompt_ids):
            raise Stop(f"{self.base_url} changed the prompt's tokens, so its replies are to another prompt.")
        logprobs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
        text = choice["text"]
        if len(logprobs) != len(token_ids) or not isinstance(text, str):
            raise RetryableError(f"the response has {len(token_ids)} tokens and {len(logprobs)} log-probabilities")
        usage = read_usage(reply.get("usage"))
        failed = nan_completion(logprobs, usage)
        if failed is not None:
            raise RequestRejected(str(failed.error))
        check_finish(choice.get("finish_reason"))
        finish: Finish = "length" if choice.get("finish_reason") == "length" else "stop"
        return Completion(strip_end_token(text, token_ids, self), finish, token_ids, logprobs, usage)


def model_card(base_url: str, model: str | None, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the server's description of a model that it serves; None selects the first."""
    connection = Connection(base_url, model or "any model", headers, _CONTACT_SECONDS)
    address = connection.base_url

    async def request() -> dict[str, Any]:
        try:
            return await connection.get("models")
        finally:
            await connection.close()

    try:
        # In a thread of its own, because this one may run an event loop.
        with ThreadPoolExecutor(1) as thread:
            cards = thread.submit(asyncio.run, request()).result()["data"]
        names = [card["id"] for card in cards]
    except RetryableError as error:
        if not error.unreachable:
            raise ConfigurationError(f"{address} does not list the models that it serves ({error}).") from None
        raise ConfigurationError(
            f"no vLLM server answers at {address} ({error}); start one with: vllm serve MODEL"
        ) from None
    except (RequestRejected, Stop) as error:
        raise ConfigurationError(f"{address} does not list the models that it serves ({error}).") from None
    except (KeyError, TypeError):
        raise ConfigurationError(f"the server at {address} is not OpenAI-compatible.") from None
    if model is None and names:
        model = names[0]
    for card in cards:
        if card["id"] == model:
            return dict(card)
    raise ConfigurationError(
        f"{address} serves {error_text(', '.join(map(str, names))) or 'nothing'}, not {model!r}."
    )


def _load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise missing_extra("the vllm-server engine", "lm", error) from None
    try:
        return AutoTokenizer.from_pretrained(name)
    except Exception as error:  # of any type: files, formats, the network
        reason = " ".join(str(error).split())[:200]
        raise ConfigurationError(
            f"the tokenizer of the served model cannot be loaded from {name!r} ({reason}); pass tokenizer=…"
        ) from None
