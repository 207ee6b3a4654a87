"""Engine for hosted models and any other server with OpenAI's chat completions API."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...envs.errors import ConfigurationError
from ..tool_calls import as_chat_messages, read_chat_message
from .base import Completion, Finish, Request
from .cost import read_usage
from .faults import RetryableError
from .remote import RemoteEngine

OPENAI_URL = "https://api.openai.com/v1"
FAILED = frozenset({"abort", "error", "insufficient_system_resource"})
"""Finish reasons of replies that a server broke off (vLLM and SGLang, OpenRouter, DeepSeek)."""

_CLOSING = re.compile(r"</([\w-]+)>|<\|end_([\w-]+)\|>")


class OpenAIEngine(RemoteEngine):
    """Engine for the chat completions of OpenAI or a compatible endpoint, on text only.

    **Unsupported options.** Options that a model does not support (such as the temperature and stop texts of
    reasoning models) are omitted once the endpoint has rejected them; stop texts are then applied by the engine.
    `max_tokens` is replaced by `max_completion_tokens` in the same way.

    **Stop texts.** The API omits the stop text that ended a reply. It is appended if the server reports it (vLLM's
    `stop_reason`, SGLang's `matched_stop`). If not, a closing tag such as `</answer>` or `<|end_search_query|>` is
    appended if its element is the last one opened and still open. Other texts are not appended, because a reply
    that ended without a stop text looks the same.

    **Prefill.** These APIs cannot force the beginning of a reply, so agents request none; one that is requested is
    not sent, and is removed from replies that begin with it. With `continue_prefill` it is sent as the beginning
    of the assistant message, with the flags by which vLLM and SGLang continue that message.

    **Function calls.** A request with functions is sent with `tools`; earlier calls are sent as `tool_calls` with
    their thoughts as `reasoning_content`, and their answers as messages of the role `tool`. The text of a reply is
    its `reasoning_content` (or `reasoning`), content and `tool_calls` in the form of `agents/tool_calls.py`.

    Args:
        model: Name of the model, such as "gpt-4.1-mini".
        base_url: URL of the API. None uses the environment variable OPENAI_BASE_URL, or else OpenAI's API.
        api_key: API key. None uses the environment variable OPENAI_API_KEY; local servers usually need none.
        continue_prefill: Send the beginning that an agent requests of a reply, as the beginning of the assistant
            message, with the flags by which vLLM and SGLang continue it.
        **options: See `RemoteEngine`.

    Raises:
        ConfigurationError: OpenAI's API is used without a key; see also `RemoteEngine`.
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
                "OpenAI's API needs a key: set the environment variable OPENAI_API_KEY, or pass --base-url (in"
                " Python base_url=) for another server."
            )
        super().__init__(model, base_url=base_url, api_key=api_key or "none", **options)
        self.name = f"openai:{model}"
        self.forces_prefill = self._continue_prefill = continue_prefill

    def body(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        messages: list[dict[str, Any]]
        if request.tools:
            messages = as_chat_messages(request.messages)
        else:
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
        if request.tools:
            body["tools"] = list(request.tools)
        if request.prefill and self._continue_prefill:
            messages.append({"role": "assistant", "content": request.prefill})
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        return body | self._extra

    def read(self, reply: dict[str, Any], request: Request) -> Completion:
        choice = reply["choices"][0]
        message = choice["message"]
        text = read_chat_message(message) if request.tools else _content(message)
        reason = choice.get("finish_reason")
        check_finish(reason)
        finish: Finish = "length" if reason == "length" else "stop"
        matched_stop = choice.get("stop_reason", choice.get("matched_stop"))
        reports_stop = "stop_reason" in choice or "matched_stop" in choice
        if request.prefill:
            text = text.removeprefix(request.prefill)
        text, cut = cut_at_stop(text, request.sampling.stop)
        if cut:
            finish = "stop"
        elif finish == "stop":
            if reports_stop:
                text += matched_stop if matched_stop in request.sampling.stop else ""
            else:
                text += missing_closing_tag(request.prefill + text, request.sampling.stop)
        return Completion(text, finish, usage=read_usage(reply.get("usage")))


def _content(message: Mapping[str, Any]) -> str:
    """Return the text of a message.

    Raises:
        RetryableError: It is no text.
    """
    text = message.get("content")
    if text is None:
        text = message.get("refusal") or ""
    if not isinstance(text, str):
        raise RetryableError(f"the response has a text of type {type(text).__name__}")
    return text


def check_finish(reason: object) -> None:
    """Raise `RetryableError` if the finish reason of a reply says that it was broken off."""
    if reason in FAILED:
        raise RetryableError(f"the reply was broken off with the finish reason {reason!r}")


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """Return `text` up to and including the first stop text, and True if there is one."""
    ends = [at + len(s) for s in stop if s and (at := text.find(s)) >= 0]
    return (text[: min(ends)], True) if ends else (text, False)


def missing_closing_tag(text: str, stop: Sequence[str]) -> str:
    """Return the closing tag among the stop texts whose element is the last one left open in `text`, or ""."""
    closing_tag = ""
    last = -1
    for s in stop:
        match = _CLOSING.fullmatch(s)
        if match is None:
            continue
        opened = text.rfind(f"<{match[1]}>" if match[1] else f"<|begin_{match[2]}|>")
        if opened > last and text.find(s, opened) < 0:
            closing_tag, last = s, opened
    return closing_tag
