"""Server of environments for OpenEnv's clients, with limits on what one client can take (extra `openenv`).

Every environment is an OpenEnv application below its id, or at the root if it is the only one. A guard is around
them:

* The `Host` header must name this server, and so must the `Origin` of a browser, so that no web page can play.
* A connection whose request does not arrive within `REQUEST_SECONDS` is closed.
* A message that is not a JSON object of text is answered with an error, and its session goes on.
* A session without a message for the idle time receives an error and is closed, which frees its place.
* Messages and bodies have at most `MAX_MESSAGE` bytes. Beyond the maximum number of sessions a client is refused.

`GET /status` counts sessions, refusals and errors.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import uvicorn
from fastapi import Request
from fastapi.responses import JSONResponse
from gymnasium.error import ResetNeeded
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.types import ConcurrencyConfig
from starlette.applications import Starlette
from starlette.routing import Mount
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...envs.errors import ConfigurationError
from ...envs.hosts import host_filter, listen, url_of
from ...envs.registry import make_env
from .openenv import OpenEnvironment, TextAction, TextObservation, TextState

MAX_MESSAGE = 2**20
"""Largest message or body of a request, in bytes."""
REQUEST_SECONDS = 10.0
"""Time for the head of a request, and for each part of its body."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass
class Counts:
    """Counts of sessions, refusals and errors since the server started.

    Attributes:
        open: Sessions that are open now.
        opened: Sessions that were opened.
        idle: Sessions that were closed because they had no message for the idle time.
        foreign: Requests that were refused because of their `Host` or `Origin`.
        oversized: Requests that were refused because of the size of their body.
        messages: Messages that sessions received.
        errors: Messages, or whole sessions, that were answered with an error.
    """

    open: int = 0
    opened: int = 0
    idle: int = 0
    foreign: int = 0
    oversized: int = 0
    messages: int = 0
    errors: int = 0


class Guard:
    """ASGI application that limits what clients can do to another one.

    Args:
        app: The application.
        host: Address that the server binds.
        idle: Time in seconds after which a session without a message is closed.

    Attributes:
        counts: Counts so far.
    """

    def __init__(self, app: Any, host: str, idle: float) -> None:
        self._app = app
        self._is_allowed = host_filter(host)
        self._idle = idle
        self.counts = Counts()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif not self._is_own(scope):
            self.counts.foreign += 1
            await _refuse(scope, receive, send, 403, "this server has another host or origin; use its address")
        elif scope["type"] == "websocket":
            await self._guard_session(scope, receive, send)
        elif scope["path"] == "/status":
            await JSONResponse(asdict(self.counts))(scope, receive, send)
        else:
            await self._guard_request(scope, receive, send)

    def _is_own(self, scope: Message) -> bool:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if not self._is_allowed(headers.get(b"host", "localhost")):
            return False
        if b"origin" not in headers:
            return True
        page = headers[b"origin"].partition("://")[2]  # empty for "null", the origin of a sandboxed page
        return bool(page) and self._is_allowed(page)

    async def _guard_request(self, scope: Message, receive: Receive, send: Send) -> None:
        length = 0
        is_complete = False

        async def limited() -> Message:
            nonlocal length, is_complete
            try:
                async with asyncio.timeout(None if is_complete else REQUEST_SECONDS):
                    message = await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}
            is_complete = not message.get("more_body", False)
            length += len(message.get("body", b""))
            if length > MAX_MESSAGE:
                self.counts.oversized += 1
                return {"type": "http.disconnect"}
            return message

        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared[:20]) > MAX_MESSAGE:
            self.counts.oversized += 1
            await _refuse(scope, receive, send, 413, f"a body has at most {MAX_MESSAGE} bytes")
        else:
            await self._app(scope, limited, send)

    async def _guard_session(self, scope: Message, receive: Receive, send: Send) -> None:
        counts = self.counts

        async def counted(message: Message) -> None:
            if message["type"] == "websocket.send" and message.get("text", "").startswith('{"type":"error"'):
                counts.errors += 1
            await send(message)

        async def checked() -> Message:
            while True:
                try:
                    async with asyncio.timeout(self._idle):
                        message = await receive()
                except TimeoutError:
                    counts.idle += 1
                    text = f"the session had no message for {self._idle:g} seconds and was closed; connect again"
                    await counted(_error(text, "SESSION_ERROR"))
                    return {"type": "websocket.disconnect", "code": 1001}
                if message["type"] != "websocket.receive":
                    return message
                counts.messages += 1
                problem = find_problem(message.get("text"))
                if problem is None:
                    return message
                await counted(_error(problem, "INVALID_JSON"))

        counts.open += 1
        counts.opened += 1
        try:
            await self._app(scope, checked, counted)
        finally:
            counts.open -= 1


