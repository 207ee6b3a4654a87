"""Retrieval server with Search-R1's protocol: `POST /retrieve`, and `GET /health` (extra `web`).

A request is `{"queries": [str, …], "topk": int or null, "return_scores": bool}`. The reply is
`{"result": [[…], …]}` with one list per query. With scores, each item is
`{"document": {"id", "contents", "title", "text"}, "score"}`; without, it is the document alone. If the queue is
full, the status is 503 with `Retry-After`. A malformed request gets status 400 with `{"error": …}`, one for more
than `MAX_HITS` hits status 413, and one that is not `application/json` status 415. Queries are cut to `MAX_QUERY`
characters. `envs.web_server` has the limits on connections and bodies.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..checks import at_least, check_port
from ..errors import ConfigurationError
from ..extras import optional_module
from .batching import Batcher, QueueFull
from .interface import MAX_QUERY, Hit, RetrievalError, Retriever

DEFAULT_PORT = 8000
DEFAULT_TOPK = 3
"""Defaults of Search-R1."""

MAX_HITS = 20_000
"""Largest number of hits of one request, queries times topk, whose reply takes about 100 MB of memory."""

_SPARE_THREADS = 4
"""Threads beyond the queue's length, which serve health reports and rejections while the queue is full."""

_log = logging.getLogger(__name__)


class RetrievalServer:
    """HTTP server of a retriever.

    Args:
        retriever: Retriever to serve.
        host: Address to bind.
        port: TCP port; 0 takes a free one.
        max_batch: Maximum number of queries per call of the retriever; larger requests are split.
        max_waiting: Maximum number of waiting requests, each of which occupies a thread.
        max_topk: Maximum number of hits per query; requests for more are rejected.

    Attributes:
        host: Bound address.
        port: Bound port.

    Raises:
        ConfigurationError: A number is out of range, the address is taken, or Flask or waitress is missing.
    """

    def __init__(
        self,
        retriever: Retriever,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        max_batch: int = 64,
        max_waiting: int = 64,
        max_topk: int = 1000,
    ) -> None:
        check_port("port", port)
        at_least("max_batch", max_batch, 1)
        at_least("max_waiting", max_waiting, 1)
        optional_module("waitress", "web", "the retrieval server")
        optional_module("flask", "web", "the retrieval server")
        from ..web_server import WebServer

        self._batcher = Batcher(retriever, max_batch, max_waiting)
        app = make_app(retriever, self._batcher, max_topk)
        try:
            self._server = WebServer(app, "The index", host, port, threads=max_waiting + _SPARE_THREADS)
        except ConfigurationError:
            self._batcher.close()
            raise
        self.host, self.port = self._server.host, self._server.port

    @property
    def url(self) -> str:
        """Address for `HTTPRetriever`."""
        return self._server.url

    def run(self) -> None:
        """Serve in this thread until Ctrl-C or SIGTERM; see `WebServer.run`."""
        try:
            self._server.run()
        finally:
            self._batcher.close()

    def start(self) -> RetrievalServer:
        """Serve in a separate thread until `stop`."""
        self._server.start()
        return self

    def stop(self) -> None:
        """Stop a server that `start` started: reject waiting requests with 503 and close all connections."""
        self._batcher.close()
        self._server.stop()

    def __enter__(self) -> RetrievalServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def make_app(retriever: Retriever, batcher: Batcher, max_topk: int) -> Any:
    """Return the Flask application of the server.

    Args:
        retriever: Retriever whose identity `/health` reports.
        batcher: Batcher that searches.
        max_topk: Maximum number of hits per query.
    """
    flask = optional_module("flask", "web", "the retrieval server")
    jsonify, request = flask.jsonify, flask.request
    app = flask.Flask(__name__)
    app.json.sort_keys = False
    started = time.monotonic()

    def retrieve() -> Any:
        if request.mimetype != "application/json":
            # A page of another site can send any other type without asking the server.
            return jsonify(error="the request needs the header Content-Type: application/json."), 415
        try:
            queries, topk, with_scores = _parse_request(request.get_json(silent=True), max_topk)
        except RecursionError:
            return jsonify(error="the body is nested too deeply."), 400
        except ConfigurationError as error:
            return jsonify(error=str(error)), 400
        if not queries:
            return jsonify(result=[])
        if len(queries) * topk > MAX_HITS:
            text = f"{len(queries)} queries times topk {topk} exceed {MAX_HITS} hits; send fewer queries at once."
            return jsonify(error=text), 413
        queries = [query[:MAX_QUERY] for query in queries]
        try:
            rankings = batcher.search(queries, topk)
        except QueueFull:
            reply = jsonify(error="too many requests are waiting; try again soon.")
            reply.headers["Retry-After"] = "1"
            return reply, 503
        except RetrievalError as error:  # The retriever is itself a client of another server.
            return jsonify(error=str(error)), 502
        except Exception:
            _log.exception("a search failed")
            return jsonify(error="the search failed; see the server's log."), 500
        as_json = _scored_document if with_scores else _document
        return jsonify(result=[[as_json(hit) for hit in ranking] for ranking in rankings])

    def health() -> Any:
        return jsonify(
            status="ok",
            index=retriever.identity,
            documents=len(retriever) if hasattr(retriever, "__len__") else None,
            waiting=batcher.waiting,
            served=batcher.served,
            batches=batcher.batches,
            seconds=round(time.monotonic() - started, 1),
        )

    app.add_url_rule("/retrieve", view_func=retrieve, methods=["POST"])
    app.add_url_rule("/health", view_func=health, methods=["GET"])
    return app


