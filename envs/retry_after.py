"""Delay before a retry, as the headers of a server request it."""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Mapping

_RESET_CAP = 60.0
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")


def parse_duration(duration: str) -> float | None:
    """Return the seconds of a duration in a rate-limit header: `1s`, `6m0s`, `20ms` or a number of seconds.

    Returns:
        None if the duration is malformed.
    """
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


def requested_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Return the delay in seconds that a server requests before the next attempt; None if it requests none.

    `Retry-After` (RFC 9110, 10.2.3: seconds or a date) and `retry-after-ms` are used as they are. The headers
    `x-ratelimit-reset-*` have the time until a limit is fully replenished, long after it first admits a request;
    they are used only where `x-ratelimit-remaining-*` is 0, and for at most one minute.

    Args:
        headers: Headers of the response, with names in lower case or matched case-insensitively.
        now: Current time, as of `time.time()`.
    """
    milliseconds = headers.get("retry-after-ms")
    if milliseconds is not None and (value := parse_duration(milliseconds)) is not None:
        return value / 1000
    after = headers.get("retry-after")
    if after is not None:
        value = parse_duration(after)
        if value is not None:
            return value
        try:
            return max(0.0, email.utils.parsedate_to_datetime(after).timestamp() - now)
        except (ValueError, TypeError, IndexError, OverflowError, OSError):
            pass
    resets = [
        parse_duration(headers.get(f"x-ratelimit-reset-{kind}", ""))
        for kind in ("requests", "tokens")
        if headers.get(f"x-ratelimit-remaining-{kind}", "").strip() == "0"
    ]
    known = [value for value in resets if value is not None]
    return min(max(known), _RESET_CAP) if known else None
