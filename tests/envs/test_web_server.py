"""Clients of the servers that ask for too much, too slowly or under a foreign name; SIGTERM and Ctrl-C."""

from __future__ import annotations

import contextlib
import glob
import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra web is not installed")
pytest.importorskip("waitress", reason="the extra web is not installed")

from arboretum.envs import web_server
from arboretum.envs.retrieval import Document, Hit, Retriever
from arboretum.envs.retrieval.batching import MAX_BATCH_HITS, Batcher
from arboretum.envs.retrieval.interface import MAX_QUERY
from arboretum.envs.retrieval.server import MAX_HITS, RetrievalServer
from arboretum.envs.web_server import WebServer, check_host

JSON = {"Content-Type": "application/json"}


class Echo(Retriever):
    """Retriever that returns its queries, and records the sizes of its calls."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.calls: list[tuple[int, int]] = []
        self.seconds = seconds

    @property
    def identity(self) -> str:
        return "echo"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.calls.append((len(queries), k))
        time.sleep(self.seconds)
        return [[Hit(Document(query[:9], query), 1.0)] * k for query in queries]


@pytest.fixture
def server() -> Iterator[RetrievalServer]:
    with RetrievalServer(Echo(), port=0) as running:
        yield running


def ask(port: int, body: Any, headers: dict[str, str] = JSON, timeout: float = 20) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    with contextlib.closing(connection):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", "/retrieve", content, headers)
        response = connection.getresponse()
        text = response.read()
        is_json = response.getheader("Content-Type", "").startswith("application/json")
        return response.status, json.loads(text) if is_json else text


# ---------------------------------------------------------------------- sizes


def test_body_above_one_megabyte_is_refused(server: RetrievalServer) -> None:
    body = json.dumps({"queries": ["_" * 2**20]}).encode()
    with contextlib.suppress(ConnectionError):  # The server may close before it has read everything.
        assert ask(server.port, body)[0] == 413
    assert ask(server.port, {"queries": ["oak"]})[0] == 200


def test_request_for_too_many_hits_is_refused(server: RetrievalServer) -> None:
    status, reply = ask(server.port, {"queries": ["q"] * 3000, "topk": 1000})
    assert status == 413 and "send fewer queries at once" in reply["error"]
    assert ask(server.port, {"queries": ["q"] * (MAX_HITS // 1000), "topk": 1000})[0] == 200


def test_long_queries_are_cut(server: RetrievalServer) -> None:
    _, reply = ask(server.port, {"queries": ["x" * 100_000], "topk": 1})
    assert reply["result"][0][0]["contents"] == "x" * MAX_QUERY


def test_large_request_is_split_and_others_have_their_turn() -> None:
    echo = Echo(0.02)
    batcher = Batcher(echo, max_batch=10)
    ended: list[str] = []

    def search(name: str, count: int, k: int) -> None:
        expected = [f"{name} {n}" for n in range(count)]
        hits = batcher.search(expected, k)
        assert [ranking[0].document.contents for ranking in hits] == expected
        assert {len(ranking) for ranking in hits} == {k}
        ended.append(name)

    threads = [
        threading.Thread(target=search, args=arguments) for arguments in (("large", 300, 2), ("small", 3, 1))
    ]
    threads[0].start()
    while not echo.calls:
        time.sleep(0.001)
    threads[1].start()
    for thread in threads:
        thread.join(20)
    assert ended == ["small", "large"]
    assert max(count for count, _ in echo.calls) == 10 and batcher.served == 303
    search("many hits", 64, 1000)
    assert max(count * k for count, k in echo.calls) <= MAX_BATCH_HITS
    batcher.close()


class AsMany(Echo):
    """Retriever whose hits depend on their number, as those of fused rankings do."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        super().search(queries, k)
        return [[Hit(Document(str(k), query), 1.0)] * k for query in queries]


def test_request_without_queries_is_answered() -> None:
    batcher = Batcher(Echo())
    assert batcher.search([], 3) == [] and batcher.batches == 0
    batcher.close()


