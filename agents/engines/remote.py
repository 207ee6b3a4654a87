"""Base class of engines over HTTP: concurrency, retries, a cost limit and a reply cache.

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
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ...envs.errors import ConfigurationError
from ...envs.extras import missing_extra
from ..base import Stop
from .base import Completion, Engine, Request, Usage
from .cache import CompletionCache, reply_key
from .connection import Connection
from .cost import Budget, CostLimit, Prices
from .faults import ContextOverflow, RequestRejected, RetryableError, error_text

log = logging.getLogger(__name__)
logging.getLogger("stamina").addHandler(logging.NullHandler())  # retries are counted, not printed

_MIN_WAIT, _MAX_WAIT = 0.5, 30.0  # seconds
_CONTACT_ATTEMPTS = 4  # to reach a server that has never answered, so that a wrong URL is reported soon


class _PendingRequest:
    """A request in progress.

    Attributes:
        request: The request.
        task: Task of the event loop that serves it; None before it has started.
        released: True once its conversation was released.
        refused: True if a `Stop` was its result.
    """

    __slots__ = ("refused", "released", "request", "task")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.task: asyncio.Task[None] | None = None
        self.released = False
        self.refused = False


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
        cost_limit: Limit on the cost of all requests of this engine, in US dollars; None for no limit.
        cache: SQLite file of the reply cache; None for no cache.
        extra: Further fields of every request body, such as `{"reasoning_effort": "low"}`.
        headers: Further HTTP headers of every request.

    Attributes:
        retries: Number of failed attempts that were followed by another.
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
        for option, value in (("concurrency", concurrency), ("attempts", attempts)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{option} must be a positive integer, not {value!r}.")
        for option, number in (("timeout", timeout), ("deadline", deadline)):
            if not isinstance(number, int | float) or not number > 0:
                raise ConfigurationError(f"{option} must be a positive number of seconds, not {number!r}.")
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
        try:
            import stamina  # noqa: F401
        except ImportError as error:
            raise missing_extra("this engine", "openai", error) from None
        self.model = model
        self.usage = Usage()
        self.retries = 0
        self.cache_hits = 0
        self._headers = {"authorization": f"Bearer {api_key}".strip(), **(headers or {})}
        self._connections = [Connection(base_url, model, self._headers, timeout)]
        self.base_url = self._connections[0].base_url
        self._attempts, self._timeout, self._deadline = attempts, timeout, deadline
        self._prices = None if prices is None else Prices.of(prices)
        self._budget = Budget(cost_limit)
        self._extra = dict(extra or {})
        self._slots = asyncio.Semaphore(concurrency)
        self._cache = None if cache is None else CompletionCache(cache)
        self._samples: dict[str, dict[bytes, int]] = {}
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
        self._samples.pop(conversation, None)
        pending = self._pending.pop(conversation, None)
        if pending is not None and self._finalizer.alive:
            self._loop.call_soon_threadsafe(_cancel, pending)

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
            key = self._key(request, body)
            hit = self._cache.get(key)
            if hit is not None:
                self.cache_hits += 1
                self.usage.add(hit.usage)
                return hit
        async with self._slots:
            max_cost = self._prices.max_cost(request, body) if self._prices is not None else 0.0
            await self._budget.reserve(max_cost)
            cost = 0.0
            try:
                completion = await self._respond(request, body)
                if self._prices is not None:
                    usage = completion.usage
                    is_reported = usage.prompt_tokens or usage.completion_tokens
                    cost = self._prices.cost_of(usage) if is_reported else max_cost
                    completion = replace(completion, usage=replace(usage, cost=cost))
            finally:
                await self._budget.settle(max_cost, cost)
        self.usage.add(completion.usage)
        if self._cache is not None and key is not None:
            self._cache.put(key, completion)
        return completion

    def _key(self, request: Request, body: dict[str, Any]) -> bytes:
        """Return the cache key of a request.

        An identical request of the same conversation is another sample; one of a new conversation repeats the
        first sample.
        """
        url = f"{self.base_url}/{self.path}"
        samples = self._samples.setdefault(request.conversation, {})
        first = reply_key(url, body, 0)
        sample = samples.get(first, 0)
        samples[first] = sample + 1
        return first if sample == 0 else reply_key(url, body, sample)

    async def _respond(self, request: Request, body: dict[str, Any]) -> Completion:
        """Return the completion of a request, attempted until it succeeds.

        Raises:
            RequestRejected, ContextOverflow, Stop: It cannot succeed.
        """
        end = self._loop.time() + self._deadline
        failure: RetryableError | None = None
        # The machinery of retries costs as much as a request, and most need none.
        if self._deadline > self._timeout and not self.connection_of(request).is_waiting:
            try:
                return await self._attempt(request, body)
            except RetryableError as error:
                failure = error
        return await self._retry(request, body, end, failure)

    async def _retry(
        self, request: Request, body: dict[str, Any], end: float, failure: RetryableError | None
    ) -> Completion:
        """Attempt a request until it succeeds.

        Args:
            request: The request.
            body: Body of the request.
            end: Time of the loop at which the deadline ends.
            failure: Failure of a first attempt that was made already; None if there was none.

        Raises:
            RequestRejected, ContextOverflow, Stop: It cannot succeed.
        """
        import stamina

        connection = self.connection_of(request)
        last: RetryableError | None = None
        tries = 0

        def should_retry(error: Exception) -> bool | float:
            """Return True to retry after the back-off, the seconds to wait before a retry, or False."""
            if not isinstance(error, RetryableError):
                return False
            if error.unreachable and not connection.answered and tries >= _CONTACT_ATTEMPTS:
                return False
            if error.wait is None:
                return True
            wait = error.wait + connection.jitter(error.wait)
            return wait if self._loop.time() + wait < end else False

        try:
            async with asyncio.timeout_at(end):
                async for attempt in stamina.retry_context(
                    on=should_retry,
                    attempts=self._attempts,
                    timeout=None,
                    wait_initial=_MIN_WAIT,
                    wait_max=_MAX_WAIT,
                    wait_jitter=1.0,
                ):
                    with attempt:
                        self.retries += tries > 0
                        tries += 1
                        try:
                            if failure is not None:
                                first, failure = failure, None
                                raise first
                            return await self._attempt(request, body)
                        except RetryableError as error:
                            last = error
                            raise
        except (RetryableError, TimeoutError):
            pass
        if last is None:
            raise RequestRejected(f"{connection.base_url} did not respond within {self._deadline:g} s.")
        if last.unreachable and not connection.answered:
            raise Stop(
                f"no server answers at {connection.base_url} ({last}); start the server, or pass the right "
                "base_url."
            )
        exceeds_deadline = last.wait is not None and self._loop.time() + last.wait >= end
        wait = f"; the server requests a wait of {last.wait:.0f} s" if exceeds_deadline else ""
        raise RequestRejected(f"{connection.base_url} failed {tries} times in a row, at last with: {last}{wait}.")

    async def _attempt(self, request: Request, body: dict[str, Any]) -> Completion:
        connection = self.connection_of(request)
        reply = await connection.post(self.path, body)
        try:
            completion = self.read(reply, request)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error_text(str(error), 80)}"
            raise RetryableError(f"the response is incomplete ({reason})") from None
        connection.answered = True
        return completion


def _cancel(pending: _PendingRequest) -> None:
    pending.released = True
    if pending.task is not None:
        pending.task.cancel()


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
