"""One attempt of a request over HTTP, and the classification of its response."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import random
import re
import ssl
import time
import urllib.request
import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from ...envs.errors import ConfigurationError
from ...envs.extras import missing_extra
from ...envs.http_client import public_url
from ...envs.retry_after import requested_wait
from ..base import Stop
from .faults import (
    ContextOverflow,
    OptionRejected,
    RequestRejected,
    RetryableError,
    error_text,
    is_content_refusal,
    is_context_overflow,
    unsupported_option,
)

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 10.0
MAX_RESPONSE = 64 * 2**20
"""Largest body of a response in bytes, unpacked."""
_LONG_SECRET = 16
"""Number of characters from which a credential is looked for in replies, too: no text contains it by chance."""
_CREDENTIAL = re.compile(r"auth|key|token|secret|pass|cookie|(^|[-_])sig", re.IGNORECASE)
"""Names of headers and of query parameters whose values are credentials."""
_ABOUT_CONTENT = frozenset({400, 413, 422, 451})
"""Statuses that a server which has answered before returns for one conversation, not for all."""


class Connection:
    """A connection pool to an OpenAI-compatible API, within one event loop.

    It uses aiohttp directly: the `openai` SDK takes three times the CPU time per request, even without its own
    retries and parsing, which delays 64 concurrent requests of 100 ms each.

    Args:
        base_url: URL of the API, up to and including `/v1`. Proxies of the process environment are used. A user
            name with a password takes the place of the header `authorization`; they and a query are never shown.
        model: Name of the model, for error messages.
        headers: HTTP headers of every request, whose values are never shown.
        timeout: Maximum duration of one attempt, to the last byte, in seconds.

    Attributes:
        answered: True once the server has answered a request.
        base_url: The URL without what may be secret.

    Raises:
        ConfigurationError: The URL is invalid, or the extra `openai` is not installed.
    """

    def __init__(self, base_url: str, model: str, headers: Mapping[str, str], timeout: float) -> None:
        try:
            import aiohttp  # noqa: F401
            from yarl import URL
        except ImportError as error:
            raise missing_extra("this engine", "openai", error) from None
        self.base_url = public_url(base_url).rstrip("/")
        try:
            base: Any = URL(base_url)
            parts = urlsplit(base_url)
        except ValueError:
            raise ConfigurationError(f"base_url {self.base_url!r} is not a valid URL.") from None
        if base.scheme not in ("http", "https") or not base.host:
            raise ConfigurationError(f"base_url must look like https://host/v1, not {self.base_url!r}.")
        self._base = base.with_user(None).with_fragment(None)
        self._headers = {"accept-encoding": "identity", "content-type": "application/json", **headers}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["authorization"] = f"Basic {base64.b64encode(user).decode()}"
        queries = [pair.partition("=")[::2] for pair in parts.query.split("&")]
        values = [(name, value.removeprefix("Bearer ").removeprefix("Basic ")) for name, value in headers.items()]
        credentials = [value for name, value in (*queries, *values) if _CREDENTIAL.search(name)]
        self._secrets = _Secrets(
            [
                parts.username,
                parts.password,
                *credentials,
                self._headers.get("authorization", "").partition(" ")[2],
            ],
            [*parts.query.split("&"), *(value for _, value in (*queries, *values))],
        )
        self.answered = False
        self._label = f"{self.base_url} ({model})"
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None
        self._proxy = _proxy(self.base_url)
        self._urls: dict[str, Any] = {}
        self._not_before = 0.0
        self._rejected_options: set[str] = set()
        self._rng = random.Random(os.urandom(16))  # jitter of waits only; results do not depend on it

    @property
    def is_waiting(self) -> bool:
        """True while the server has requested that no request be sent."""
        return self._not_before > time.monotonic()

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
                content = await self._exchange("POST", path, self._without_rejected(body))
                break
            except OptionRejected:
                pass
        reply = self._decode(content)
        if reply.get("error") and not reply.get("choices"):
            raise RetryableError(f"the response is an error: {self._explain(reply)}")
        return reply

    async def get(self, path: str) -> dict[str, Any]:
        """Request a page and return the JSON object of its response.

        Raises:
            RetryableError, RequestRejected, Stop: There is no such response.
        """
        return self._decode(await self._exchange("GET", path, None))

    def _decode(self, content: bytes) -> dict[str, Any]:
        try:
            reply = decode_json(self._secrets.hide_in_reply(content))
        except ValueError:
            text = self._explain(content[:200].decode(errors="replace"), 80)
            raise RetryableError(f"the response is not JSON: {text!r}") from None
        if not isinstance(reply, dict):
            raise RetryableError(f"the response is not a JSON object: {self._explain(reply, 80)!r}")
        return reply

    def _explain(self, body: Any, limit: int = 200) -> str:
        """Return the message in a response without secrets; see `error_text`."""
        return error_text(body, limit, self._secrets.hide)

    def _without_rejected(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body without options that the server has rejected."""
        if not self._rejected_options:
            return body
        accepted = {name: value for name, value in body.items() if name not in self._rejected_options}
        if "max_tokens" in body and "max_tokens" in self._rejected_options:
            accepted["max_completion_tokens"] = body["max_tokens"]
        return accepted

    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        import aiohttp

        session = self._session or self._open()
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = self._base.joinpath(path, encoded=True).with_query(self._base.query)
        data = None if body is None else encode_json(body)
        try:
            # The one timer of an attempt; those of aiohttp cost as much as the rest of the request.
            async with asyncio.timeout(self._timeout):
                async with session.request(
                    method, url, data=data, proxy=self._proxy, allow_redirects=False
                ) as response:
                    content = await _read(response)
                    status, headers = response.status, response.headers
        except TimeoutError:
            raise RetryableError(f"no complete response within {self._timeout:g} s") from None
        except (aiohttp.ClientError, OSError, zlib.error, ValueError) as error:
            reason = self._explain(str(error)) or type(error).__name__
            raise RetryableError(f"the connection failed ({reason})", unreachable=True) from None
        if 200 <= status < 300:
            return content
        raise self._classify(status, headers, content, body or {})

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        context: ssl.SSLContext | bool = True
        if self._base.scheme == "https" or (self._proxy or "").startswith("https"):
            context = _ssl_context()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=context),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # `_read` bounds the size.
        )
        return self._session

    def _classify(
        self, status: int, headers: Mapping[str, str], content: bytes, sent: Mapping[str, Any]
    ) -> Exception:
        """Return the exception for an HTTP status other than success."""
        try:
            body = decode_json(content)
        except ValueError:
            body = content.decode(errors="replace")
        reason = f"status {status}: {self._explain(body) or 'no explanation'}"
        if status in (401, 402) or (status == 429 and "insufficient_quota" in str(body)):
            return Stop(f"{self._label} rejects the account or its key: {reason}")
        if (status == 403 and not is_content_refusal(body)) or (status == 404 and not self.answered):
            hint = "check the model's name" if status == 404 else "check that the key may use this model"
            return Stop(f"{self._label} rejects all requests: {reason}; {hint}.")
        if 300 <= status < 400:
            return Stop(
                f"{self._label} has moved; pass base_url={public_url(headers.get('location', ''))[:200]!r}."
            )
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
        # A server that has answered accepts the options and the model, so these are about the conversation.
        by_content = (self.answered and status in _ABOUT_CONTENT) or is_content_refusal(body)
        return RequestRejected(f"{self._label} rejects this request: {reason}", by_content)


