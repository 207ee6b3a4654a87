"""Retries and failures of the OpenAI engine, against a local HTTP server with scripted misbehavior."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("aiohttp", reason="needs the extra openai")
pytest.importorskip("stamina", reason="needs the extra openai")

from arboretum.agents.base import Stop
from arboretum.agents.engines.base import Completion
from arboretum.agents.engines.faults import unsupported_option
from arboretum.envs.retry_after import parse_duration, requested_wait
from arboretum.eval.bench.endpoint import Endpoint, ScriptedResponse
from support.openai import Make, answer, ask, says

# ---------------------------------------------------------------------- transient failures


FAILURES = {
    "status 500": ScriptedResponse(status=500, body=b"oops"),
    "status 503": ScriptedResponse(status=503, body={"error": {"message": "overloaded"}}),
    "garbage": ScriptedResponse(body=b"<html>gateway</html>"),
    "truncated JSON": ScriptedResponse(body=b'{"choices": [{"mess'),
    "no choices": ScriptedResponse(body={"choices": []}),
    "no message": ScriptedResponse(body={"choices": [{}]}),
    "a list": ScriptedResponse(body=b"[1, 2]"),
    "an error in a success": ScriptedResponse(body={"error": {"message": "provider is down"}}),
    "text of the wrong type": says("", message={"content": 3}),
    "cut off in the middle": ScriptedResponse(close_after=20),
    "connection reset": ScriptedResponse(reset=True),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_transient_failure_is_retried(endpoint: Endpoint, make: Make, failure: str) -> None:
    endpoint.script.append(FAILURES[failure])
    engine = make()
    assert answer(engine).text == "I read 1 messages."
    assert len(endpoint.requests) == 2 and engine.retries == 1


def test_reason_of_repeated_failures_is_logged_once(
    endpoint: Endpoint, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.script.extend([FAILURES["garbage"]] * 4)
    assert answer(make()).finish == "stop"
    said = [record.getMessage().partition("/v1")[2] for record in caplog.records if "/v1" in record.getMessage()]
    assert said == [" failed 3 times, and is asked again: the response is not JSON: '<html>gateway</html>'"]


def test_hanging_and_dripping_responses_time_out(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.extend([ScriptedResponse(delay=30), ScriptedResponse(byte_delay=0.05)])
    engine = make(timeout=0.5)
    start = time.perf_counter()
    assert answer(engine).finish == "stop"
    assert engine.retries == 2
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize(
    "headers",
    [
        [("retry-after", "1")],
        [("retry-after-ms", "1000")],
        [("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "1s")],
    ],
)
def test_rate_limit_delays_all_requests(endpoint: Endpoint, make: Make, headers: list[tuple[str, str]]) -> None:
    endpoint.script.append(
        ScriptedResponse(status=429, headers=tuple(headers), body={"error": {"message": "slow down"}})
    )
    engine = make()
    start = time.perf_counter()
    engine.submit(ask("a"))
    while engine.retries == 0 and len(endpoint.requests) == 0:
        time.sleep(0.01)
    time.sleep(0.1)  # until the response has been read
    engine.submit(ask("b"))
    got: dict[str, Completion] = {}
    while len(got) < 2:
        got |= dict(engine.collect())
        assert time.perf_counter() - start >= 1.0  # b is delayed too, although it was never rejected
    assert {completion.finish for completion in got.values()} == {"stop"}
    assert len(endpoint.requests) == 3


def test_exhausted_attempts_give_an_error_completion(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.extend([ScriptedResponse(status=500, body={"error": {"message": "the disk is full"}})] * 2)
    completion = answer(make(attempts=2))
    assert (completion.text, completion.finish) == ("", "error")
    expected = f"{endpoint.url} failed 2 times in a row, at last with: status 500: the disk is full."
    assert completion.error == expected


def test_deadline_bounds_all_attempts_together(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.extend([ScriptedResponse(delay=30)] * 9)
    start = time.perf_counter()
    completion = answer(make(timeout=0.4, deadline=1.5))
    assert completion.finish == "error" and completion.error is not None
    assert "no complete response within 0.4 s" in completion.error
    assert time.perf_counter() - start < 3
    first = answer(make(deadline=0.3))
    assert first.error == f"{endpoint.url} did not respond within 0.3 s."


def test_requested_wait_beyond_the_deadline_fails_at_once(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.append(ScriptedResponse(status=429, headers=(("retry-after", "3600"),), body=b""))
    start = time.perf_counter()
    completion = answer(make(deadline=30))
    assert completion.error is not None and completion.error.endswith("the server requests a wait of 3600 s.")
    assert time.perf_counter() - start < 5


def test_rejected_request_is_not_retried(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.append(ScriptedResponse(status=400, body={"error": {"message": "messages: too many images"}}))
    engine = make()
    completion = answer(engine)
    assert completion.error is not None and "too many images" in completion.error
    assert answer(engine).finish == "stop"
    assert len(endpoint.requests) == 2


def test_context_overflow_rejects_the_conversation(endpoint: Endpoint, make: Make) -> None:
    message = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."
    endpoint.script.append(ScriptedResponse(status=400, body={"error": {"message": message, "code": 400}}))
    completion = answer(make())
    assert completion == Completion("", "rejected", error="the conversation exceeds the model's context window")


def test_refused_content_is_told_from_a_request_that_no_conversation_could_send(
    endpoint: Endpoint, make: Make
) -> None:
    refusal = ScriptedResponse(status=400, body={"error": {"message": "no", "code": "content_filter"}})
    bad = ScriptedResponse(status=400, body={"error": {"message": "logit_bias must be a map"}})
    endpoint.script.extend([refusal, bad])
    engine = make()
    assert answer(engine).finish == "rejected"
    assert answer(engine).finish == "error"  # the server has answered nothing yet
    assert answer(engine).finish == "stop"
    endpoint.script.append(bad)
    assert answer(engine).finish == "rejected"


def test_first_conversation_that_llama_cpp_finds_too_long_is_rejected(endpoint: Endpoint, make: Make) -> None:
    error = {"message": "the request exceeds the available context size, try increasing it", "code": 400}
    endpoint.script.append(ScriptedResponse(status=400, body={"error": error}))
    assert answer(make()).error == "the conversation exceeds the model's context window"


@pytest.mark.parametrize("reason", ["abort", "error", "insufficient_system_resource"])
def test_reply_that_the_server_broke_off_is_requested_again(endpoint: Endpoint, make: Make, reason: str) -> None:
    endpoint.script.append(says("half a", finish_reason=reason))
    engine = make()
    assert answer(engine).text == "I read 1 messages."
    assert engine.retries == 1


def test_limit_of_tokens_that_the_user_gives_is_kept(endpoint: Endpoint, make: Make) -> None:
    """OpenAI's reasoning models refuse `max_tokens`, and count hidden reasoning in `max_completion_tokens`."""
    error = {"message": "Setting 'max_tokens' and 'max_completion_tokens' at once is not supported."}
    endpoint.script.append(ScriptedResponse(status=400, body={"error": error}))
    assert answer(make(extra={"max_completion_tokens": 4000}), ask(max_tokens=100)).finish == "stop"
    _, _, body = endpoint.requests[-1]
    assert body["max_completion_tokens"] == 4000 and "max_tokens" not in body


