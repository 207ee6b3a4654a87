"""A vLLM server: exact tokens over HTTP."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any

from ...envs.errors import ConfigurationError
from ..base import Stop
from ..tokens.templates import turn_end_ids
from .base import Completion, Finish, Request
from .faults import ContextFull, Fault, Refused, said
from .openai import read_usage
from .remote import RemoteEngine
from .vllm import checked_logprobs, without_end

LOCAL_URL = "http://localhost:8000/v1"
_CONTACT_SECONDS = 15.0


class VLLMServerEngine(RemoteEngine):
    """A running OpenAI-compatible vLLM server, spoken to in tokens: what was sampled comes back verbatim.

    Requests go to `/v1/completions` with token ids and return token ids and log-probabilities. Sampling defaults
    of the model's generation config are overridden, so that the distribution is the one asked for. Start the
    server with `--enable-prompt-tokens-details` to see in `Usage.cached_tokens` what its prefix cache saved, and
    leave its `--logprobs-mode` as it is.

    Args:
        model: name of the model, as the server knows it; default: the first that it serves.
        base_url: address of the server, up to and including `/v1`.
        tokenizer: a tokenizer, or the name or folder of one; default: that of the served model.
        api_key: what the server was started with, if anything; default: the environment variable VLLM_API_KEY.
        **options: see `RemoteEngine`.

    Raises:
        ConfigurationError: no server answers, it does not serve the model, or the tokenizer is not found.
    """

    path = "completions"

    def __init__(
        self,
        model: str | None = None,
        *,
        base_url: str = LOCAL_URL,
        tokenizer: Any = None,
        api_key: str | None = None,
        **options: Any,
    ) -> None:
        api_key = api_key or os.environ.get("VLLM_API_KEY") or "none"
        card = _served(base_url.rstrip("/"), model, api_key)
        super().__init__(card["id"], base_url=base_url, api_key=api_key, **options)
        self.name = f"vllm:{self.model}"
        self.context = card.get("max_model_len")
        try:
            self.tokenizer = _tokenizer(card.get("root") or card["id"]) if tokenizer is None else tokenizer
            if isinstance(self.tokenizer, str):
                self.tokenizer = _tokenizer(self.tokenizer)
            self.end_ids: set[int] = turn_end_ids(self.tokenizer)
        except ConfigurationError:
            self.close()
            raise

    def submit(self, request: Request) -> None:
        if request.prompt_ids is None:
            raise ConfigurationError(f"{self.name} takes tokens, but the request has no prompt_ids.")
        super().submit(request)

    def body(self, request: Request) -> dict[str, Any]:
        assert request.prompt_ids is not None
        sampling = request.sampling
        most = sampling.max_tokens
        if self.context is not None:
            most = min(most, self.context - len(request.prompt_ids))  # the server would refuse what does not fit
            if most < 1:
                raise ContextFull
        return {
            "model": self.model,
            "prompt": list(request.prompt_ids),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "max_tokens": most,
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
            raise Stop(f"{self.base_url} changed the prompt's tokens: its replies answer another prompt.")
        logprobs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
        text = choice["text"]
        if len(logprobs) != len(token_ids) or not isinstance(text, str):
            raise Fault(f"{len(token_ids)} tokens with {len(logprobs)} log-probabilities")
        usage = read_usage(reply.get("usage"))
        broken = checked_logprobs(token_ids, logprobs, usage)
        if broken is not None:
            raise Refused(broken.error)
        finish: Finish = "length" if choice.get("finish_reason") == "length" else "stop"
        return Completion(without_end(text, token_ids, self), finish, token_ids, logprobs, usage)


def _served(base_url: str, model: str | None, api_key: str) -> dict[str, Any]:
    """What a server tells about a model that it serves."""
    try:
        request = urllib.request.Request(f"{base_url}/models", headers={"authorization": f"Bearer {api_key}"})
        with urllib.request.urlopen(request, timeout=_CONTACT_SECONDS) as response:
            cards = json.load(response)["data"]
            names = [card["id"] for card in cards]
    except urllib.error.HTTPError as error:
        with error:
            why = f"status {error.code}: {said(error.read().decode(errors='replace'))}"
        raise ConfigurationError(f"{base_url} does not tell which models it serves ({why}).") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"no vLLM server answers at {base_url} ({error}); start one with: vllm serve MODEL"
        ) from None
    except (KeyError, TypeError):
        raise ConfigurationError(f"what answers at {base_url} is no OpenAI-compatible server.") from None
    if model is None and names:
        model = names[0]
    for card in cards:
        if card["id"] == model:
            return dict(card)
    raise ConfigurationError(f"{base_url} serves {', '.join(names) or 'nothing'}, not {model!r}.")


def _tokenizer(name: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ConfigurationError(
            'this engine needs the extra "lm" (transformers is missing): pip install "arboretum[lm]".'
        ) from None
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigurationError(
            f"the server's model has no tokenizer here at {name!r} ({reason}); name one with tokenizer=…"
        ) from None