def _parse_request(body: Any, max_topk: int) -> tuple[list[str], int, bool]:
    """Return the queries, topk and return_scores of a request.

    Raises:
        ConfigurationError: The request is malformed.
    """
    if not isinstance(body, dict):
        raise ConfigurationError('the request must be a JSON object such as {"queries": ["…"], "topk": 3}.')
    queries = body.get("queries")
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise ConfigurationError("'queries' must be a list of strings.")
    topk = body.get("topk")
    if topk is None or (type(topk) is int and topk == 0):  # as Search-R1's server
        topk = DEFAULT_TOPK
    if type(topk) is not int or not 1 <= topk <= max_topk:
        raise ConfigurationError(f"'topk' must be an integer from 1 to {max_topk}, or null.")
    with_scores = body.get("return_scores", False)
    if with_scores not in (True, False, None):
        raise ConfigurationError("'return_scores' must be true or false.")
    return queries, topk, bool(with_scores)


def _document(hit: Hit) -> dict[str, Any]:
    document = hit.document
    return {
        "id": document.id,
        "contents": document.contents,
        "title": document.title,
        "text": document.text,
    }


def _scored_document(hit: Hit) -> dict[str, Any]:
    return {"document": _document(hit), "score": hit.score}


def serve(
    index: str | Path | Retriever,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    *,
    max_batch: int = 64,
    max_waiting: int = 64,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve an index until Ctrl-C or SIGTERM.

    Args:
        index: Index folder, corpus file, or open retriever, which is closed at the end.
        host: Address to bind; the default, loopback, is reachable from this machine only.
        port: TCP port; 0 takes a free one.
        max_batch: Maximum number of queries per call of the retriever; larger requests are split.
        max_waiting: Maximum number of waiting requests.
        ready: Called with the address once the server accepts requests.

    Raises:
        ConfigurationError: The index cannot be opened, the address is taken, or Flask or waitress is missing.
    """
    from .factory import open_retriever

    retriever = index if isinstance(index, Retriever) else open_retriever(index)
    try:
        server = RetrievalServer(retriever, host, port, max_batch=max_batch, max_waiting=max_waiting)
        if ready is not None:
            ready(server.url)
        server.run()
    finally:
        retriever.close()
