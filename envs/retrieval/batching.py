"""Batching of searches from many threads, with one worker and a bounded queue.

The requests that arrive while the retriever is busy form its next batch. A single request is therefore served at
once, and batches grow with the load.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from .interface import Hit, Retriever

MAX_BATCH_HITS = 10_000
"""Maximum number of hits of a batch, its queries times the number of hits that each asks for."""


class QueueFull(RuntimeError):
    """Rejected request: the queue is full or closed."""


class _Request:
    """Queries of one caller, of which the first ones may be answered already.

    Attributes:
        queries: The queries.
        k: Number of hits of each.
        hits: Hits of the first queries.
        reply: Future of all hits.
    """

    def __init__(self, queries: Sequence[str], k: int) -> None:
        self.queries = queries
        self.k = k
        self.hits: list[list[Hit]] = []
        self.reply: Future[list[list[Hit]]] = Future()

    @property
    def left(self) -> int:
        """Number of queries without an answer."""
        return len(self.queries) - len(self.hits)


class Batcher:
    """Searches of many threads, batched into calls of one retriever.

    A request of more queries than fit a batch is answered in parts, between which the requests of others have
    their turn.

    Args:
        retriever: Retriever to search with.
        max_batch: Maximum number of queries per call of the retriever.
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
        if not queries:
            return []
        request = _Request(queries, k)
        with self._wake:
            if self._closed or len(self._waiting) >= self._max_waiting:
                raise QueueFull
            self._waiting.append(request)
            self._wake.notify()
        return request.reply.result()

    def close(self) -> None:
        """Reject the waiting requests and stop the worker after its current batch."""
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

    def _take_batch(self) -> list[tuple[_Request, int]]:
        """Return the requests of the next batch, each with the number of its queries in it.

        All of a batch want as many hits, since the first hits of some retrievers depend on their number.
        """
        k = self._waiting[0].k
        room = max(1, min(self._max_batch, MAX_BATCH_HITS // max(k, 1)))
        batch: list[tuple[_Request, int]] = []
        others: list[_Request] = []
        while self._waiting:
            request = self._waiting.popleft()
            count = min(room, request.left) if request.k == k else 0
            if count:
                batch.append((request, count))
                room -= count
            else:
                others.append(request)
        self._waiting.extend(others)
        return batch

    def _process(self, batch: Sequence[tuple[_Request, int]]) -> None:
        queries = [
            query
            for request, count in batch
            for query in request.queries[len(request.hits) : len(request.hits) + count]
        ]
        self.batches += 1
        try:
            hits = self._retriever.search(queries, batch[0][0].k)
        except Exception as error:  # The callers handle it; the worker continues.
            for request, _ in batch:
                request.reply.set_exception(error)
            return
        self.served += len(queries)
        start = 0
        for request, count in batch:
            request.hits += hits[start : start + count]
            start += count
            if not request.left:
                request.reply.set_result(request.hits)
                continue
            with self._wake:
                closed = self._closed
                if not closed:
                    self._waiting.append(request)
            if closed:
                request.reply.set_exception(QueueFull())