def test_new_address_of_a_server_is_named_as_it_must_be_passed(endpoint: Endpoint, make: Make) -> None:
    moved = (("location", "https://api.example.org/v2/chat/completions"),)
    endpoint.script.append(ScriptedResponse(status=308, headers=moved))
    with pytest.raises(Stop, match=r"set --base-url \(in Python base_url=\) to 'https://api\.example\.org/v2'"):
        answer(make())


def test_conversation_that_openrouter_flags_ends_alone(endpoint: Endpoint, make: Make) -> None:
    metadata = {"reasons": ["violence"], "flagged_input": "hello", "provider_name": "p", "model_slug": "m"}
    error = {"code": 403, "message": "m requires moderation and your input was flagged", "metadata": metadata}
    endpoint.script.append(ScriptedResponse(status=403, body={"error": error}))
    engine = make()
    assert answer(engine).finish == "rejected"
    assert answer(engine).finish == "stop"


def test_unsupported_options_are_omitted(endpoint: Endpoint, make: Make) -> None:
    for name, hint in (("max_tokens", "Use 'max_completion_tokens' instead."), ("temperature", ""), ("stop", "")):
        message = f"Unsupported parameter: '{name}' is not supported with this model. {hint}"
        error = {"message": message, "param": name, "code": "unsupported_parameter"}
        endpoint.script.append(ScriptedResponse(status=400, body={"error": error}))
    endpoint.script.append(says("one. two"))
    engine = make()
    assert answer(engine, ask(stop=(".",), temperature=0.5, max_tokens=7)).text == "one."
    assert answer(engine).finish == "stop"
    _, _, body = endpoint.requests[3]
    assert body["max_completion_tokens"] == 7
    assert not {"max_tokens", "temperature", "stop"} & set(body)
    assert len(endpoint.requests) == 5  # the second request omits them from the start


# ---------------------------------------------------------------------- permanent failures


@pytest.mark.parametrize(
    ("response", "hint"),
    [
        (
            ScriptedResponse(status=401, body={"error": {"message": "Incorrect API key provided: sec*et."}}),
            "Incorrect API key",
        ),
        (ScriptedResponse(status=402, body={"error": {"message": "no credit"}}), "no credit"),
        (ScriptedResponse(status=403, body={"error": {"message": "not in your country"}}), "not in your country"),
        (
            ScriptedResponse(status=404, body={"error": {"message": "The model `m` does not exist"}}),
            "check the model's name",
        ),
        (
            ScriptedResponse(status=429, body={"error": {"message": "pay", "code": "insufficient_quota"}}),
            "account",
        ),
        (ScriptedResponse(status=307, headers=(("location", "https://b.example/v1"),)), "https://b.example/v1"),
    ],
)
def test_error_that_affects_all_requests_stops_at_once(
    endpoint: Endpoint, make: Make, response: ScriptedResponse, hint: str
) -> None:
    endpoint.script.extend([response, *[ScriptedResponse(delay=30)] * 2])
    engine = make(concurrency=3)
    start = time.perf_counter()
    for name in "abc":
        engine.submit(ask(name))
        time.sleep(0.05)
    with pytest.raises(Stop, match=r"rejects|moved") as caught:
        engine.collect()
    assert hint in str(caught.value) and "\n" not in str(caught.value) and endpoint.url in str(caught.value)
    with pytest.raises(Stop):
        engine.collect()
    engine.close()
    assert time.perf_counter() - start < 5
    assert len(endpoint.requests) == 3


