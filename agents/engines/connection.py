"""One attempt of a request over HTTP, and the classification of its response."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import ssl
import time
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ...envs.errors import ConfigurationError
from ..base import Stop
from .faults import (
    ContextOverflow,
    OptionRejected,
    RequestRejected,
    RetryableError,
    error_text,
    is_content_refusal,
    is_context_overflow,
    requested_wait,
    unsupported_option,
)

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 10.0


class Connection:
    """A connection pool to an OpenAI-compatible API, within one event loop.

    It uses aiohttp directly: the `openai` SDK takes three times the CPU time per request, even without its own
    retries and parsing, which delays 64 concurrent requests of 100 ms each.

    Args:
        base_url: URL of the API, up to and including `/v1`. Proxies of the process environment are used.
        model: Name of the model, for error messages.
        headers: HTTP headers of every request.
        timeout: Maximum duration of one attempt, to the last byte, in seconds.

    Attributes:
        answered: True once the server has answered a request.

    Raises:
        ConfigurationError: The URL is invalid, or the extra `openai` is not installed.
    """

    def __init__(self, base_url: str, model: str, headers: Mapping[str, str], timeout: float) -> None:
        try:
            import aiohttp  # noqa: F401
            from yarl import URL
        except ImportError as error:
            raise ConfigurationError(
                f'this engine needs the extra "openai" ({error.name} is missing): pip install "arboretum[openai]".'
            ) from None
        try:
            self._base: Any = URL(base_url)
        except ValueError as error:
            raise ConfigurationError(f"base_url {base_url!r} is not a valid URL ({error}).") from None
        if self._base.scheme not in ("http", "https") or not self._base.host:
            raise ConfigurationError(f"base_url must look like https://host/v1, not {base_url!r}.")
        self.base_url = base_url.rstrip("/")
        self.answered = False
        self._label = f"{self.base_url} ({model})"
        self._headers = dict(headers)
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None
        self._proxy = _proxy(self.base_url)
        self._not_before = 0.0
        self._rejected_options: set[str] = set()
        self._rng = random.Random(os.urandom(16))  # jitter of waits only; results do not depend on it

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)  # lets the transports close

    def jitter(self, wait: float) -> float:
        """Return a random delay on top of `wait`, so that many waiting requests do not resume at the same time."""
        return self._rng.uniform(0, min(1.0, 0.1 + wait / 4))

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the JSON object of its response.

        Raises:
            RetryableError: This attempt failed, but another may succeed.
            RequestRejected, ContextOverflow: This request cannot succeed.
            Stop: No request can succeed.
        """
        while (wait := self._not_before - time.monotonic()) > 0:
            await asyncio.sleep(wait + self.jitter(wait))
        while True:
            try:
                content = await self._exchange(path, self._without_rejected(body))
                break
            except OptionRejected:
                pass
        try:
            reply = json.loads(content)
        except ValueError:
            text = error_text(content[:200].decode(errors="replace"), 80)
            raise RetryableError(f"the response is not JSON: {text!r}") from None
        if not isinstance(reply, dict):
            raise RetryableError(f"the response is not a JSON object: {error_text(reply, 80)!r}")
        if reply.get("error") and not reply.get("choices"):
            raise RetryableError(f"the response is an error: {error_text(reply)}")
        return reply

    def _without_rejected(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body without options that the server has rejected."""
        if not self._rejected_options:
            return body
        accepted = {name: value for name, value in body.items() if name not in self._rejected_options}
        if "max_tokens" in body and "max_tokens" in self._rejected_options:
            accepted["max_completion_tokens"] = body["max_tokens"]
        return accepted

    async def _exchange(self, path: str, body: dict[str, Any]) -> bytes:
        import aiohttp

        session = self._session or self._open()
        try:
            url = self._base.joinpath(path, encoded=True)
            async with session.post(url, json=body, proxy=self._proxy, allow_redirects=False) as response:
                content: bytes = await response.read()
                status, headers = response.status, response.headers
        except TimeoutError:
            raise RetryableError(f"no complete response within {self._timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            reason = error_text(str(error)) or type(error).__name__
            raise RetryableError(f"the connection failed ({reason})", unreachable=True) from None
        if 200 <= status < 300:
            return content
        raise self._classify(status, headers, content, body)

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        context: ssl.SSLContext | bool = True
        if self._base.scheme == "https" or (self._proxy or "").startswith("https"):
            context = _ssl_context()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=context),
            timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=_CONNECT_SECONDS),
            headers=self._headers,
        )
        return self._session

    def _classify(
        self, status: int, headers: Mapping[str, str], content: bytes, sent: Mapping[str, Any]
    ) -> Exception:
        """Return the exception for an HTTP status other than success."""
        try:
            body = json.loads(content)
        except ValueError:
            body = content.decode(errors="replace")
        reason = f"status {status}: {error_text(body) or 'no explanation'}"
        if status in (401, 402) or (status == 429 and "insufficient_quota" in str(body)):
            return Stop(f"{self._label} rejects the account or its key: {reason}")
        if status in (403, 404) and not self.answered:
            hint = "check the model's name" if status == 404 else "check that the key may use this model"
            return Stop(f"{self._label} rejects all requests: {reason}; {hint}.")
        if 300 <= status < 400:
            return Stop(f"{self._label} has moved; pass base_url={headers.get('location')}.")
        if status in (400, 413) and is_context_overflow(body):
            return ContextOverflow(reason)
        if status in (400, 422):
            option = unsupported_option(body, sent)
            if option is not None:
                if option not in self._rejected_options:
                    log.warning("%s rejects the option %s, which is omitted (%s)", self._label, option, reason)
                self._rejected_options.add(option)
                return OptionRejected(reason)
        if status in (404, 408, 409, 425, 429) or status >= 500:
            wait = requested_wait(headers, time.time())
            if wait is not None:
                self._not_before = max(self._not_before, time.monotonic() + wait)
            return RetryableError(reason, wait)
        # A server that has answered accepts the options and the model, so this is about the conversation.
        by_content = self.answered or is_content_refusal(body)
        return RequestRejected(f"{self._label} rejects this request: {reason}", by_content)


def _proxy(url: str) -> str | None:
    """Return the proxy for a URL from the process environment; aiohttp would look it up in a thread each time."""
    parts = urlsplit(url)
    if parts.hostname is None or urllib.request.proxy_bypass(parts.hostname):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


def _ssl_context() -> ssl.SSLContext:
    """Return a context with the system's certificates, or certifi's where Python does not find the system's."""
    context = ssl.create_default_context()
    if not context.get_ca_certs() and not os.environ.get("SSL_CERT_FILE"):
        try:
            import certifi
        except ImportError:
            return context
        context.load_verify_locations(certifi.where())
    return context