class _Secrets:
    """Credentials that no message and no reply may repeat, and further values that no message may.

    Args:
        credentials: Credentials; those of less than four characters and the placeholder "none" are not secret.
        others: Values that may be secret, such as an API's version; a model's reply may contain them.
    """

    def __init__(self, credentials: Iterable[str | None], others: Iterable[str]) -> None:
        in_replies = _secret_forms(credentials)
        self._values = sorted(in_replies | _secret_forms(others), key=len, reverse=True)
        self._in_replies = [
            value.encode() for value in self._values if value in in_replies and len(value) >= _LONG_SECRET
        ]

    def hide(self, text: str) -> str:
        """Return a text with *** for every secret."""
        for value in self._values:
            text = text.replace(value, "***")
        return text

    def hide_in_reply(self, content: bytes) -> bytes:
        """Return a reply with *** for every long credential: a server may repeat the headers of the request."""
        for value in self._in_replies:
            if value in content:
                content = content.replace(value, b"***")
        return content


def _secret_forms(values: Iterable[str | None]) -> set[str]:
    forms = {form for value in values if value for form in (value, unquote(value))}
    return {form for form in forms if len(form) >= 4 and form != "none"}


def encode_json(data: Any) -> bytes:
    """Return data as JSON; half surrogate pairs, which models produce, are escaped."""
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:
        return json.dumps(data).encode()


def decode_json(content: bytes) -> Any:
    """Return the data of JSON, in which half surrogate pairs and NaN are accepted.

    Raises:
        ValueError: It is not JSON, or nested too deeply.
    """
    try:
        try:
            return msgspec.json.decode(content)
        except ValueError:
            return json.loads(content)  # It accepts a little more, at three times the cost.
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _too_large() -> RequestRejected:
    return RequestRejected(f"the response exceeds {MAX_RESPONSE >> 20} MB")


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of a response.

    Raises:
        RequestRejected: It exceeds `MAX_RESPONSE` bytes, as sent or unpacked.
        ValueError, zlib.error: It is compressed in an unknown way, or damaged.
    """
    if response.content_length is not None:
        if response.content_length > MAX_RESPONSE:
            raise _too_large()
        content: bytes = await response.read()
    else:
        parts, size = [], 0
        async for part in response.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > MAX_RESPONSE:
                raise _too_large()
        content = b"".join(parts)
    encoding = response.headers.get("content-encoding", "identity")
    if encoding == "identity" or not content:
        return content
    if encoding not in ("gzip", "deflate"):
        raise ValueError(f"the response has the encoding {encoding[:20]!r}")
    unpacker = zlib.decompressobj(wbits=47)  # of either format
    content = unpacker.decompress(content, MAX_RESPONSE)
    if unpacker.unconsumed_tail:
        raise _too_large()
    return content


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
