"""Hosted models, and any server that speaks OpenAI's chat completions."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...envs.errors import ConfigurationError
from .base import Completion, Finish, Request, Usage
from .faults import Fault
from .remote import RemoteEngine

OPENAI_URL = "https://api.openai.com/v1"


class OpenAIEngine(RemoteEngine):
    """Chat completions of OpenAI or any compatible endpoint; text in, text out.

    Options that a model does not take (temperature and stop texts of reasoning models, say) are left out from the
    moment that the endpoint objects to them; stop texts are then applied here. `max_tokens` becomes
    `max_completion_tokens` likewise.

    Stop texts: the API leaves out the one that ended a reply. Servers that name it (vLLM's `stop_reason`, SGLang's
    `matched_stop`) have it appended. Where it is not named, a closing tag such as `</answer>` is appended if the
    reply opened it last and left it open; other texts are not, as a reply that ended by itself looks the same.

    Prefill: such APIs cannot begin a reply for the model, so a prefill is left to it; if the reply does begin with
    it, it is taken off. With `continue_prefill` it is sent as the beginning of the assistant's message, with the
    flags by which vLLM and SGLang continue it.

    Args:
        model: name of the model, such as "gpt-4.1-mini".
        base_url: address of the API; default: the environment variable OPENAI_BASE_URL, else OpenAI's own.
        api_key: default: the environment variable OPENAI_API_KEY. Servers of one's own mostly need none.
        continue_prefill: see above.
        **options: see `RemoteEngine`.

    Raises:
        ConfigurationError: no key for OpenAI's own API; see also `RemoteEngine`.
    """

    path = "chat/completions"

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        continue_prefill: bool = False,
        **options: Any,
    ) -> None:
        base_url = base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        api_key = api_key or os.environ.get("OPENAI_API_KEY")
        if not api_key and base_url.startswith(OPENAI_URL):
            raise ConfigurationError(
                "OpenAI's API needs a key: set the environment variable OPENAI_API_KEY, or give base_url= to use"
                " a server of your own."
            )
        super().__init__(model, base_url=base_url, api_key=api_key or "none", **options)
        self.name = f"openai:{model}"
        self._continue_prefill = continue_prefill

    def body(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        messages = [{"role": role, "content": content} for role, content in request.messages]
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
            "seed": request.seed % 2**63,
        }
        if sampling.top_p != 1.0:
            body["top_p"] = sampling.top_p
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if request.prefill and self._continue_prefill:
            messages.append({"role": "assistant", "content": request.prefill})
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        return body | self._extra

    def read(self, reply: dict[str, Any], request: Request) -> Completion:
        choice = reply["choices"][0]
        message = choice["message"]
        text = message.get("content")
        if text is None:
            text = message.get("refusal") or ""
        if not isinstance(text, str):
            raise Fault(f"a reply whose text is of type {type(text).__name__}")
        reason = choice.get("finish_reason")
        finish: Finish = "length" if reason == "length" else "stop"
        named = choice.get("stop_reason", choice.get("matched_stop"))
        told = "stop_reason" in choice or "matched_stop" in choice
        if request.prefill:
            text = text.removeprefix(request.prefill)
        text, cut = cut_at_stop(text, request.sampling.stop)
        if cut:
            finish = "stop"
        elif finish == "stop":
            if told:
                text += named if isinstance(named, str) else ""
            else:
                text += open_tag_stop(request.prefill + text, request.sampling.stop)
        return Completion(text, finish, usage=read_usage(reply.get("usage")))


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """`text` up to and including the first stop text in it, and whether there is one."""
    ends = [at + len(s) for s in stop if s and (at := text.find(s)) >= 0]
    return (text[: min(ends)], True) if ends else (text, False)


def open_tag_stop(text: str, stop: Sequence[str]) -> str:
    """The closing tag among the stop texts whose element was opened last in `text` and is open still, or ""."""
    found = ""
    last = -1
    for s in stop:
        match = re.fullmatch(r"</([\w-]+)>", s)
        if match is None:
            continue
        opened = text.rfind(f"<{match[1]}>")
        if opened > last and text.find(s, opened) < 0:
            found, last = s, opened
    return found


def read_usage(usage: Mapping[str, Any] | None) -> Usage:
    """Token counts of a reply; what the server does not tell is 0."""
    if not isinstance(usage, Mapping):
        return Usage()
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or 0),
        completion_tokens=int(usage.get("completion_tokens") or 0),
    )
