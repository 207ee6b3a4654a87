"""Requests over HTTP to servers that need not be trusted: bounded in time and size, without redirects.

A redirect is an error that names its target, so that a server cannot send the
client, or its credentials, elsewhere.
"""

from __future__ import annotations

import base64
import http.client
import io
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from .errors import ConfigurationError

MAX_REPLY = 64 * 2**20
"""Largest body of a reply in bytes."""


class StatusError(Exception):
    """Reply with a status other than success.

    Attributes:
        status: Status code.
        reason: Text of the status.
        headers: Headers of the reply.
        body: First 4,096 bytes of the body.
    """

    def __init__(self, status: int, reason: str, headers: http.client.HTTPMessage, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.reason = reason
        self.headers = headers
        self.body = body


class ReplyTooLarge(Exception):
    """Reply whose body exceeds the limit."""


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


def exchange(
    url: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    timeout: float,
    max_reply: int = MAX_REPLY,
) -> bytes:
    """Send a GET request, or a POST request with a body, and return the body of the reply.

    System proxies are bypassed, because these servers run on this machine or in the local network. A user name and
    password in the URL are sent as basic authentication.

    Args:
        url: URL of the request.
        body: Body of a POST request; None for a GET request.
        headers: Further headers.
        timeout: Seconds until the last byte of the reply.
        max_reply: Largest body of a reply in bytes.

    Raises:
        StatusError: The status is not a success; redirects are included.
        ReplyTooLarge: The reply exceeds `max_reply`.
        TimeoutError: The reply was not complete in time.
        OSError, http.client.HTTPException: The connection failed, or the reply is not HTTP.
        ConfigurationError: The URL is no `http://` or `https://` URL.
    """
    parts = parse_address(url)
    end = time.monotonic() + timeout
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(str(parts.hostname), parts.port, timeout=timeout)
    connection.response_class = _timed_response(end)
    sent = {"Accept-Encoding": "identity", "Connection": "close", **(headers or {})}
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        sent.setdefault("Authorization", f"Basic {base64.b64encode(user).decode()}")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request("GET" if body is None else "POST", target, body, sent)
        with connection.getresponse() as response:
            if not 200 <= response.status < 300:
                raise StatusError(response.status, response.reason, response.headers, response.read(4096))
            content = response.read(max_reply + 1)
    finally:
        connection.close()
    if len(content) > max_reply:
        raise ReplyTooLarge(f"more than {max_reply >> 20} MB")
    if response.length:
        raise http.client.IncompleteRead(content, response.length)
    return content


def _timed_response(end: float) -> Any:
    """Return a class of responses that are read until `time.monotonic()` is `end`."""

    class Response(http.client.HTTPResponse):
        def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
            super().__init__(sock, *arguments, **options)
            self.fp.close()
            self.fp = io.BufferedReader(_TimedReader(sock, end))

    return Response


class _TimedReader(io.RawIOBase):
    """Bytes of a socket until a deadline; the timeout of a socket alone begins again with every byte."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._socket = sock
        self._end = end
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()
