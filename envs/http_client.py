"""Requests over HTTP to servers that need not be trusted: bounded in time and size, without redirects.

`HTTPClient` belongs to one event loop. `BlockingClient` serves the threads of a process with an event loop in the
background.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import ssl
import threading
import urllib.request
import weakref
import zlib
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from .addresses import public_url
from .extras import missing_extra

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")

MAX_RESPONSE = 64 * 2**20
"""Largest body of a response in bytes, unpacked."""
_CONNECT_SECONDS = 10.0


class Response(NamedTuple):
    """Response of a server, of any status.

    Attributes:
        status: Status code.
        reason: Text of the status.
        headers: Headers; names are case-insensitive.
        content: The body, unpacked.
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    content: bytes


class ResponseTooLarge(Exception):
    """Response whose body exceeds `MAX_RESPONSE`."""

    def __init__(self) -> None:
        super().__init__(f"{MAX_RESPONSE >> 20} MB")


class NoResponse(Exception):
    """Attempt without a complete response.

    Args:
        reason: Error text of the network library.
        kind: Name of its class.
        connected: True if the server had accepted the connection.
    """

    def __init__(self, reason: str, kind: str, connected: bool) -> None:
        super().__init__(reason or kind)
        self.kind = kind
        self.connected = connected


class HTTPClient:
    """Pool of connections to one server, within one event loop.

    It uses aiohttp: the `openai` SDK takes three times the CPU time per request, even without its own retries and
    parsing, which delays 64 concurrent requests of 100 ms each. Redirects are not followed, so that a server
    cannot send the client, or its credentials, elsewhere; cookies are not kept.

    Args:
        url: Any address of the server.
        headers: Headers of every request.
        timeout: Maximum duration of one attempt, to the last byte, in seconds.
        use_proxies: Use the proxies of the process environment.
        purpose: What needs the client, for the error message where aiohttp is missing.

    Raises:
        ConfigurationError: aiohttp is not installed.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], timeout: float, *, use_proxies: bool, purpose: str
    ) -> None:
        try:
            import aiohttp  # noqa: F401
        except ImportError as error:
            raise missing_extra(purpose, "openai", error) from None
        self._headers = {"accept-encoding": "identity", "content-type": "application/json", **headers}
        self._timeout = timeout
        self._proxy = _proxy(url) if use_proxies else None
        self._needs_context = url.startswith("https") or (self._proxy or "").startswith("https")
        self._session: aiohttp.ClientSession | None = None

    async def request(self, method: str, url: Any, data: bytes | None = None) -> Response:
        """Send one request.

        Args:
            method: "GET" or "POST".
            url: The URL: a `yarl.URL`, or quoted text.
            data: Body of the request.

        Raises:
            TimeoutError: The response was not complete in time.
            NoResponse: The connection failed, or the response is no HTTP or packed in a wrong way.
            ResponseTooLarge: The body exceeds `MAX_RESPONSE` bytes, as sent or unpacked.
        """
        import aiohttp
        from yarl import URL

        session = self._session or self._open()
        try:
            url = URL(url, encoded=True) if isinstance(url, str) else url
            # The one timer of an attempt; those of aiohttp cost as much as the rest of the request.
            async with asyncio.timeout(self._timeout):
                async with session.request(
                    method, url, data=data, proxy=self._proxy, allow_redirects=False
                ) as response:
                    content = await _read(response)
                    return Response(response.status, response.reason or "", response.headers, content)
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError, zlib.error, ValueError) as error:
            connected = not isinstance(error, aiohttp.ClientConnectorError)
            # The text of a response error has the URL, whose query may be secret.
            reason = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
            if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, ConnectionError):
                reason = os.strerror(error.os_error.errno or 0)  # instead of asyncio's "Connect call failed (…)"
            reason = reason.replace(str(url), public_url(str(url)))
            raise NoResponse(reason, type(error).__name__, connected) from None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)  # lets the transports close

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        context: ssl.SSLContext | bool = _ssl_context() if self._needs_context else True
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=context),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # `_read` bounds the size.
        )
        return self._session


class BlockingClient:
    """`HTTPClient` for any number of threads; after a fork, the child process connects anew.

    The arguments are those of `HTTPClient`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._args, self._options = args, options
        self._lock = threading.Lock()
        self._clients = {os.getpid(): HTTPClient(*args, **options)}
        weakref.finalize(self, _close_client, self._clients)

    def request(self, method: str, url: str, data: bytes | None = None) -> Response:
        """Send one request; see `HTTPClient.request`."""
        with self._lock:
            client = self._clients.get(os.getpid())
            if client is None:
                client = self._clients[os.getpid()] = HTTPClient(*self._args, **self._options)
        loop = _Loop.of_this_process()
        loop.clients.add(client)
        return loop.run(client.request(method, url, data))

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        with self._lock:
            _close_client(self._clients)


def _close_client(clients: dict[int, HTTPClient]) -> None:
    """Have the event loop close the connections of this process, without waiting for it."""
    client = clients.pop(os.getpid(), None)
    if client is not None and _Loop.current is not None:
        _Loop.current.drop(client)


class _Loop:
    """Event loop in a daemon thread.

    Attributes:
        current: The loop of this process, or of the one that it was forked from; None before the first request.
        clients: Clients that may have connections.
    """

    current: _Loop | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.clients: set[HTTPClient] = set()
        self._closing: set[Future[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="http", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    @classmethod
    def of_this_process(cls) -> _Loop:
        """Return the loop, which the first call in a process starts; threads do not survive a fork."""
        with cls._lock:
            if cls.current is None or cls.current._pid != os.getpid():
                cls.current = _Loop()
            return cls.current

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine; an interrupt of this thread, such as Ctrl-C, cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def drop(self, client: HTTPClient) -> None:
        """Start closing a client, which is not used any more; nothing happens in a forked process."""
        if self._pid == os.getpid() and client in self.clients:
            self.clients.discard(client)
            closing = asyncio.run_coroutine_threadsafe(client.close(), self._loop)
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _stop(self) -> None:
        """Close all connections and end the thread, at the exit of the process."""
        if self._pid != os.getpid():
            return

        async def close_all() -> None:
            for client in [*self.clients]:
                await client.close()

        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(close_all(), self._loop).result(timeout=5.0)
        wait([*self._closing], timeout=5.0)
        self.clients.clear()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5.0)
        if not self._thread.is_alive():
            self._loop.close()


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of a response.

    Raises:
        ResponseTooLarge: It exceeds `MAX_RESPONSE` bytes, as sent or unpacked.
        ValueError, zlib.error: It is compressed in an unknown way, or damaged.
    """
    if response.content_length is not None:
        if response.content_length > MAX_RESPONSE:
            raise ResponseTooLarge
        content: bytes = await response.read()
    else:
        parts, size = [], 0
        async for part in response.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > MAX_RESPONSE:
                raise ResponseTooLarge
        content = b"".join(parts)
    encoding = response.headers.get("content-encoding", "identity")
    if encoding == "identity" or not content:
        return content
    if encoding not in ("gzip", "deflate"):
        raise ValueError(f"the response has the encoding {encoding[:20]!r}")
    unpacker = zlib.decompressobj(wbits=47)  # of either format
    content = unpacker.decompress(content, MAX_RESPONSE)
    if not unpacker.eof:
        if len(content) == MAX_RESPONSE:
            raise ResponseTooLarge
        raise ValueError("the packed response is incomplete")
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
