"""One try of a request over HTTP: what goes out, and what an answer, or the lack of one, means."""

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
from .faults import Adapted, ContextFull, Fault, Refused, asked_wait, is_context_full, said, unsupported_option

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 10.0


class Connection:
    """A pool of connections to an OpenAI-compatible API. For one event loop.

    It goes to aiohttp directly: the `openai` SDK, even stripped of its own retries and parsing, spends three times
    the processor time on a request, and 64 requests of 100 ms then no longer come back on time.

    Args:
        base_url: address of the API, up to and including `/v1`. Proxies named in the environment are used.
        model: name of the model, for sentences.
        headers: of every request.
        timeout: seconds that one try may take, to the last byte.

    Attributes:
        answered: whether the server has ever answered a request.

    Raises:
        ConfigurationError: the address cannot be used, or the extra `openai` is not installed.
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
            raise ConfigurationError(f"base_url {base_url!r} cannot be used ({error}).") from None
        if self._base.scheme not in ("http", "https") or not self._base.host:
            raise ConfigurationError(f"base_url must look like https://host/v1, unlike {base_url!r}.")
        self.base_url = base_url.rstrip("/")
        self.answered = False
        self._where = f"{self.base_url} ({model})"
        self._headers = dict(headers)
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None
        self._proxy = _proxy(self.base_url)
        self._not_before = 0.0
        self._without: set[str] = set()
        self._rng = random.Random(os.urandom(16))  # of waits only

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)  # lets transports say goodbye

    def jitter(self, wait: float) -> float:
        """A random delay on top of `wait`, so that many do not come back at the same moment."""
        return self._rng.uniform(0, min(1.0, 0.1 + wait / 4))

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON object that answers a request.

        Raises:
            Fault: this try failed, another may succeed.
            Refused, ContextFull: this request will not be answered.
            Stop: no request will be answered.
        """
        while (wait := self._not_before - time.monotonic()) > 0:
            await asyncio.sleep(wait + self.jitter(wait))
        while True:
            try:
                content = await self._exchange(path, self._fitted(body))
                break
            except Adapted:
                pass
        try:
            reply = json.loads(content)
        except ValueError:
            raise Fault(f"a reply that is no JSON: {said(content[:200].decode(errors='replace'), 80)!r}") from None
        if not isinstance(reply, dict):
            raise Fault(f"a reply that is no JSON object: {said(reply, 80)!r}")
        if reply.get("error") and not reply.get("choices"):
            raise Fault(f"an error in place of a reply: {said(reply)}")
        return reply

    def _fitted(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body without options that the server has refused."""
        if not self._without:
            return body
        fitted = {name: value for name, value in body.items() if name not in self._without}
        if "max_tokens" in body and "max_tokens" in self._without:
            fitted["max_completion_tokens"] = body["max_tokens"]
        return fitted

    async def _exchange(self, path: str, body: dict[str, Any]) -> bytes:
        import aiohttp

        session = self._session or self._open()
        try:
            url = self._base.joinpath(path, encoded=True)
            async with session.post(url, json=body, proxy=self._proxy, allow_redirects=False) as response:
                content: bytes = await response.read()
                status, headers = response.status, response.headers
        except TimeoutError:
            raise Fault(f"no whole reply within {self._timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            reason = said(str(error)) or type(error).__name__
            raise Fault(f"the connection failed ({reason})", unreachable=True) from None
        if 200 <= status < 300:
            return content
        raise self._judge(status, headers, content, body)

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

    def _judge(
        self, status: int, headers: Mapping[str, str], content: bytes, sent: Mapping[str, Any]
    ) -> Exception:
        """What an HTTP status other than success means."""
        try:
            body = json.loads(content)
        except ValueError:
            body = content.decode(errors="replace")
        what = f"status {status}: {said(body) or 'no explanation'}"
        if status in (401, 402) or (status == 429 and "insufficient_quota" in str(body)):
            return Stop(f"{self._where} refuses the account or its key: {what}")
        if status in (403, 404) and not self.answered:
            hint = "is the model's name right?" if status == 404 else "may this key use it?"
            return Stop(f"{self._where} refuses: {what}; {hint}")
        if 300 <= status < 400:
            return Stop(f"{self._where} has moved to {headers.get('location')}; give that as base_url.")
        if status in (400, 413) and is_context_full(body):
            return ContextFull(what)
        if status in (400, 422):
            option = unsupported_option(body, sent)
            if option is not None:
                if option not in self._without:
                    log.warning("%s takes no %s; going on without (%s)", self._where, option, what)
                self._without.add(option)
                return Adapted(what)
        if status in (404, 408, 409, 425, 429) or status >= 500:
            wait = asked_wait(headers, time.time())
            if wait is not None:
                self._not_before = max(self._not_before, time.monotonic() + wait)
            return Fault(what, wait)
        return Refused(f"{self._where} refuses this request: {what}")


def _proxy(url: str) -> str | None:
    """The proxy that the environment names for an address; aiohttp itself would ask in a thread each time."""
    parts = urlsplit(url)
    if parts.hostname is None or urllib.request.proxy_bypass(parts.hostname):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


def _ssl_context() -> ssl.SSLContext:
    """The system's certificates, and certifi's where Python does not find the system's."""
    context = ssl.create_default_context()
    if not context.get_ca_certs() and not os.environ.get("SSL_CERT_FILE"):
        try:
            import certifi
        except ImportError:
            return context
        context.load_verify_locations(certifi.where())
    return context
