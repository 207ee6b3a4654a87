"""The OpenAI engine against servers that send too much, the wrong bytes, or the key back."""

from __future__ import annotations

import gzip
import json
import logging
import resource
import shutil
import time
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("aiohttp", reason="needs the extra openai")
pytest.importorskip("stamina", reason="needs the extra openai")

from arboretum.agents.base import Stop
from arboretum.agents.engines.base import Request, Sampling
from arboretum.agents.engines.connection import decode_json, encode_json
from arboretum.agents.engines.openai import OpenAIEngine
from arboretum.agents.engines.vllm_policy_servers import VLLMPolicyServers
from arboretum.agents.engines.vllm_server import VLLMServerEngine
from arboretum.envs import http_client
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.retry_after import requested_wait
from arboretum.eval.bench.endpoint import Endpoint, ScriptedResponse, default_completion
from support.openai import Make, answer, ask, says
from support.raw_server import raw_server, sends

KEY = "sk-0123456789abcdef-5ecret"


def packed(body: Any, encoding: str = "gzip") -> ScriptedResponse:
    content = json.dumps(body).encode()
    content = gzip.compress(content) if encoding == "gzip" else zlib.compress(content)
    return ScriptedResponse(body=content, headers=(("content-encoding", encoding),))


# ---------------------------------------------------------------------- sizes and encodings


def test_gzip_bomb_is_refused_without_unpacking_it(endpoint: Endpoint, make: Make) -> None:
    bomb = gzip.compress(b'{"a": "' + b"x" * 400_000_000, compresslevel=1)
    endpoint.script.append(ScriptedResponse(body=bomb, headers=(("content-encoding", "gzip"),)))
    engine = make()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    completion = answer(engine)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert completion.error is not None and completion.error.endswith("the response exceeds 64 MB")
    assert grown < 200 and len(endpoint.requests) == 1
    assert endpoint.requests[0][1]["accept-encoding"] == "identity"


def test_endless_response_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_RESPONSE", 2**20)

    def endless(client: Any) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            client.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")

    for reply in (endless, sends(b"{}", length=10**12)):
        with raw_server(reply) as (url, _):
            completion = answer(make(base_url=f"{url}/v1", attempts=1, timeout=5))
            assert completion.error is not None and completion.error.endswith("the response exceeds 1 MB")


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_packed_response_of_a_sensible_size_is_read(endpoint: Endpoint, make: Make, encoding: str) -> None:
    endpoint.script.append(packed(default_completion({"messages": []}, "packed"), encoding))
    assert answer(make()).text == "packed"


@pytest.mark.parametrize(
    "headers", [(("content-encoding", "br"),), (("content-encoding", "gzip"),), (("content-encoding", "\x1b[2J"),)]
)
def test_response_that_cannot_be_unpacked_is_retried(
    endpoint: Endpoint, make: Make, headers: tuple[tuple[str, str], ...]
) -> None:
    endpoint.script.append(ScriptedResponse(headers=headers))
    engine = make()
    assert answer(engine).finish == "stop" and engine.retries == 1


@pytest.mark.parametrize("status", [200, 400, 500])
def test_deep_json_is_not_followed(endpoint: Endpoint, make: Make, status: int) -> None:
    endpoint.script.append(ScriptedResponse(status=status, body=b"[" * 1_000_000))
    completion = answer(make(attempts=1))
    assert completion.finish != "stop" and completion.error is not None and len(completion.error) < 500


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms"]), st.binary()))
def test_retry_after_of_any_bytes_is_a_duration_or_ignored(headers: dict[str, bytes]) -> None:
    for decoding in ("latin-1", "utf-8"):
        texts = {name: raw.decode(decoding, "surrogateescape") for name, raw in headers.items()}
        wait = requested_wait(texts, time.time())
        assert wait is None or 0 <= wait < float("inf")