def test_key_disabled_after_a_first_answer_stops(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.extend([says("x"), ScriptedResponse(status=403, body={"error": {"message": "key disabled"}})])
    engine = make()
    assert answer(engine).text == "x"
    with pytest.raises(Stop, match="key disabled"):
        answer(engine)


@pytest.mark.parametrize(
    ("status", "finish"), [(405, "error"), (410, "error"), (451, "rejected"), (422, "rejected")]
)
def test_only_a_status_about_the_conversation_rejects_it(
    endpoint: Endpoint, make: Make, status: int, finish: str
) -> None:
    endpoint.script.extend([says("x"), ScriptedResponse(status=status, body={"error": {"message": "no"}})])
    engine = make()
    assert answer(engine).text == "x"
    assert answer(engine).finish == finish


def test_missing_model_after_a_first_answer_is_retried(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.extend([says("x"), ScriptedResponse(status=404, body=b"loading")])
    engine = make()
    assert answer(engine).text == "x"
    assert answer(engine).finish == "stop"


def test_unreachable_server_stops(make: Make) -> None:
    engine = make(base_url="http://127.0.0.1:9/v1")
    engine.submit(ask())
    with pytest.raises(Stop, match=r"no server answers at http://127.0.0.1:9/v1 .* --base-url"):
        engine.collect()


def test_command_prints_one_sentence_about_an_unreachable_server(tmp_path: Path) -> None:
    command = [
        "eval",
        "TextBandit-v0",
        "--limit",
        "1",
        "--agent",
        "react",
        "--model",
        "openai/m",
        "--workers",
        "1",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "arboretum", *command, "--base-url", "http://127.0.0.1:9/v1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stderr == "" and "start the server, or name another with --base-url" in " ".join(
        done.stdout.split()
    )


# ---------------------------------------------------------------------- headers and error messages


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1s", 1), ("6m0s", 360), ("20ms", 0.02), ("1h2m3.5s", 3723.5), ("1d", 86400), ("2", 2), ("1m5ms", 60.005)]
    + [(bad, None) for bad in ("", "soon", "s", "-1", "nan", "inf", "1.2.3s")],
)
def test_duration_is_parsed_or_rejected(text: str, expected: float | None) -> None:
    assert parse_duration(text) == (None if expected is None else pytest.approx(expected))


def test_requested_wait_follows_the_headers() -> None:
    now = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT
    assert requested_wait({}, now) is None
    assert requested_wait({"retry-after": "7", "retry-after-ms": "1500"}, now) == 1.5
    assert requested_wait({"retry-after": "Tue, 14 Nov 2023 22:13:50 GMT"}, now) == pytest.approx(30)
    assert requested_wait({"retry-after": "Tue, 14 Nov 2023 22:13:00 GMT"}, now) == 0
    assert requested_wait({"retry-after": "whenever"}, now) is None
    resets = {"x-ratelimit-reset-requests": "3h", "x-ratelimit-reset-tokens": "5s"}
    assert requested_wait(resets, now) is None
    assert requested_wait({**resets, "x-ratelimit-remaining-tokens": "0"}, now) == 5
    assert requested_wait({**resets, "x-ratelimit-remaining-requests": "0"}, now) == 60  # not hours


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "x-ratelimit-reset-tokens"]), st.text()))
def test_malformed_headers_never_raise(headers: dict[str, str]) -> None:
    wait = requested_wait({**headers, "x-ratelimit-remaining-tokens": "0"}, 0.0)
    assert wait is None or wait >= 0


@pytest.mark.parametrize(
    ("body", "option"),
    [
        (
            {"message": "Unsupported value: 'temperature' does not support 0", "param": "temperature"},
            "temperature",
        ),
        ({"error": {"message": "Unknown parameter: 'seed'."}}, "seed"),
        ({"error": {"message": "Unrecognized request argument supplied: seed", "param": None}}, "seed"),
        ({"message": "temperature must be below 2", "param": "temperature", "code": "invalid_value"}, None),
        ({"message": "Unsupported parameter: 'top_k'"}, None),  # not in the request
        ("unexpected 'stop' in the request", "stop"),
        (None, None),
    ],
)
def test_unsupported_option_is_recognized(body: Any, option: str | None) -> None:
    assert unsupported_option(json.loads(json.dumps(body)), {"temperature": 0, "seed": 1, "stop": []}) == option