class _Connection(H11Protocol):  # type: ignore[misc]
    """HTTP connection that is closed if a request does not arrive in time, as it counts among all connections."""

    _expiry: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def _watch(self) -> None:
        """Start the time limit of the next request, or end it if the request has arrived."""
        is_session = self not in self.connections  # The protocol of the WebSocket has taken its place.
        is_waiting = not is_session and (self.cycle is None or self.cycle.response_complete)
        if is_waiting and self._expiry is None:
            self._expiry = self.loop.call_later(REQUEST_SECONDS, self.transport.close)
        elif not is_waiting and self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None


def find_problem(text: str | None) -> str | None:
    """Return the reason why a message cannot be passed on, in one sentence; None if it can."""
    if text is None:
        return "a message is text, not bytes"
    try:
        value = json.loads(text)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "a message must not contain half of a surrogate pair"
    except (ValueError, RecursionError) as error:
        return f"a message is JSON: {str(error)[:200]}"
    return None if isinstance(value, dict) else 'a message is an object such as {"type": "reset", "data": {}}'


def make_app(envs: Mapping[str, Mapping[str, Any]], *, host: str, sessions: int, idle: float) -> Guard:
    """Return the ASGI application of a server.

    Args:
        envs: Arguments of the environments, by id.
        host: Address that the server binds.
        sessions: Maximum number of sessions of each environment.
        idle: Time in seconds after which a session without a message is closed.

    Raises:
        ConfigurationError: An environment or an argument is unknown.
    """
    apps: dict[str, Any] = {}
    for env, kwargs in envs.items():
        make_env(env, **kwargs)  # Fail before the first session, and load shared data.
        apps[env] = create_fastapi_app(
            partial(OpenEnvironment, env, dict(kwargs)),
            TextAction,
            TextObservation,
            concurrency_config=ConcurrencyConfig(max_concurrent_envs=sessions, session_timeout=idle),
            env_name=env,
            state_cls=TextState,
        )
        apps[env].add_exception_handler(ConfigurationError, _explain)
        apps[env].add_exception_handler(ResetNeeded, _point_to_sessions)
    if len(apps) == 1:
        return Guard(next(iter(apps.values())), host, idle)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:  # Starlette does not start mounted applications.
            for app in apps.values():
                await stack.enter_async_context(app.router.lifespan_context(app))
            yield

    routes = [Mount(f"/{env}", app) for env, app in apps.items()]
    return Guard(Starlette(routes=routes, lifespan=lifespan), host, idle)


def serve(
    envs: Mapping[str, Mapping[str, Any]],
    *,
    host: str,
    port: int,
    sessions: int,
    idle: float,
    ready: Callable[[str], None],
) -> None:
    """Serve environments until Ctrl-C or SIGTERM.

    Args:
        envs, sessions, idle: See `make_app`.
        host: Address to bind.
        port: TCP port; 0 takes a free one.
        ready: Called with the address once the server accepts connections.

    Raises:
        ConfigurationError: An environment or an argument is unknown, or the address is taken.
    """
    config = uvicorn.Config(
        make_app(envs, host=host, sessions=sessions, idle=idle),
        host=host,
        port=port,
        http=_Connection,
        log_level="warning",
        ws_max_size=MAX_MESSAGE,
        ws_per_message_deflate=False,
        limit_concurrency=len(envs) * sessions + 64,
        timeout_graceful_shutdown=10,
    )
    listener = listen("A server of environments", host, port)
    ready(url_of(host, listener))
    uvicorn.Server(config).run(sockets=[listener])


def _error(text: str, code: str) -> Message:
    text = json.dumps({"type": "error", "data": {"message": text, "code": code}}, separators=(",", ":"))
    return {"type": "websocket.send", "text": text}


async def _explain(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, status_code=400)


async def _point_to_sessions(_: Request, error: Exception) -> JSONResponse:
    # OpenEnv makes a new environment for every request over HTTP, so that no step follows a reset.
    text = "a request over HTTP has no episode; play in a session, at /ws"
    return JSONResponse({"detail": text}, status_code=400)


async def _refuse(scope: Message, receive: Receive, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": text})
    else:
        await JSONResponse({"detail": text}, status_code=status)(scope, receive, send)
