"""Errors of requests to a model server."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

BASE_URL_OPTION = "--base-url (in Python base_url=)"
"""Name of a server's address in messages."""

_CONTEXT = re.compile(
    r"context.{0,12}(length|size)|maximum context|context window|prompt is too long|too many tokens", re.I
)
_CONTENT = re.compile(r"content_?(policy|filter)|moderation|safety", re.I)
_OPTIONS = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop")
_UNSUPPORTED = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|unexpected|not permitted|deprecated|array_above_max_length",
    re.IGNORECASE,
)


class RetryableError(Exception):
    """An attempt failed, but another may succeed.

    Args:
        message: Description of the failure.
        wait: Delay in seconds that the server requests before the next attempt; None if it requests none.
        unreachable: True if there was no response at all.
        may_cost: True if the server may have processed the request, and charge for it.
    """

    def __init__(
        self, message: str, wait: float | None = None, unreachable: bool = False, may_cost: bool = False
    ) -> None:
        super().__init__(message)
        self.wait = wait
        self.unreachable = unreachable
        self.may_cost = may_cost


class RequestRejected(Exception):
    """This request cannot succeed; others may.

    Args:
        message: Description of the failure.
        by_content: True if the server refuses the content of the conversation; False if the request failed for
            another reason.
        may_cost: True if the server may have processed the request, and charge for it.
    """

    def __init__(self, message: str, by_content: bool = False, may_cost: bool = False) -> None:
        super().__init__(message)
        self.by_content = by_content
        self.may_cost = may_cost


class OptionRejected(Exception):
    """The server rejected an option, which is omitted from now on."""


class ContextOverflow(Exception):
    """The conversation exceeds the model's context window."""


def error_text(body: Any, limit: int = 200, hide: Callable[[str], str] = str) -> str:
    """Return the message in an error response of any shape, on one line of at most `limit` characters.

    Args:
        body: Body of the response.
        limit: Maximum number of characters.
        hide: Replaces secrets in the message, before it is cut.
    """
    text = body
    if isinstance(body, dict):
        inner = body.get("error", body)
        text = inner.get("message") or inner if isinstance(inner, dict) else inner
    line = " ".join(hide(str(text or "")).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def is_context_overflow(body: Any) -> bool:
    """Return True if the body of a 400 or 413 response reports that the conversation is too long."""
    inner = body.get("error", body) if isinstance(body, dict) else None
    code = inner.get("code") if isinstance(inner, dict) else None
    return code == "context_length_exceeded" or bool(_CONTEXT.search(error_text(body, 2000)))


def is_content_refusal(body: Any) -> bool:
    """Return True if the body of an error response names a content policy: OpenAI's, Azure's or OpenRouter's."""
    inner = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(inner, dict):
        return False
    metadata = inner.get("metadata")
    is_flagged = isinstance(metadata, dict) and "flagged_input" in metadata
    return is_flagged or bool(_CONTENT.search(f"{inner.get('code')} {inner.get('type')}"))


def unsupported_option(body: Any, sent: Mapping[str, Any]) -> str | None:
    """Return the sampling option that a 400 or 422 response rejects as unsupported.

    Args:
        body: Body of the response.
        sent: Body of the request.

    Returns:
        None if the response names no option of the request.
    """
    inner = body.get("error", body) if isinstance(body, dict) else body
    fields = inner if isinstance(inner, dict) else {}
    message = error_text(body, 2000)
    reason = f"{fields.get('code')} {fields.get('type')} {message}"
    if not _UNSUPPORTED.search(reason):
        return None
    named = fields.get("param")
    if named in _OPTIONS:
        return named if named in sent else None
    # "Unsupported parameter: 'seed'", or OpenAI's "Unrecognized request argument supplied: seed".
    quoted = re.findall(r"(?<=['\"`])\w+(?=['\"`])|(?<=supplied: )\w+", message)
    return next((name for name in quoted if name in _OPTIONS and name in sent), None)
