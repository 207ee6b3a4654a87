"""Base class of engines over HTTP: concurrent requests within a cost limit, with retries and a reply cache.

An event loop in a background thread runs all requests; `submit` and `collect` exchange requests and completions
with it. The format of requests and responses is defined by the engines in `openai` and `vllm_server`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ...envs.errors import ConfigurationError
from ..base import Stop
from .base import Completion, Engine, Request, Usage
from .cache import CompletionCache
from .connection import Connection, is_error
from .cost import Budget, CostLimit, Prices, read_usage
from .faults import ContextOverflow, RequestRejected, RetryableError, error_text
from .retries import Retries

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _PendingRequest:
    """A request in progress.

    Attributes:
        request: The request.
        task: Task of the event loop that serves it; None before it has started.
        released: True once its conversation was released.
        refused: True if a `Stop` was its result.
    """

    request: Request
    task: asyncio.Task[None] | None = None
    released: bool = False
    refused: bool = False

    def cancel(self) -> None:
        """Release the request; called in the loop's thread."""
        self.released = True
        if self.task is not None:
            self.task.cancel()


_Result = tuple[_PendingRequest, Completion | Stop]


class RemoteEngine(Engine):
    """Engine for a model behind an OpenAI-compatible HTTP API.

    A request is attempted up to `attempts` times within `deadline` seconds. It is retried after status 408, 409,
    425, 429 and 5xx, timeouts, lost connections and malformed responses, with exponential back-off and jitter or
    after the delay that the server requests. A request without a response finishes with "error". A conversation
    that exceeds the context window, or whose content a server that has answered others refuses, finishes with
    "rejected".

    Errors that affect all requests (a rejected key, an unknown model, no server, no credit, the cost limit) are
    raised from `collect` as `Stop`.

    Args:
        model: Name of the model on the server.
        base_url: URL of the API, up to and including `/v1`.
        api_key: API key, sent as bearer token.
        concurrency: Maximum number of concurrent requests; further ones are queued.
        attempts: Maximum number of attempts per request.
        timeout: Maximum duration of one attempt, to the last byte, in seconds.
        deadline: Maximum duration of one request, with all attempts and waits, in seconds.
        prices: Prices in US dollars per million tokens, `{"input": …, "cached": …, "output": …}`; "cached" is
            optional. None leaves costs at 0.
        cost_limit: Limit on the cost of all requests of this engine, in US dollars; None for no limit. Replies
            that cannot be used count what the server reports; requests that are cancelled, or get no response in
            time or one above 64 MB, count the most that they can cost.
        cache: SQLite file of the reply cache; None for no cache.
        extra: Further fields of every request body, such as `{"reasoning_effort": "low"}`.
        headers: Further HTTP headers of every request.

    Attributes:
        cache_hits: Number of replies from the cache.

    Raises:
        ConfigurationError: An option is invalid, or the extra `openai` is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        api_key: str,
        concurrency: int = 64,
        attempts: int = 10,
        timeout: float = 120.0,
        deadline: float = 600.0,
        prices: Prices | Mapping[str, float] | None = None,
        cost_limit: float | None = None,
        cache: str | Path | None = None,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise ConfigurationError(f"concurrency must be a positive integer, not {concurrency!r}.")
        self._retries = Retries(attempts, timeout, deadline)
        for option, mapping in (("prices", prices), ("extra", extra), ("headers", headers)):
            if mapping is not None and not isinstance(mapping, Mapping | Prices):
                raise ConfigurationError(f"{option} must be a mapping of names to values, not {mapping!r:.80}.")
        for header, content in (headers or {}).items():
            if not isinstance(content, str):
                raise ConfigurationError(f"the header {header!r} must be a text, not a {type(content).__name__}.")
        if cost_limit is not None and prices is None:
            raise ConfigurationError(
                "cost_limit needs prices, in US dollars per million tokens: prices={'input': …, 'output': …}."
            )
        self.model = model
        self.usage = Usage()
        self.cache_hits = 0
        self._headers = {"authorization": f"Bearer {api_key}".strip(), **(headers or {})}
        self._connections = [Connection(base_url, model, self._headers, timeout)]
        self.base_url = self._connections[0].base_url
        self.query_mark = self._connections[0].query_mark
        self._timeout = timeout
        self._prices = None if prices is None else Prices.of(prices)
        self._budget = Budget(cost_limit)
        self._extra = dict(extra or {})
        self._slots = asyncio.Semaphore(concurrency)
        self._cache = None if cache is None else CompletionCache(cache)
        self._pending: dict[str, _PendingRequest] = {}
        self._done: SimpleQueue[list[_Result] | None] = SimpleQueue()
        self._results: list[_Result] = []
        self._submitted: deque[_PendingRequest] = deque()
        self._start_is_due = False
        self._stop: Stop | None = None
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name=f"engine {model}", daemon=True)
        thread.start()
        self._finalizer = weakref.finalize(self, _shut_down, self._loop, thread, self._connections, self._cache)

    @property
    def retries(self) -> int:
        """Number of failed attempts that were followed by another."""
        return self._retries.count

    # ------------------------------------------------------------------ defined by subclasses

    path: str
    """Path of requests, relative to `base_url`."""

    @abstractmethod
    def body(self, request: Request) -> dict[str, Any]:
        """Return the JSON body of a request.

        Raises:
            ContextOverflow: The context window has no room for a reply.
        """

    @abstractmethod
    def read(self, reply: dict[str, Any], request: Request) -> Completion:
        """Return the completion in a JSON response, without its cost.

        Raises:
            RetryableError: The response is malformed.
            KeyError, IndexError, TypeError, AttributeError, ValueError: The response is malformed.
        """

    def connection_of(self, request: Request) -> Connection:
        """Return the connection by which a request is sent."""
        return self._connections[0]

    # ------------------------------------------------------------------ interface of Engine

    def submit(self, request: Request) -> None:
        if not self._finalizer.alive:
            raise RuntimeError("the engine is closed.")
        if request.conversation in self._pending:
            raise RuntimeError(f"conversation {request.conversation!r} already has a pending request.")
        pending = _PendingRequest(request)
        self._pending[request.conversation] = pending
        self._submitted.append(pending)
        if not self._start_is_due:  # Waking the loop costs a system call.
            self._start_is_due = True
            self._loop.call_soon_threadsafe(self._start)

    def collect(self) -> list[tuple[str, Completion]]:
        """See `Engine.collect`.

        Raises:
            Stop: No request can succeed any more. At the cost limit, requests in progress are returned first.
            RuntimeError: No request is pending, or the engine is closed.
        """
        ready: list[tuple[str, Completion]] = []
        is_woken = False
        while not ready and not is_woken:
            # At the cost limit, wait for the requests in progress; any other stop is raised at once.
            if self._stop is not None and (
                not isinstance(self._stop, CostLimit) or all(pending.refused for pending in self._pending.values())
            ):
                raise self._stop
            if not self._pending:
                raise RuntimeError("no request is pending.")
            results = self._done.get()
            while True:
                if results is None:
                    self._done.put(None)  # for the next call
                    raise RuntimeError("the engine is closed.")
                is_woken = is_woken or not results
                for result in results:
                    self._deliver(*result, ready)
                try:
                    results = self._done.get_nowait()
                except Empty:
                    break
        return ready

    def wake(self) -> None:
        self._done.put([])

    def release(self, conversation: str) -> None:
        if self._cache is not None:
            self._cache.release(conversation)
        pending = self._pending.pop(conversation, None)
        if pending is not None and self._finalizer.alive:
            self._loop.call_soon_threadsafe(pending.cancel)

    def close(self) -> None:
        """Cancel all requests and stop the thread; runs at exit unless called before, and may be called again."""
        self._finalizer()
        self._pending.clear()
        self._done.put(None)

    def _deliver(
        self, pending: _PendingRequest, result: Completion | Stop, ready: list[tuple[str, Completion]]
    ) -> None:
        """Append a completion to `ready`, or set `_stop`."""
        name = pending.request.conversation
        if self._pending.get(name) is not pending:
            return  # released
        if isinstance(result, Stop):
            self._stop = result
            pending.refused = True
        else:
            del self._pending[name]
            ready.append((name, result))

    # ------------------------------------------------------------------ in the loop's thread

    def _start(self) -> None:
        """Start the submitted requests."""
        self._start_is_due = False  # before the queue is emptied: what is submitted later calls again
        while self._submitted:
            pending = self._submitted.popleft()
            if not pending.released:
                pending.task = self._loop.create_task(self._serve(pending))

    async def _serve(self, pending: _PendingRequest) -> None:
        """Process a request and put its result into the queue."""
        request = pending.request
        result: Completion | Stop
        try:
            result = await self._complete(request)
        except Stop as stop:
            result = stop
        except ContextOverflow:
            result = Completion("", "rejected", error="the conversation exceeds the model's context window")
        except RequestRejected as rejection:
            result = Completion("", "rejected" if rejection.by_content else "error", error=str(rejection))
        except Exception as error:
            log.exception("request of conversation %s", request.conversation)
            result = Completion("", "error", error=f"{type(error).__name__}: {error}")
        if not self._results:
            self._loop.call_soon(self._hand_over)
        self._results.append((pending, result))

    def _hand_over(self) -> None:
        """Put the results of this iteration of the loop into the queue, which wakes the other thread once."""
        results, self._results = self._results, []
        self._done.put(results)

    async def _complete(self, request: Request) -> Completion:
        """Return the completion of a request, from the cache or within the cost limit from the server."""
        body = self.body(request)
        key = None
        if self._cache is not None:
            address = f"{self.base_url}/{self.path}{self.query_mark}"
            key = self._cache.next_key(request.conversation, address, body)
            if (hit := self._cache.get(key)) is not None:
                self.cache_hits += 1
                self.usage.add(hit.usage)
                return hit
        async with self._slots:
            max_cost = self._prices.max_cost(request, body) if self._prices is not None else 0.0
            connection = self.connection_of(request)
            attempt = partial(self._attempt, connection, request, body, max_cost)
            completion = await self._retries.run(attempt, connection)
        self.usage.add(completion.usage)
        if self._cache is not None and key is not None:
            self._cache.put(key, completion)
        return completion

    async def _attempt(
        self, connection: Connection, request: Request, body: dict[str, Any], max_cost: float
    ) -> Completion:
        """Return the completion of one attempt, within the cost limit.

        An attempt that is cancelled, that gets no response in time, or one too large to be read, may be charged by
        the server and counts its maximum cost. The tokens of a reply that cannot be used are charged, too.
        """
        await connection.wait()
        await self._budget.reserve(max_cost)
        cost = max_cost
        try:
            try:
                reply = await connection.post(self.path, body)
            except (RetryableError, RequestRejected) as error:
                cost = max_cost if error.may_cost else 0.0
                raise
            except (ContextOverflow, Stop):
                cost = 0.0
                raise
            usage = read_usage(reply.get("usage"))
            cost = self._cost_of(usage, 0.0 if is_error(reply) else max_cost)
            try:
                connection.check_reply(reply)
                completion = self._read(reply, request)
            except RetryableError:
                self.usage.add(replace(usage, cost=cost))  # charged all the same
                raise
        finally:
            await self._budget.settle(max_cost, cost)
        connection.answered = True
        return replace(completion, usage=replace(completion.usage, cost=cost))

    def _cost_of(self, usage: Usage, unreported: float) -> float:
        """Return the cost of tokens in US dollars; a given one where the server reports no tokens."""
        if self._prices is None:
            return 0.0
        return self._prices.cost_of(usage) if usage.prompt_tokens or usage.completion_tokens else unreported

    def _read(self, reply: dict[str, Any], request: Request) -> Completion:
        """Return the completion in a response; every malformed one raises a `RetryableError`."""
        try:
            return self.read(reply, request)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error_text(str(error), 80)}"
            raise RetryableError(f"the response is incomplete ({reason})") from None


def _shut_down(
    loop: asyncio.AbstractEventLoop,
    thread: threading.Thread,
    connections: Sequence[Connection],
    cache: CompletionCache | None,
) -> None:
    """Cancel all tasks, close the connections, stop the loop and close the cache."""

    async def close_connections() -> None:
        tasks = asyncio.all_tasks(loop) - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in connections:
            await connection.close()

    try:
        asyncio.run_coroutine_threadsafe(close_connections(), loop).result(timeout=10)
    except TimeoutError:
        log.warning("connections did not close within 10 s")
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=10)
    if not thread.is_alive():
        loop.close()
    if cache is not None:
        cache.close()