@pytest.mark.parametrize(
    "date", ["Mon, 01 Jan 0001 00:00:00 +2359", "Fri, 31 Dec 9999 23:59:59 -2359", "1 1 1 1 1"]
)
def test_impossible_dates_are_ignored_or_waits(date: str) -> None:
    wait = requested_wait({"retry-after": date}, time.time())
    assert wait is None or wait >= 0


# ---------------------------------------------------------------------- JSON


@given(st.recursive(st.none() | st.booleans() | st.text() | st.integers(-(2**63), 2**63), st.lists, max_leaves=9))
def test_json_is_that_of_the_standard_library(data: Any) -> None:
    assert json.loads(encode_json({"a": data})) == {"a": data} == decode_json(json.dumps({"a": data}).encode())


def test_half_surrogate_pairs_and_nan_are_read_and_written() -> None:
    assert json.loads(encode_json({"a": "\ud800"})) == {"a": "\ud800"} == decode_json(b'{"a": "\\ud800"}')
    assert str(decode_json(b"[NaN]")) == "[nan]"
    for bad in (b"", b"{", b"\xff", b'{"a": 1}x', b"[" * 100_000):
        with pytest.raises(ValueError):
            decode_json(bad)


# ---------------------------------------------------------------------- secrets


def test_echoed_key_is_neither_shown_nor_stored(
    endpoint: Endpoint, make: Make, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    echo = {"error": {"message": f"bad header 'Authorization: Bearer {KEY}' or 'x-org: 0rg-{KEY}'"}}
    engine = make(api_key=KEY, headers={"x-org": f"0rg-{KEY}"}, attempts=2, cache=tmp_path / "cache.sqlite")
    caplog.set_level(logging.DEBUG)
    for status in (400, 500):
        endpoint.script.extend([ScriptedResponse(status=status, body=echo)] * 2)
        error = answer(engine).error
        assert error is not None and "Bearer ***" in error and KEY not in error
        endpoint.script.clear()
    endpoint.script.append(ScriptedResponse(body=f"<html>{KEY}".encode()))
    assert answer(engine, ask(text="a")).finish == "stop"
    endpoint.script.append(says(f"my key is {KEY}, you know"))
    assert answer(engine, ask(text="b")).text == "my key is ***, you know"
    unsupported = {"message": f"'seed' unsupported {KEY}", "param": "seed", "code": "unsupported_parameter"}
    endpoint.script.append(ScriptedResponse(status=400, body={"error": unsupported}))
    assert answer(engine, ask(text="c")).finish == "stop"
    endpoint.script.append(ScriptedResponse(status=401, body=echo))
    engine.submit(ask(text="d"))
    with pytest.raises(Stop) as stopped:
        engine.collect()
    assert KEY not in str(stopped.value) and KEY not in caplog.text and "omitted" in caplog.text
    engine.close()
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.iterdir())
    assert all(headers["authorization"] == f"Bearer {KEY}" for _, headers, _ in endpoint.requests)


