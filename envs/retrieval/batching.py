"""Batching of searches from many threads, with one worker and a bounded queue.

The requests that arrive while the retriever is busy form its next batch. A single request is therefore served at
once, and batches grow with the load.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from .interface import Hit, Retriever


class QueueFull(RuntimeError):
    """Rejected request: the queue is full or closed."""


class _Request(NamedTuple):
    """Queries of one caller and the future of their hits."""

    queries: Sequence[str]
    k: int
    reply: Future[list[list[Hit]]]


class Batcher:
    """Searches of many threads, batched into calls of one retriever.

    Args:
        retriever: Retriever to search with.
        max_batch: Maximum number of queries per call of the retriever; a larger request is a call of its own.
        max_waiting: Maximum number of waiting requests; further ones raise `QueueFull`.

    Attributes:
        served: Number of queries answered so far.
        batches: Number of calls of the retriever so far.
    """

    def __init__(self, retriever: Retriever, max_batch: int = 64, max_waiting: int = 128) -> None:
        self._retriever = retriever
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._waiting: deque[_Request] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self.served = 0
        self.batches = 0
        self._worker = threading.Thread(target=self._work, name="retrieval-batches", daemon=True)
        self._worker.start()

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return the hits of queries, as `Retriever.search`; blocks until they are available.

        Raises:
            QueueFull: Too many requests are waiting, or the batcher is closed.
        """
        request = _Request(queries, k, Future())
        with self._wake:
            if self._closed or len(self._waiting) >= self._max_waiting:
                raise QueueFull
            self._waiting.append(request)
            self._wake.notify()
        return request.reply.result()

    def close(self) -> None:
        """Reject the waiting requests and stop the worker."""
        with self._wake:
            self._closed = True
            rejected = list(self._waiting)
            self._waiting.clear()
            self._wake.notify()
        for request in rejected:
            request.reply.set_exception(QueueFull())
        self._worker.join(timeout=10.0)

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closed:
                    self._wake.wait()
                if self._closed:
                    return
                batch = self._take_batch()
            self._process(batch)

    def _take_batch(self) -> list[_Request]:
        batch = [self._waiting.popleft()]
        queries = len(batch[0].queries)
        while self._waiting and queries + len(self._waiting[0].queries) <= self._max_batch:
            batch.append(self._waiting.popleft())
            queries += len(batch[-1].queries)
        return batch

    def _process(self, batch: Sequence[_Request]) -> None:
        queries = [query for request in batch for query in request.queries]
        k = max(request.k for request in batch)
        self.batches += 1
        try:
            hits = self._retriever.search(queries, k)
        except Exception as error:  # The callers handle it; the worker continues.
            for request in batch:
                request.reply.set_exception(error)
            return
        start = 0
        for request in batch:
            stop = start + len(request.queries)
            request.reply.set_result([ranking[: request.k] for ranking in hits[start:stop]])
            start = stop
        self.served += len(queries)
