"""What can go wrong between us and a model's server, and how long to wait before trying again."""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Mapping
from typing import Any

_RESET_CAP = 60.0
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")
_CONTEXT = re.compile(
    r"context.{0,12}length|maximum context|context window|prompt is too long|too many tokens", re.I
)
_OPTIONS = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop")
_UNSUPPORTED = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|unexpected|not permitted|deprecated|array_above_max_length",
    re.IGNORECASE,
)


class Fault(Exception):
    """One try failed, and another may succeed.

    Args:
        sentence: what happened.
        wait: seconds after which the server asks to be tried again; None if it does not say.
        unreachable: whether there was no answer at all, good or bad.
    """

    def __init__(self, sentence: str, wait: float | None = None, unreachable: bool = False) -> None:
        super().__init__(sentence)
        self.wait = wait
        self.unreachable = unreachable


class Refused(Exception):
    """This request will not be answered; others may be."""


class Adapted(Exception):
    """The server refused an option, which is left out from now on."""


class ContextFull(Exception):
    """The conversation is longer than the model can read."""


def seconds(duration: str) -> float | None:
    """Seconds of a duration as rate-limit headers write it: `1s`, `6m0s`, `20ms` or plain seconds."""
    text = duration.strip()
    try:
        value = float(text)
    except ValueError:
        match = _DURATION.fullmatch(text)
        if match is None or not any(match.groups()):
            return None
        try:
            parts = [float(part or 0) for part in match.groups()]
        except ValueError:
            return None
        value = sum(part * unit for part, unit in zip(parts, (86400, 3600, 60, 1, 0.001), strict=True))
    return value if math.isfinite(value) and value >= 0 else None


def asked_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that a server asks us to wait; None if it does not say.

    `Retry-After` (RFC 9110, 10.2.3: seconds or a date) and `retry-after-ms` are taken at their word. The headers
    `x-ratelimit-reset-*` say when a limit is whole again, long after it first lets a request through; they count
    where `x-ratelimit-remaining-*` is 0, for a minute at most.

    Args:
        headers: of the response, names in lower case or matched without regard to case.
        now: the time, as `time.time()`.
    """
    milliseconds = headers.get("retry-after-ms")
    if milliseconds is not None and (value := seconds(milliseconds)) is not None:
        return value / 1000
    after = headers.get("retry-after")
    if after is not None:
        value = seconds(after)
        if value is not None:
            return value
        try:
            return max(0.0, email.utils.parsedate_to_datetime(after).timestamp() - now)
        except (ValueError, OverflowError):
            pass
    resets = [
        seconds(headers.get(f"x-ratelimit-reset-{kind}", ""))
        for kind in ("requests", "tokens")
        if headers.get(f"x-ratelimit-remaining-{kind}", "").strip() == "0"
    ]
    known = [value for value in resets if value is not None]
    return min(max(known), _RESET_CAP) if known else None


def said(body: Any, limit: int = 200) -> str:
    """The message in an error's body, whatever its shape, on one line."""
    text = body
    if isinstance(body, dict):
        inner = body.get("error", body)
        text = inner.get("message") or inner if isinstance(inner, dict) else inner
    line = " ".join(str(text or "").split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def is_context_full(body: Any) -> bool:
    """Whether the body of a 400 or 413 says that the conversation is too long."""
    inner = body.get("error", body) if isinstance(body, dict) else None
    code = inner.get("code") if isinstance(inner, dict) else None
    return code == "context_length_exceeded" or bool(_CONTEXT.search(said(body, 2000)))


def unsupported_option(body: Any, sent: Mapping[str, Any]) -> str | None:
    """The sampling option that a 400 or 422 objects to as such, if it names one of those sent."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    fields = inner if isinstance(inner, dict) else {}
    message = said(body, 2000)
    reason = f"{fields.get('code')} {fields.get('type')} {message}"
    if not _UNSUPPORTED.search(reason):
        return None
    named = fields.get("param")
    if named in _OPTIONS:
        return named if named in sent else None
    quoted = re.findall(r"['\"`](\w+)['\"`]", message)
    return next((name for name in quoted if name in _OPTIONS and name in sent), None)
