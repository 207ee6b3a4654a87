"""Addresses of servers, and what of them may be shown."""

from __future__ import annotations

import base64
from contextlib import suppress
from urllib.parse import SplitResult, unquote, urlsplit

from .errors import ConfigurationError


def public_url(url: str) -> str:
    """Return a URL without user name, password, query and fragment, which may be secrets."""
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.hostname:
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            port = "" if parts.port is None else f":{parts.port}"
            return f"{parts.scheme}://{host}{port}{parts.path}"
    return url.partition("?")[0].partition("#")[0].rpartition("@")[2]


def parse_address(url: str) -> SplitResult:
    """Return the parts of a server's URL.

    Raises:
        ConfigurationError: It is no `http://` or `https://` URL.
    """
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port >= 0):
            return parts
    raise ConfigurationError(f"a server's address looks like http://host:port, not {public_url(url)!r}.")


def basic_authorization(parts: SplitResult) -> dict[str, str]:
    """Return the header for the user name and the password of an address; nothing if it has none."""
    if parts.username is None:
        return {}
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return {"authorization": f"Basic {base64.b64encode(user).decode()}"}
