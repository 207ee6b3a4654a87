"""The common part of engines behind HTTP: many requests at once, retries, a budget and a cache.

An event loop in a thread of its own does the talking; `submit` and `collect` only pass things to and fro. What a
request looks like and how a reply is read is left to the engines of `openai` and `vllm_server`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ...envs.errors import ConfigurationError
from ..base import Stop
from .base import Completion, Engine, Request, Usage
from .cache import ReplyCache, reply_key
from .connection import Connection
from .cost import Budget, CostLimit, Prices
from .faults import ContextFull, Fault, Refused

log = logging.getLogger(__name__)
logging.getLogger("stamina").addHandler(logging.NullHandler())  # retries are counted, not printed

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0  # seconds
_FIRST_CONTACT = 4  # tries to reach a server that never answered: a wrong address should not take minutes to tell


class _Ticket:
    """A request under way."""

    __slots__ = ("refused", "released", "request", "task")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.task: asyncio.Task[None] | None = None
        self.released = False
        self.refused = False


class RemoteEngine(Engine):
    """An engine behind an OpenAI-compatible HTTP API.

    A request is tried until it is answered, at most `attempts` times and `deadline` seconds in all: again after
    status 408, 409, 425, 429 and 5xx, time-outs, lost connections and bodies that make no sense, with exponential
    back-off and jitter, or after as long as the server asks for. What stays unanswered comes back with finish
    "error". A conversation too long for the model comes back empty with finish "length".

    Faults that no request can escape (a refused key, an unknown model, no server, no credit, the cost limit) are
    raised from `collect` as `Stop`.

    Args:
        model: name of the model, as the server knows it.
        base_url: address of the API, up to and including `/v1`.
        api_key: sent as bearer token.
        concurrency: requests under way at once; further ones queue.
        attempts: tries of one request.
        timeout: seconds that one try may take, to the last byte.
        deadline: seconds that one request may take, all its tries and waits together.
        prices: US dollars per million tokens, `{"input": …, "cached": …, "output": …}`; "cached" may be missing.
        cost_limit: US dollars that all requests of this engine together will not exceed.
        cache: SQLite file that keeps replies; None for no cache.
        extra: further fields of every request, such as `{"reasoning_effort": "low"}`.
        headers: further HTTP headers of every request.

    Attributes:
        retries: tries that failed and were followed by another.
        cache_hits: replies that came from the cache.

    Raises:
        ConfigurationError: an option makes no sense, or the extra `openai` is not installed.
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
        if cost_limit is not None and prices is None:
            raise ConfigurationError(
                "cost_limit needs prices, in US dollars per million tokens: prices={'input': …, 'output': …}."
            )
        try:
            import stamina  # noqa: F401
        except ImportError:
            raise ConfigurationError(
                'this engine needs the extra "openai" (stamina is missing): pip install "arboretum[openai]".'
            ) from None
        self.model = model
        self.usage = Usage()
        self.retries = 0
        self.cache_hits = 0
        self._connection = Connection(
            base_url, model, {"authorization": f"Bearer {api_key}", **(headers or {})}, timeout
        )
        self.base_url = self._connection.base_url
        self._attempts, self._deadline = attempts, deadline
        self._prices = None if prices is None else Prices.of(prices)
        self._budget = Budget(cost_limit)
        self._extra = dict(extra or {})
        self._slots = asyncio.Semaphore(concurrency)
        self._cache = None if cache is None else ReplyCache(cache)
        self._draws: dict[str, dict[bytes, int]] = {}
        self._open: dict[str, _Ticket] = {}
        self._done: SimpleQueue[tuple[_Ticket, Completion | Stop] | None] = SimpleQueue()
        self._stop: Stop | None = None
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name=f"engine {model}", daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _end, self._loop, thread, self._connection, self._cache)

    # ------------------------------------------------------------------ what an engine defines

    path: str
    """Where requests go, relative to `base_url`."""

    @abstractmethod
    def body(self, request: Request) -> dict[str, Any]:
        """The request as JSON.

        Raises:
            ContextFull: there is no room for a reply.
        """

    @abstractmethod
    def read(self, reply: dict[str, Any], request: Request) -> Completion:
        """The completion in a JSON reply, its cost left out.

        Raises:
            Fault: the reply makes no sense.
            KeyError, IndexError, TypeError, AttributeError: likewise.
        """

    # ------------------------------------------------------------------ the engine's interface

    def submit(self, request: Request) -> None:
        if not self._end.alive:
            raise RuntimeError("the engine is closed.")
        if request.conversation in self._open:
            raise RuntimeError(f"conversation {request.conversation!r} has a request under way already.")
        ticket = _Ticket(request)
        self._open[request.conversation] = ticket
        self._loop.call_soon_threadsafe(self._begin, ticket)

    def collect(self) -> list[tuple[str, Completion]]:
        """See `Engine.collect`.

        Raises:
            Stop: no request can be answered any more. At the cost limit, replies under way are returned first.
            RuntimeError: nothing was submitted, or the engine is closed.
        """
        ready: list[tuple[str, Completion]] = []
        while not ready:
            # At the cost limit replies under way are still waited for; other reasons to stop do not wait.
            if self._stop is not None and (
                not isinstance(self._stop, CostLimit) or all(ticket.refused for ticket in self._open.values())
            ):
                raise self._stop
            if not self._open:
                raise RuntimeError("nothing was submitted.")
            item = self._done.get()
            while True:
                if item is None:
                    self._done.put(None)  # for the next call
                    raise RuntimeError("the engine is closed.")
                self._sort(*item, ready)
                try:
                    item = self._done.get_nowait()
                except Empty:
                    break
        return ready

    def release(self, conversation: str) -> None:
        self._draws.pop(conversation, None)
        ticket = self._open.pop(conversation, None)
        if ticket is not None and self._end.alive:
            self._loop.call_soon_threadsafe(_drop, ticket)

    def close(self) -> None:
        """Break off what is under way. Can be called again, and is, at the latest, when the program ends."""
        self._end()
        self._open.clear()
        self._done.put(None)

    def _sort(self, ticket: _Ticket, result: Completion | Stop, ready: list[tuple[str, Completion]]) -> None:
        name = ticket.request.conversation
        if self._open.get(name) is not ticket:
            return  # released
        if isinstance(result, Stop):
            self._stop = result
            ticket.refused = True
        else:
            del self._open[name]
            ready.append((name, result))

    # ------------------------------------------------------------------ in the loop's thread

    def _begin(self, ticket: _Ticket) -> None:
        if not ticket.released:
            ticket.task = self._loop.create_task(self._serve(ticket))

    async def _serve(self, ticket: _Ticket) -> None:
        request = ticket.request
        result: Completion | Stop
        try:
            result = await self._answer(request)
        except Stop as stop:
            result = stop
        except ContextFull:
            result = Completion("", "length")
        except Refused as refusal:
            result = Completion("", "error", error=str(refusal))
        except Exception as error:
            log.exception("request of conversation %s", request.conversation)
            result = Completion("", "error", error=f"{type(error).__name__}: {error}")
        self._done.put((ticket, result))

    async def _answer(self, request: Request) -> Completion:
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
            most = self._prices.at_most(request) if self._prices is not None else 0.0
            await self._budget.reserve(most)
            cost = 0.0
            try:
                completion = await self._persist(request, body)
                if self._prices is not None:
                    usage = completion.usage
                    told = usage.prompt_tokens or usage.completion_tokens
                    cost = self._prices.of_usage(usage) if told else most
                    completion = replace(completion, usage=replace(usage, cost=cost))
            finally:
                await self._budget.settle(most, cost)
        self.usage.add(completion.usage)
        if self._cache is not None and key is not None:
            self._cache.put(key, completion)
        return completion

    def _key(self, request: Request, body: dict[str, Any]) -> bytes:
        """The same conversation asking the same again wants another draw; a new one repeats the first."""
        url = f"{self.base_url}/{self.path}"
        draws = self._draws.setdefault(request.conversation, {})
        first = reply_key(url, body, 0)
        draw = draws.get(first, 0)
        draws[first] = draw + 1
        return first if draw == 0 else reply_key(url, body, draw)

    async def _persist(self, request: Request, body: dict[str, Any]) -> Completion:
        """Try until there is a reply.

        Raises:
            Refused, ContextFull, Stop: there will be none.
        """
        import stamina

        end = self._loop.time() + self._deadline
        last: Fault | None = None
        tries = 0

        def again(error: Exception) -> bool | float:
            if not isinstance(error, Fault):
                return False
            if error.unreachable and not self._connection.answered and tries >= _FIRST_CONTACT:
                return False
            if error.wait is None:
                return True
            wait = error.wait + self._connection.jitter(error.wait)
            return wait if self._loop.time() + wait < end else False

        try:
            async with asyncio.timeout(self._deadline):
                async for attempt in stamina.retry_context(
                    on=again,
                    attempts=self._attempts,
                    timeout=None,
                    wait_initial=_FIRST_WAIT,
                    wait_max=_LONGEST_WAIT,
                    wait_jitter=1.0,
                ):
                    with attempt:
                        self.retries += tries > 0
                        tries += 1
                        try:
                            return await self._try(request, body)
                        except Fault as fault:
                            last = fault
                            raise
        except (Fault, TimeoutError):
            pass
        if last is None:
            raise Refused(f"{self.base_url} gave no reply within {self._deadline:g} s.")
        if last.unreachable and not self._connection.answered:
            raise Stop(f"no server answers at {self.base_url} ({last}); is it running, and is base_url right?")
        hopeless = last.wait is not None and self._loop.time() + last.wait >= end
        asked = f", and asks to wait {last.wait:.0f} s" if hopeless else ""
        raise Refused(f"{self.base_url} failed {tries} times in a row, at last: {last}{asked}.")

    async def _try(self, request: Request, body: dict[str, Any]) -> Completion:
        reply = await self._connection.post(self.path, body)
        try:
            completion = self.read(reply, request)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise Fault(f"a reply without its parts ({type(error).__name__}: {error})") from None
        self._connection.answered = True
        return completion


def _drop(ticket: _Ticket) -> None:
    ticket.released = True
    if ticket.task is not None:
        ticket.task.cancel()


def _end(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, connection: Connection, cache: ReplyCache | None
) -> None:
    async def wind_up() -> None:
        tasks = asyncio.all_tasks(loop) - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await connection.close()

    try:
        asyncio.run_coroutine_threadsafe(wind_up(), loop).result(timeout=10)
    except TimeoutError:
        log.warning("connections did not close within 10 s")
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=10)
    if not thread.is_alive():
        loop.close()
    if cache is not None:
        cache.close()
