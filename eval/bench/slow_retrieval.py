"""Retrieval server on loopback that answers every request after a delay, however many there are at once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ...envs.retrieval import Retriever


class SlowRetrieval:
    """Search-R1's protocol over a retriever.

    Args:
        retriever: What the server searches in.
        delay: Seconds before each reply.

    Attributes:
        requests: Number of searches so far.
        peak_active: Maximum number of searches in progress at the same time.
        connections: Number of connections that clients have opened.
    """

    def __init__(self, retriever: Retriever, delay: float) -> None:
        self._retriever, self._delay = retriever, delay
        self._lock = threading.Lock()
        self._active = self.requests = self.peak_active = self.connections = 0

    @contextmanager
    def running(self) -> Iterator[str]:
        """Context with the address of the server."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # Headers and body are two packets.

            def setup(self) -> None:
                super().setup()
                with outer._lock:
                    outer.connections += 1

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                body = json.dumps(outer._answer(request)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128
            daemon_threads = True

        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()

    def _answer(self, request: dict[str, object]) -> dict[str, object]:
        with self._lock:
            self.requests += 1
            self._active += 1
            self.peak_active = max(self.peak_active, self._active)
        time.sleep(self._delay)
        found = self._retriever.search(request["queries"], request["topk"])  # type: ignore[arg-type]
        with self._lock:
            self._active -= 1
        return {
            "result": [
                [{"document": hit.document._asdict(), "score": hit.score} for hit in ranking] for ranking in found
            ]
        }
