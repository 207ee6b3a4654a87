"""Tests of the retrieval server and its client over loopback HTTP."""

import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import pytest

from arboretum.cli import main
from arboretum.envs import ConfigurationError, DataError
from arboretum.envs.retrieval import Document, Hit, RetrievalError, Retriever
from arboretum.envs.retrieval.batching import Batcher
from arboretum.envs.retrieval.bm25 import BM25
from arboretum.envs.retrieval.http import HTTPRetriever, parse_reply
from arboretum.envs.retrieval.server import RetrievalServer
from arboretum.envs.searchqa import SearchQA

pytest.importorskip("aiohttp", reason="the extra openai is not installed")
pytest.importorskip("flask", reason="the extra web is not installed")
pytest.importorskip("waitress", reason="the extra web is not installed")

DOCUMENTS = [Document(str(i), f'"Tree {i}"\noak{i} wood 🌳 שלום\nsecond line') for i in range(30)]


@pytest.fixture(scope="module")
def server():
    with RetrievalServer(BM25.of(DOCUMENTS), port=0) as running:
        yield running


def post(url, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url + "/retrieve", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_reply_with_scores_has_documents_and_scores(server):
    status, reply = post(server.url, {"queries": ["oak3", "oak4 wood"], "topk": 2, "return_scores": True})
    assert status == 200
    first, second = reply["result"]
    assert first[0]["document"] == {
        "id": "3",
        "contents": DOCUMENTS[3].contents,
        "title": "Tree 3",
        "text": "oak3 wood 🌳 שלום\nsecond line",
    }
    assert isinstance(first[0]["score"], float)
    assert [item["document"]["id"] for item in second] == ["4", "0"]


def test_reply_without_scores_has_bare_documents(server):
    # The reference server unpacked the list of results into two variables, which broke other numbers of queries.
    for queries in (["oak3"], ["oak3", "oak4"], ["oak3", "oak4", "oak5"]):
        status, reply = post(server.url, {"queries": queries, "topk": 1, "return_scores": False})
        assert status == 200
        assert [ranking[0]["id"] for ranking in reply["result"]] == [query[3:] for query in queries]
        assert reply == post(server.url, {"queries": queries, "topk": 1})[1]


def test_missing_topk_and_scores_use_defaults(server):
    assert post(server.url, {"queries": []}) == (200, {"result": []})
    for topk in (None, 0):
        assert len(post(server.url, {"queries": ["wood"], "topk": topk})[1]["result"][0]) == 3
    assert len(post(server.url, {"queries": ["wood"]})[1]["result"][0]) == 3
    assert post(server.url, {"queries": ["nothing"]})[1] == {"result": [[]]}


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b'["oak"]',
        {"queries": "oak"},
        {"queries": [1]},
        {},
        {"queries": ["a"], "topk": -1},
        {"queries": ["a"], "topk": False},
        {"queries": ["a"], "topk": []},
        {"queries": ["a"], "topk": "3"},
        {"queries": ["a"], "topk": 10**9},
        {"queries": ["a"], "return_scores": "yes"},
    ],
)
def test_malformed_request_gets_status_400_with_explanation(server, body):
    status, reply = post(server.url, body)
    assert status == 400
    assert reply["error"].endswith((".", ".)"))


def test_health_reports_index_and_documents(server):
    client = HTTPRetriever(server.url)
    report = client.health()
    assert (report["status"], report["documents"]) == ("ok", 30)
    assert report["index"].startswith("bm25(k1=0.9,b=0.4):")


@pytest.mark.parametrize(
    "query", ["🌳", "שלום", "oak7", "a" * 8000, "wood oak7 " * 800, "\ud800", "a\0b", "", '"\\\n\t']
)
def test_any_query_gives_the_same_hits_over_http(server, query):
    direct = BM25.of(DOCUMENTS).search([query], 4)
    assert HTTPRetriever(server.url).search([query], 4) == direct


def test_client_accepts_every_form_of_address(server):
    for url in (server.url, server.url + "/", server.url + "/retrieve"):
        assert HTTPRetriever(url).search(["oak9"], 1)[0][0].document.id == "9"
    with pytest.raises(ConfigurationError, match="starts with http"):
        HTTPRetriever("127.0.0.1:8000")
    assert HTTPRetriever(server.url).search([], 3) == []