def test_short_placeholder_of_a_key_does_not_change_replies(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.append(says("a secret token"))
    assert answer(make(api_key="secret")).text == "a secret token"


def test_reply_may_repeat_what_is_no_credential(endpoint: Endpoint, make: Make) -> None:
    address = f"{endpoint.url}?api-version=2024-10-21-preview&sig=5ignature-0f-16-or-more"
    engine = make(base_url=address, headers={"x-title": "Evaluation of agents", "x-api-key": KEY})
    text = f"Evaluation of agents: use 2024-10-21-preview, not {KEY} or 5ignature-0f-16-or-more"
    endpoint.script.append(says(text))
    assert answer(engine).text == "Evaluation of agents: use 2024-10-21-preview, not *** or ***"


def test_credentials_in_the_address_are_sent_but_never_shown(endpoint: Endpoint, make: Make) -> None:
    address = endpoint.url.replace("//", "//user:pa5sword@") + "?api-version=3&sig=5ignature"
    engine = make(base_url=address, attempts=1)
    assert answer(engine).finish == "stop"
    path, headers, _ = endpoint.requests[0]
    assert path == "/v1/chat/completions?api-version=3&sig=5ignature"
    assert headers["authorization"].startswith("Basic ")
    endpoint.script.append(
        ScriptedResponse(status=500, body=f"denied {headers['authorization']}: {path}".encode())
    )
    error = answer(engine).error
    endpoint.script.append(ScriptedResponse(status=307, headers=(("location", f"{address}&x"),)))
    engine.submit(ask())
    with pytest.raises(Stop, match="moved") as moved:
        engine.collect()
    dead = make(base_url="http://user:pa5sword@127.0.0.1:9/v1?sig=5ignature")
    dead.submit(ask())
    with pytest.raises(Stop, match="no server answers") as unreachable:
        dead.collect()
    for text in (str(error), str(moved.value), str(unreachable.value), engine.base_url, engine.name):
        assert "pa5sword" not in text and "5ignature" not in text and headers["authorization"][6:] not in text


@pytest.mark.parametrize(
    "url", ["ftp://u:pa5sword@h/v1", "http://u:pa5sword@:80", "http://u:pa5sword@h:x/?k=pa5sword"]
)
def test_message_about_a_wrong_address_has_no_credentials(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        OpenAIEngine("m", base_url=url)
    assert "pa5sword" not in str(caught.value)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (ScriptedResponse(status=500, body=f"Bearer {KEY}".encode()), r"does not list the models .*Bearer \*\*\*"),
        (ScriptedResponse(body=b"[" * 1_000_000), "does not list the models"),
        (ScriptedResponse(body={"data": 3}), "not OpenAI-compatible"),
        (ScriptedResponse(body={"data": [{"id": "other"}]}), "serves other, not 'm'"),
        (ScriptedResponse(status=302, headers=(("location", "file:///etc/passwd"),)), "has moved"),
    ],
)
def test_vllm_server_that_lists_no_models_is_refused(
    endpoint: Endpoint, response: ScriptedResponse, message: str
) -> None:
    endpoint.script.append(response)
    with pytest.raises(ConfigurationError, match=message) as caught:
        VLLMServerEngine("m", base_url=endpoint.url, api_key=KEY)
    assert KEY not in str(caught.value) and len(str(caught.value)) < 500


def test_token_reply_that_the_server_broke_off_is_requested_again(endpoint: Endpoint, tiny_tokenizer: Any) -> None:
    choice = {"text": "x", "token_ids": [5], "prompt_token_ids": [7], "logprobs": {"token_logprobs": [-0.5]}}
    replies = [{"choices": [{**choice, "finish_reason": reason}]} for reason in ("abort", "length")]
    cards = {"data": [{"id": "m", "max_model_len": 99}]}
    endpoint.script.extend([ScriptedResponse(body=body) for body in (cards, *replies)])
    with closing(VLLMServerEngine("m", base_url=endpoint.url, tokenizer=tiny_tokenizer)) as engine:
        engine.submit(Request("a", (), [7], Sampling(), 0))
        ((_, completion),) = engine.collect()
        assert completion.finish == "length" and engine.retries == 1


def test_tokenizer_that_is_damaged_is_named(endpoint: Endpoint, tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text('{"version": "1.0"}')
    endpoint.script.append(ScriptedResponse(body={"data": [{"id": "m", "root": str(tmp_path / "model")}]}))
    with pytest.raises(
        ConfigurationError, match=r"tokenizer of the served model cannot be loaded .*pass tokenizer="
    ):
        VLLMServerEngine("m", base_url=endpoint.url)


def test_policy_server_that_is_not_vllm_is_refused(endpoint: Endpoint, tiny_tokenizer: Any) -> None:
    endpoint.script.extend([ScriptedResponse(body={"data": [{"id": "m"}]})] * 2)
    with pytest.raises(ConfigurationError, match="is not a vLLM server"):
        VLLMPolicyServers([endpoint.url], dtype="float32", tokenizer=tiny_tokenizer)
