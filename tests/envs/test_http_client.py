"""The retrieval client against servers that are slow, send too much, or send somewhere else."""

from __future__ import annotations

import base64
import gzip
import json
import math
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from arboretum.envs import http_client
from arboretum.envs.addresses import is_secret, parse_address, public_url, query_mark
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.http_client import BlockingClient, ResponseTooLarge
from arboretum.envs.retrieval import RetrievalError
from arboretum.envs.retrieval.http import HTTPRetriever
from arboretum.envs.retry_after import requested_wait
from support.raw_server import raw_server, sends

pytest.importorskip("aiohttp", reason="the extra openai is not installed")

SECRET = "tok-5ecret"


def drip(connection: socket.socket) -> None:
    """Send a header and a body that never end, one byte at a time."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
    for _ in range(200):
        connection.sendall(b" ")
        time.sleep(0.05)


def drip_header(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for n in range(200):
        connection.sendall(b"X" if n % 10 != 9 else b": y\r\nX")
        time.sleep(0.05)


@pytest.mark.parametrize("reply", [drip, drip_header])
def test_dripping_reply_ends_at_the_timeout(reply: object) -> None:
    with raw_server(reply) as (url, _):  # type: ignore[arg-type]
        start = time.monotonic()
        with pytest.raises(RetrievalError, match=r"did not reply within 0\.4 s"):
            HTTPRetriever(url, timeout=0.4, retries=0).search(["q"], 1)
        assert time.monotonic() - start < 3


def test_reply_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    too_large = pytest.raises(RetrievalError, match="returned more than 64 MB")
    with raw_server(sends(b"x", length=10**15)) as (url, _), too_large:
        HTTPRetriever(url, retries=0).search(["q"], 1)
    too_short = pytest.raises(RetrievalError, match=r"closed the connection \(ClientPayloadError")
    with raw_server(sends(b"x", length=10)) as (url, _), too_short:
        HTTPRetriever(url, retries=0).search(["q"], 1)

    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")

    with raw_server(endless) as (url, _), pytest.raises(RetrievalError, match="returned more than 64 MB"):
        HTTPRetriever(url, retries=0).search(["q"], 1)
    monkeypatch.setattr(http_client, "MAX_RESPONSE", 4999)
    with raw_server(sends(b"x" * 5000)) as (url, _), pytest.raises(ResponseTooLarge):
        client = BlockingClient(url, {}, 10.0, use_proxies=False, purpose="this test")
        client.request("GET", url)


def test_compressed_reply_is_unpacked_up_to_the_limit() -> None:
    bomb = gzip.compress(b" " * 100_000_000)
    with raw_server(sends(bomb, headers=("Content-Encoding: gzip",))) as (url, requests):
        with pytest.raises(RetrievalError, match="returned more than 64 MB"):
            HTTPRetriever(url).search(["q"], 1)
        assert b"accept-encoding: identity" in requests[0].lower()
    body = gzip.compress(json.dumps({"result": [["a"]]}).encode())
    with raw_server(sends(body, headers=("Content-Encoding: gzip",))) as (url, _):
        assert HTTPRetriever(url).search(["q"], 1)[0][0].document.contents == "a"
    incomplete = pytest.raises(RetrievalError, match="the packed response is incomplete")
    with raw_server(sends(body[:-12], headers=("Content-Encoding: gzip",))) as (url, _), incomplete:
        HTTPRetriever(url, retries=0).search(["q"], 1)


def test_deep_json_is_refused() -> None:
    for status in ("200 OK", "400 Bad"):
        with raw_server(sends(b"[" * 1_000_000, status=status)) as (url, _), pytest.raises(RetrievalError):
            HTTPRetriever(url).search(["q"], 1)


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "http://127.0.0.1:1/x?key=tok-5ecret", "ftp://h/", "\x1b[2J"]
)
def test_redirect_is_not_followed(target: str) -> None:
    reply = sends(b"", status="302 Found", headers=(f"Location: {target}",))
    with raw_server(reply) as (url, requests):
        with pytest.raises(RetrievalError, match=r"status 302 \(it has moved to ") as caught:
            HTTPRetriever(url).search(["q"], 1)
        assert len(requests) == 1 and SECRET not in str(caught.value) and "\x1b" not in str(caught.value)


def test_error_text_of_a_server_is_one_short_printable_line() -> None:
    body = json.dumps({"error": "\x1b[2J\nline " + "x" * 3000}).encode()
    with raw_server(sends(body, status="400 Bad")) as (url, _), pytest.raises(RetrievalError) as caught:
        HTTPRetriever(url).search(["q"], 1)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


def test_more_hits_than_asked_are_dropped() -> None:
    body = json.dumps({"result": [[f"snippet {n}" for n in range(50)]]}).encode()
    with raw_server(sends(body)) as (url, _):
        assert [hit.document.id for hit in HTTPRetriever(url).search(["q"], 2)[0]] == ["snippet 0", "snippet 1"]


@pytest.mark.parametrize("score", ["NaN", "Infinity", "1e999", '"x"', "null", "[]"])
def test_score_that_is_no_number_is_refused(score: str) -> None:
    body = b'{"result": [[{"document": {"id": "1", "contents": "a"}, "score": %s}]]}' % score.encode()
    with raw_server(sends(body)) as (url, _), pytest.raises(RetrievalError, match="not a document"):
        HTTPRetriever(url).search(["q"], 1)


@given(st.text(max_size=40) | st.binary(max_size=40).map(lambda raw: raw.decode("latin-1")))
@example("nan")
@example("inf")
@example("-5")
@example("1e400")
@example("Mon, 01 Jan 0001 00:00:00 +2359")
@example("Fri, 31 Dec 99999 23:59:59 GMT")
def test_retry_after_of_any_bytes_is_a_duration_or_none(text: str) -> None:
    seconds = requested_wait({"retry-after": text}, time.time())
    assert seconds is None or (math.isfinite(seconds) and seconds >= 0)


def test_many_queries_are_sent_in_parts() -> None:
    def echo(connection: socket.socket) -> None:
        count = len(json.loads(requests[-1].partition(b"\r\n\r\n")[2])["queries"])
        sends(json.dumps({"result": [["a"]] * count}).encode())(connection)

    with raw_server(echo) as (url, requests):
        assert len(HTTPRetriever(url).search(["q"] * 12, 1000)) == 12
        assert len(requests) == 3
        requests.clear()
        assert len(HTTPRetriever(url).search(["x" * 100_000] * 200, 1)) == 200
        assert max(map(len, requests)) < 2**20 and len(requests) == 4


# ---------------------------------------------------------------------- processes

ANSWER = sends(json.dumps({"result": [["a"]]}).encode())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_process_connects_anew() -> None:
    with raw_server(ANSWER) as (url, requests):
        client = HTTPRetriever(url)
        assert client.search(["q"], 1)
        child = multiprocessing.get_context("fork").Process(target=client.search, args=(["q"], 1))
        child.start()
        child.join(60)
        assert child.exitcode == 0 and len(requests) == 2
        assert client.search(["q"], 1)


@pytest.mark.parametrize("ending", ["", "client.close(); client.search(['q'], 1)", "del client"])
def test_process_exits_silently_with_open_connections(ending: str) -> None:
    with raw_server(ANSWER) as (url, _):
        script = (
            "from arboretum.envs.retrieval.http import HTTPRetriever\n"
            f"client = HTTPRetriever({url!r})\nclient.search(['q'], 1)\n{ending}\n"
        )
        command = [sys.executable, "-W", "error", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_exit_waits_until_a_dropped_client_is_closed() -> None:
    with raw_server(ANSWER) as (url, _):
        script = (
            "import asyncio\n"
            "from arboretum.envs.http_client import HTTPClient\n"
            "from arboretum.envs.retrieval.http import HTTPRetriever\n"
            "close = HTTPClient.close\n"
            "async def close_slowly(client):\n"
            "    await asyncio.sleep(0.2)\n"
            "    await close(client)\n"
            "HTTPClient.close = close_slowly\n"
            f"client = HTTPRetriever({url!r})\nclient.search(['q'], 1)\ndel client\n"
        )
        command = [sys.executable, "-W", "error", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ConfigurationError, match='retrieval over HTTP needs the extra "openai"'):
        HTTPRetriever("http://127.0.0.1:1")


# ---------------------------------------------------------------------- secrets


def test_credentials_of_an_address_are_sent_but_never_shown(tmp_path: Path) -> None:
    body = json.dumps({"result": [["a"]]}).encode()
    with raw_server(sends(body)) as (url, requests):
        address = f"{url.replace('//', f'//user:{SECRET}@')}/api?key={SECRET}"
        client = HTTPRetriever(address, cache=tmp_path / "cache.sqlite")
        assert client.search(["q"], 1)
        head = requests[-1].decode()
        assert head.startswith(f"POST /api/retrieve?key={SECRET} ")
        assert f"Basic {base64.b64encode(f'user:{SECRET}'.encode()).decode()}" in head
        assert SECRET not in client.identity + client.url
        client.close()
    assert not any(SECRET.encode() in path.read_bytes() for path in tmp_path.iterdir())
    with pytest.raises(RetrievalError) as caught:
        HTTPRetriever(address, retries=0).search(["q"], 1)
    assert SECRET not in str(caught.value)
    with raw_server(lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\n: y\r\n\r\n")) as (url, _):
        with pytest.raises(RetrievalError, match="Invalid header") as caught:
            HTTPRetriever(f"{url}?key={SECRET}", retries=0).search(["q"], 1)
        assert SECRET not in str(caught.value)
    for bad in (
        f"ftp://u:{SECRET}@h",
        f"http://u:{SECRET}@:80",
        f"http://u:{SECRET}@h:x/?k={SECRET}",
        f"u:{SECRET}@h",
    ):
        with pytest.raises(ConfigurationError) as refused:
            HTTPRetriever(bad)
        assert SECRET not in str(refused.value), bad


@given(st.text(max_size=60))
@example("http://[::1/")
@example("http://h:99999")
def test_any_text_has_a_public_form(text: str) -> None:
    public_url(text)
    with pytest.raises(ConfigurationError):
        parse_address("gopher://" + text)


def test_public_url_keeps_scheme_host_port_and_path() -> None:
    assert public_url(f"https://u:{SECRET}@Host:80/v1?k={SECRET}#f") == "https://host:80/v1"
    assert public_url(f"http://{SECRET}@[::1]:8/a") == "http://[::1]:8/a"
    assert parse_address("http://h/").hostname == "h"


def test_query_of_an_address_counts_but_for_words_of_credentials() -> None:
    def mark(query: str) -> str:
        return query_mark(f"http://127.0.0.1:9/?{query}")

    assert not mark("key=1&api_key=1&accessToken=1&x-signature=1&subscription-key=1&api-version=3&apikey=2")
    assert not mark(
        "authtoken=1&apikey2=1&APIToken=1&clientsecret=1&userkey=1&oauth=1&cookies=1&passphrase=1&keys=1"
    )
    names = ("passages", "keyword_index", "author", "monkey", "compass", "tokenizer", "max_tokens")
    assert len({mark(f"{name}={value}&key=1") for name in names for value in "ab"}) == 2 * len(names)
    assert mark("passages=a&key=1") == mark("key=2&passages=a") == mark("passages=a")


def test_secrets_among_settings_are_told_by_their_names() -> None:
    secrets = "api_key openai_api_key apikey2 APIKey accessToken hf_token token password client_secret credentials"
    assert all(map(is_secret, secrets.split()))
    others = "state_key key keys stop_token pad_token max_tokens tokenizer passages signature secretary"
    assert not any(map(is_secret, others.split()))