def test_hits_do_not_depend_on_the_number_that_others_want() -> None:
    retriever = AsMany(0.02)
    batcher = Batcher(retriever, max_batch=100)
    found: dict[int, set[str]] = {}

    def search(k: int) -> None:
        found[k] = {hit.document.id for ranking in batcher.search(["a", "b"], k) for hit in ranking}

    threads = [threading.Thread(target=search, args=(k,)) for k in range(1, 12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == {k: {str(k)} for k in range(1, 12)}
    batcher.close()


# ---------------------------------------------------------------------- headers


def test_other_content_types_are_refused(server: RetrievalServer) -> None:
    for content_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        status, reply = ask(server.port, {"queries": ["oak"]}, {"Content-Type": content_type})
        assert status == 415 and "application/json" in reply["error"]
    assert ask(server.port, {"queries": ["oak"]}, {"Content-Type": "application/json; charset=utf-8"})[0] == 200


def test_foreign_host_header_is_refused(server: RetrievalServer) -> None:
    for host in (
        "evil.example",
        f"evil.example:{server.port}",
        "127.0.0.1.evil.example",
        "a b",
        "192.168.0.7",
        "x:y:z",
    ):
        status, reply = ask(server.port, {"queries": ["oak"]}, {**JSON, "Host": host})
        assert status == 403 and "this server is not" in reply["error"], host
    for host in (
        "localhost",
        f"LOCALHOST:{server.port}",
        "127.0.0.1",
        "127.0.0.2:80",
        "[::1]:80",
        "app.localhost",
    ):
        assert ask(server.port, {"queries": ["oak"]}, {**JSON, "Host": host})[0] == 200, host


def test_server_of_a_network_accepts_addresses_and_local_names_only() -> None:
    def status(host: str) -> str:
        found: list[str] = []
        app = check_host(lambda environ, start: start("200 OK", []) or [], "0.0.0.0")
        app({"HTTP_HOST": host}, lambda status, headers: found.append(status))
        return found[0][:3]

    for host in (
        "10.1.2.3:8000",
        "[fd00::1]:8000",
        "node7",
        "retrieval:8000",
        "gpu.cluster.internal",
        "localhost",
    ):
        assert status(host) == "200", host
    for host in ("evil.example", "10.1.2.3.evil.example:8000", "internal.evil.example", ""):
        assert status(host) == ("403" if host else "200"), host


def test_server_that_others_can_reach_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        with RetrievalServer(Echo(), "0.0.0.0", 0):
            assert "reachable from other machines" in caplog.text
        caplog.clear()
        with RetrievalServer(Echo(), "127.0.0.1", 0):
            assert not caplog.text


# ---------------------------------------------------------------------- slow connections


@contextlib.contextmanager
def dripping(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Context with connections that have sent the beginning of a request."""
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            one.sendall(b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n{")
            opened.append(one)
        yield opened


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_150_dripping_connections_do_not_stop_the_service_and_are_dropped(
    server: RetrievalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "REQUEST_SECONDS", 1.0)
    with dripping(server.port, 150) as connections:
        assert ask(server.port, {"queries": ["oak"]}, timeout=5)[0] == 200
        deadline = time.monotonic() + 20
        while not all(is_closed(connection) for connection in connections):
            for connection in connections:  # Each byte is activity, but the request never ends.
                with contextlib.suppress(OSError):
                    connection.send(b" ")
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_connections_above_the_limit_displace_the_idle_ones(
    server: RetrievalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "MAX_CONNECTIONS", 20)
    with dripping(server.port, 60) as connections:
        for _ in range(5):
            assert ask(server.port, {"queries": ["oak"]}, timeout=5)[0] == 200
        assert sum(map(is_closed, connections)) >= 30


def is_connected(port: int) -> bool:
    """Return True if this process has a connected socket of a port; False where the system does not tell."""
    own = set()
    for entry in glob.glob("/proc/self/fd/*"):
        with contextlib.suppress(OSError):  # Closed meanwhile.
            own.add(os.readlink(entry))
    table = Path("/proc/net/tcp")
    rows = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    return any(row[1].endswith(f":{port:04X}") and row[3] != "0A" and f"socket:[{row[9]}]" in own for row in rows)


def test_client_that_takes_no_response_is_dropped(
    server: RetrievalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "RESPONSE_SECONDS", 0.5)
    body = json.dumps({"queries": ["x" * MAX_QUERY], "topk": 1000}).encode()
    head = (
        "POST /retrieve HTTP/1.1",
        "Host: localhost",
        *map(": ".join, JSON.items()),
        f"Content-Length: {len(body)}",
    )
    with socket.socket() as connection:
        connection.settimeout(20)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # or the kernel may hold all of it
        connection.connect(("127.0.0.1", server.port))
        connection.sendall("\r\n".join((*head, "", "")).encode() + body)
        connection.recv(1, socket.MSG_PEEK)  # the response begins, and fills the buffers
        time.sleep(3)
        assert not is_connected(server.port)
        received = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 20):
                received += part
    length = int(received.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
    assert 0 < len(received) < length


def test_idle_connection_is_closed(server: RetrievalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "IDLE_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
        while connection.recv(4096):
            pass  # ends without a timeout


# ---------------------------------------------------------------------- end

SERVE = """
import time
from arboretum.envs.retrieval import Document, Hit, Retriever
from arboretum.envs.retrieval.server import serve

class Slow(Retriever):
    identity = "slow"
    def search(self, queries, k):
        time.sleep(1.5)
        return [[Hit(Document(query, query), 1.0)] for query in queries]

serve(port=0, index=Slow(), ready=lambda url: print(url, flush=True))
print("ended", flush=True)
"""


def test_sigterm_ends_the_server_after_the_requests_in_progress() -> None:
    with subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        replies: list[tuple[int, Any]] = []
        clients = [
            threading.Thread(target=lambda n=n: replies.append(ask(port, {"queries": [f"q{n}"]})))  # type: ignore[misc]
            for n in range(3)
        ]
        for client in clients:
            client.start()
        time.sleep(0.7)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        with pytest.raises(ConnectionError):
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        for client in clients:
            client.join(20)
        assert [status for status, _ in replies] == [200] * 3
        assert process.wait(20) == 0
        assert process.stdout.read() == "ended\n"


def test_ctrl_c_ends_the_server_without_a_traceback() -> None:
    command = [sys.executable, "-c", SERVE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (0, "ended\n", "")


def test_stopped_server_frees_its_port() -> None:
    def app(environ: Any, start: Any) -> list[bytes]:
        start("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    server = WebServer(app, "Test", "127.0.0.1", 0, threads=2)
    server.start()
    server.stop()
    again = WebServer(app, "Test", "127.0.0.1", server.port, threads=2)
    again.start()
    again.stop()
