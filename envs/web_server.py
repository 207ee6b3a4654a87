"""HTTP server of a WSGI application on waitress, with limits on what one client can take (extra `web`).

* A request has at most `MAX_BODY` bytes and must arrive within `REQUEST_SECONDS`; a connection that has none for
  `IDLE_SECONDS`, or does not take its response within `RESPONSE_SECONDS`, is closed. At `MAX_CONNECTIONS` the
  connection that has been without a complete request for longest makes room.
* The `Host` header must be an address or a local name, so that no web page can reach the server under a name of
  its own (DNS rebinding).
* SIGTERM ends the server after the requests that it has received are answered.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer

from .checks import at_least
from .hosts import host_filter, listen, url_of

MAX_BODY = 2**20
"""Largest body of a request in bytes."""
MAX_HEADER = 2**14
"""Largest header of a request in bytes."""
MAX_CONNECTIONS = 512
REQUEST_SECONDS = 10.0
IDLE_SECONDS = 60.0
RESPONSE_SECONDS = 60.0
DRAIN_SECONDS = 30.0
"""Longest time to answer the remaining requests after SIGTERM."""


class _Channel(HTTPChannel):  # type: ignore[misc]  # waitress is untyped
    """Connection with the times by which `_Server.maintenance` judges it."""

    received_since: float | None = None
    """Time at which the first byte of an incomplete request arrived."""
    sending_since: float | None = None
    """Time since which a response has been waiting for the client."""
    last_request = 0.0
    """Time at which the last request was complete; at first, the time of the connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.last_request = time.monotonic()
        super().__init__(*arguments, **options)

    def received(self, data: bytes) -> Any:
        if self.request is None:
            self.received_since = time.monotonic()
        result = super().received(data)
        if self.request is None:
            self.received_since = None
            self.last_request = time.monotonic()
        return result


class _Server(TcpWSGIServer):  # type: ignore[misc]  # waitress is untyped
    """Server that closes slow connections, and whose application checks the `Host` header."""

    channel_class = _Channel
    draining = False

    def maintenance(self, now: float) -> None:
        """Mark connections to close; called about once a second."""
        now = time.monotonic()
        for channel in list(self.active_channels.values()):
            if channel.requests:
                channel.sending_since = None
            elif channel.total_outbufs_len:
                channel.sending_since = channel.sending_since or now
                if now - channel.sending_since > RESPONSE_SECONDS:
                    channel.will_close = True
                    # Waitress closes a connection when its client takes data, which this one may never do.
                    with suppress(OSError):
                        channel.socket.shutdown(socket.SHUT_RDWR)
            elif channel.received_since is not None:
                channel.sending_since = None
                channel.will_close |= now - channel.received_since > REQUEST_SECONDS
            else:
                channel.sending_since = None
                is_idle = now - channel.last_request > IDLE_SECONDS
                channel.will_close |= is_idle or self.draining

    def readable(self) -> bool:
        if len(self.active_channels) >= MAX_CONNECTIONS:
            channels = self.active_channels.values()
            idle = [c for c in channels if not (c.requests or c.total_outbufs_len or c.will_close)]
            if idle:
                min(idle, key=lambda channel: float(channel.last_request)).will_close = True
        return bool(super().readable())

    def is_answered(self) -> bool:
        """Return True if no connection has a request or a response in progress."""
        return not any(
            channel.requests or channel.total_outbufs_len or channel.received_since is not None
            for channel in self.active_channels.values()
        )


class WebServer:
    """HTTP server of a WSGI application.

    Args:
        app: WSGI application.
        name: Name of the service, for messages.
        host: Address to bind; loopback is reachable from this machine only.
        port: TCP port; 0 takes a free one.
        threads: Number of requests served at once.

    Attributes:
        host: Bound address.
        port: Bound port.
        url: Address of the server, without a path.

    Raises:
        ConfigurationError: The address is taken or invalid, or there are no threads.
    """

    def __init__(self, app: Any, name: str, host: str, port: int, *, threads: int) -> None:
        at_least("threads", threads, 1)
        listener = listen(name, host, port)
        # The queue logs a warning for every request that waits for a thread.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        settings = Adjustments(
            sockets=[listener],
            threads=threads,
            ident=None,
            max_request_body_size=MAX_BODY,
            max_request_header_size=MAX_HEADER,
            connection_limit=2 * MAX_CONNECTIONS,  # `readable` makes room before it is reached.
            cleanup_interval=1,
            asyncore_use_poll=True,
        )
        info = (listener.family, listener.type, listener.proto, listener.getsockname())
        self._server = _Server(
            check_host(app, host), _sock=listener, adj=settings, bind_socket=False, sockinfo=info
        )
        self.host = host
        self.port = int(listener.getsockname()[1])
        self.url = url_of(host, listener)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Serve in this thread until Ctrl-C, which drops all requests, or SIGTERM, which lets them be answered."""
        with _on_sigterm(self._stop.set), suppress(KeyboardInterrupt):
            self._loop()

    def start(self) -> None:
        """Serve in a separate thread until `stop`."""
        self._thread = threading.Thread(target=self._loop, name=f"server-{self.port}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop a server that `start` started, after its requests are answered."""
        self._stop.set()
        self._server.pull_trigger()
        if self._thread is not None:
            self._thread.join(timeout=DRAIN_SECONDS + 10)

    def _loop(self) -> None:
        server = self._server
        try:
            while not self._stop.is_set():
                self._poll(0.2)
            server.draining = True
            server.accepting = False
            server.del_channel()
            server.socket.close()
            end = time.monotonic() + DRAIN_SECONDS
            while not server.is_answered() and time.monotonic() < end:
                self._poll(0.02)
                server.maintenance(0.0)
        finally:
            server.task_dispatcher.shutdown()
            server.asyncore.close_all(server._map, ignore_all=True)
            if server.socket is not None:  # already closed after an interrupt
                server.socket.close()

    def _poll(self, timeout: float) -> None:
        self._server.asyncore.loop(timeout=timeout, map=self._server._map, use_poll=True, count=1)


@contextmanager
def _on_sigterm(action: Callable[[], None]) -> Iterator[None]:
    """Context in which SIGTERM runs an action; without effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: action())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check_host(app: Any, host: str) -> Any:
    """Return a WSGI application that refuses requests whose `Host` header names another host; see `host_filter`.

    A request without the header comes from no browser.

    Args:
        app: WSGI application.
        host: Address that the server binds.
    """
    is_allowed = host_filter(host)

    def checked(environ: dict[str, Any], start_response: Any) -> Any:
        header = environ.get("HTTP_HOST")
        if header is None or is_allowed(header):
            return app(environ, start_response)
        text = f"this server is not {header[:100]!r}; use its address."
        body = json.dumps({"error": text}).encode()
        start_response("403 Forbidden", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]

    return checked