def test_path_outside_ascii_is_quoted():
    client = HTTPRetriever("http://127.0.0.1:9/café x%20y?key=é&b=1", retries=0)
    with pytest.raises(RetrievalError, match=r"127\.0\.0\.1:9/caf%C3%A9%20x%20y/retrieve cannot be reached"):
        client.search(["oak"], 1)


def test_replies_of_other_servers_are_parsed():
    document = {"id": "1", "contents": '"A"\nb'}
    assert parse_reply({"result": [[{"document": document, "score": 2}]]}, 1, "u") == [
        [Hit(Document("1", '"A"\nb'), 2.0)]
    ]
    assert parse_reply({"result": [[document]]}, 1, "u")[0][0].document == Document("1", '"A"\nb')
    assert parse_reply({"result": [["a snippet", "another"]]}, 1, "u") == [
        [Hit(Document("a snippet", "a snippet"), 0.0), Hit(Document("another", "another"), -1.0)]
    ]
    assert parse_reply({"result": [None]}, 1, "u") == [[]]
    web = {"document": {"title": "T", "text": "x"}, "score": 1}
    assert parse_reply({"result": [[web]]}, 1, "u")[0][0].document.contents == '"T"\nx'
    assert parse_reply({"result": [[{"id": None, "contents": "c"}]]}, 1, "u")[0][0].document == Document("c", "c")
    for bad in (None, [], {"result": 3}, {"result": [[]]}, {"result": [[5], []]}, {"result": [[{"id": 1}], []]}):
        with pytest.raises(RetrievalError):
            parse_reply(bad, 2, "u")
    for items in (web, "text", 1, [{"title": "T", "text": None}]):
        with pytest.raises(RetrievalError, match="not a document"):
            parse_reply({"result": [items]}, 1, "u")


class Slow(Retriever):
    """Retriever that records the size of its calls and blocks until `go` is set."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.go = threading.Event()
        self.entered = threading.Event()

    @property
    def identity(self) -> str:
        return "slow"

    def search(self, queries, k):
        self.batches.append(len(queries))
        self.entered.set()
        assert self.go.wait(30)
        return [[Hit(Document(query, query), 1.0)] * k for query in queries]


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_full_queue_returns_503_and_waiting_requests_form_one_batch():
    slow = Slow()
    with RetrievalServer(slow, port=0, max_waiting=4) as server:
        replies = []
        ask = lambda i: replies.append(HTTPRetriever(server.url, retries=0).search([f"q{i}"], 1 + i % 2))  # noqa: E731
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(5)]
        threads[0].start()
        assert slow.entered.wait(20)
        for thread in threads[1:]:
            thread.start()
        wait_until(lambda: HTTPRetriever(server.url).health()["waiting"] == 4)  # /health is served meanwhile.
        status, reply = post(server.url, {"queries": ["one too many"]})
        assert status == 503 and "waiting" in reply["error"]
        with pytest.raises(RetrievalError, match=r"503 .* after 2 tries"):
            HTTPRetriever(server.url, retries=1, backoff=0.01).search(["x"], 1)
        slow.go.set()
        for thread in threads:
            thread.join()
    assert slow.batches == [1, 2, 2]  # One batch for each k.
    assert sorted(ranking[0].document.id for (ranking,) in replies) == [f"q{i}" for i in range(5)]
    assert sorted(len(ranking) for (ranking,) in replies) == [1, 1, 1, 2, 2]  # Every request keeps its own k.


def test_failed_search_raises_in_its_caller_and_the_worker_continues():
    class Broken(Slow):
        def search(self, queries, k):
            raise ValueError("broken index")

    batcher = Batcher(Broken())
    with pytest.raises(ValueError, match="broken index"):
        batcher.search(["a"], 1)
    with pytest.raises(ValueError, match="broken index"):  # The worker continues.
        batcher.search(["a"], 1)
    batcher.close()
    with RetrievalServer(Broken(), port=0) as server:
        assert post(server.url, {"queries": ["a"]})[0] == 500


@pytest.mark.parametrize("port", [-1, 65536])
def test_number_that_is_no_port_is_rejected(port):
    with pytest.raises(ConfigurationError, match="port must be between 0 and 65535"):
        RetrievalServer(BM25.of(DOCUMENTS), port=port)


@pytest.mark.parametrize("option", ["max_batch", "max_waiting"])
def test_server_that_could_answer_nothing_is_rejected(option):
    with pytest.raises(ConfigurationError, match=f"{option} must be at least 1, but is 0"):
        RetrievalServer(BM25.of(DOCUMENTS), port=0, **{option: 0})


def test_timeout_that_is_no_duration_is_rejected():
    for options in ({"timeout": math.nan}, {"timeout": 0}, {"retries": -1}, {"backoff": math.nan}):
        with pytest.raises(ConfigurationError, match="timeout must be positive"):
            HTTPRetriever("http://127.0.0.1:1", **options)


def test_evaluation_queries_a_server_of_ones_own_for_its_episodes_only(tmp_path):
    """Labels of decisions replay episodes, which would search again, on the questions of the encyclopedia, too."""
    queries = []

    class Counting(Slow):
        def search(self, texts, k):
            queries.extend(texts)
            return [[] for _ in texts]

    numbers = []
    with RetrievalServer(Counting(), port=0) as server:
        for seconds in ("0", "60"):
            command = ["eval", "TextSearchQA-v0", "--agent", "expert", "--no-references", "--limit", "4"]
            options = ["--env-arg", f"retriever={server.url}", "--label-seconds", seconds]
            with pytest.raises(SystemExit) as ended:
                main([*command, *options, "--workers", "1", "--out", str(tmp_path / seconds)])
            assert not ended.value.code
            numbers.append(len(queries))
    assert numbers[0] > 0 and numbers[1] == 2 * numbers[0]


def test_taken_port_is_rejected(server):
    with pytest.raises(ConfigurationError, match=rf"cannot listen on 127.0.0.1:{server.port} \([\w ]+\);"):
        RetrievalServer(BM25.of(DOCUMENTS), port=server.port)


# ---------------------------------------------------------------------- failures


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Flaky:
    """Server that replies with a list of statuses in turn, then with 200."""

    def __init__(self, *statuses: int, body: bytes = b'{"result": [[]]}', pause: float = 0.0) -> None:
        outer = self
        self.statuses = list(statuses)
        self.requests = 0

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                outer.requests += 1
                self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(pause)
                status = outer.statuses.pop(0) if outer.statuses else 200
                self.send_response(status)
                if status == 503:
                    self.send_header("Retry-After", "0.01")
                self.end_headers()
                with contextlib.suppress(BrokenPipeError):  # The client may have disconnected.
                    self.wfile.write(body)

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


def test_temporary_failures_are_retried():
    with Flaky(503, 500, 502) as server:
        assert HTTPRetriever(server.url, retries=3, backoff=0.01).search(["q"], 1) == [[]]
        assert server.requests == 4
    with Flaky(404) as server:
        with pytest.raises(RetrievalError, match="returned status 404"):
            HTTPRetriever(server.url, retries=3, backoff=0.01).search(["q"], 1)
        assert server.requests == 1  # A retry would not help.


def test_invalid_or_missing_reply_raises_with_its_cause():
    with Flaky(body=b"<html>") as server, pytest.raises(RetrievalError, match="not JSON"):
        HTTPRetriever(server.url).search(["q"], 1)
    with Flaky(body=b'{"result": []}') as server, pytest.raises(RetrievalError, match="0 lists"):
        HTTPRetriever(server.url).search(["q"], 1)
    with Flaky(pause=0.5) as server, pytest.raises(RetrievalError, match=r"did not reply within 0.05 s"):
        HTTPRetriever(server.url, timeout=0.05, retries=0).search(["q"], 1)
    dead = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(RetrievalError, match="cannot be reached"):
        HTTPRetriever(dead, retries=1, backoff=0.01).search(["q"], 1)


SERVE = """
import sys
from arboretum.envs.retrieval.server import serve
serve(port=int(sys.argv[1]), index=sys.argv[2], ready=lambda url: print(url, flush=True))
"""


class ServerProcess:
    """Process that runs `serve` and can be killed."""

    def __init__(self, corpus, port=0) -> None:
        command = [sys.executable, "-c", SERVE, str(port), str(corpus)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        assert self.url

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(document._asdict()) + "\n" for document in DOCUMENTS))
    return path


def test_episode_continues_after_its_server_is_killed_and_restarted(corpus, tmp_path):
    questions = tmp_path / "test.jsonl"
    questions.write_text(json.dumps({"id": "0", "question": "Which?", "golden_answers": ["oak4"]}))
    server = ServerProcess(corpus)
    port = int(server.url.rpartition(":")[2])
    try:
        client = HTTPRetriever(server.url, retries=1, backoff=0.01)
        env = SearchQA(data=questions, retriever=client)
        env.reset(options={"task": 0})
        assert "oak4" in env.step("<search>oak4</search>")[0]
        snapshot = env.snapshot()
    finally:
        server.kill()
    with pytest.raises(RetrievalError, match=f"127.0.0.1:{port}"):
        env.step("<search>oak5</search>")
    assert env.snapshot() == snapshot
    again = ServerProcess(corpus, port)
    try:
        assert "oak5" in env.step("<search>oak5</search>")[0]
        assert env.step("<answer>oak4</answer>")[1] == 1.0
    finally:
        again.kill()


def test_check_reports_a_server_that_is_down_at_once_and_accepts_what_a_cache_knows(tmp_path):
    with RetrievalServer(BM25.of(DOCUMENTS), port=0) as server:
        url = server.url
        cached = HTTPRetriever(url, cache=tmp_path / "cache.sqlite")
        cached.check()
        SearchQA(dataset="encyclopedia", retriever=url).check_server()
    cached.check()
    start = time.monotonic()
    with pytest.raises(ConfigurationError, match=r"cannot be reached \(Connection refused\); start it \("):
        HTTPRetriever(url, backoff=10.0).check()
    assert time.monotonic() - start < 5
    SearchQA(dataset="encyclopedia").check_server()


def test_cache_replaces_a_stopped_server_and_detects_another_index(tmp_path):
    cache = tmp_path / "cache.sqlite"
    with RetrievalServer(BM25.of(DOCUMENTS), port=0) as server:
        url, port = server.url, server.port
        client = HTTPRetriever(url, cache=cache)
        expected = client.search(["oak1", "oak2", "oak1"], 2)
        assert expected == BM25.of(DOCUMENTS).search(["oak1", "oak2", "oak1"], 2)
        assert client.health()["served"] == 2  # Every query once.
        client.search(["oak2", "\ud800"], 2)
        assert client.health()["served"] == 3
        client.close()
    client = HTTPRetriever(url, cache=cache, retries=0)
    assert client.search(["oak2", "oak1"], 2) == [expected[1], expected[0]]
    with pytest.raises(RetrievalError):
        client.search(["oak1", "not seen"], 2)
    with pytest.raises(RetrievalError):
        client.search(["oak1"], 3)  # Another k is another request.
    client.close()
    # Another index at the same address has its own cache entries.
    changed = BM25.of([Document("new", "oak1")])
    with RetrievalServer(changed, port=port) as server:
        client = HTTPRetriever(url, cache=cache)
        assert client.search(["oak1"], 2)[0][0].document.id == "new"
        client.close()


def test_cache_and_identity_are_of_the_query_of_the_address(server, tmp_path):
    """A query may choose the index. Its text may be secret, and is not stored."""
    clients = [
        HTTPRetriever(f"{server.url}/retrieve{query}", cache=tmp_path / "cache.sqlite")
        for query in ("?index=wiki&token=1", "?index=pubmed", "?token=2&index=wiki", "")
    ]
    served = [client.health()["served"] for client in clients if client.search(["wood oak7"], 3)]
    assert [after - before for before, after in pairwise(served)] == [1, 0, 1]
    wiki, pubmed, again, plain = (client.identity for client in clients)
    assert wiki == again and len({wiki, pubmed, plain}) == 3 and plain == f"http:{server.url}/retrieve"
    assert not re.search("wiki|pubmed|token", wiki + pubmed)
    for client in clients:
        client.close()
    with pytest.raises(ConfigurationError, match=r"from the settings of a run.*give the address with its query"):
        HTTPRetriever(pubmed.removeprefix("http:"))
    assert HTTPRetriever(f"{server.url}?api-version=2").identity == plain


def test_file_that_is_not_a_cache_is_rejected(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("something else entirely, and long enough to be read as a database header" * 20)
    with pytest.raises(DataError, match="not a readable reply cache"):
        HTTPRetriever("http://127.0.0.1:1", cache=path)
