"""The OpenAI engine against a real HTTP server of our own that misbehaves on command."""

from __future__ import annotations

import json
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("aiohttp", reason="needs the extra openai")
pytest.importorskip("stamina", reason="needs the extra openai")

from arboretum.agents.base import Stop
from arboretum.agents.engines.base import Completion, Message, Request, Sampling, Usage
from arboretum.agents.engines.cost import CostLimit, Prices
from arboretum.agents.engines.faults import asked_wait, seconds, unsupported_option
from arboretum.agents.engines.openai import OpenAIEngine, cut_at_stop, open_tag_stop
from arboretum.agents.engines.registry import make_engine
from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.eval.bench.endpoint import Endpoint, ScriptedResponse, default_completion, run_in_process

Make = Callable[..., OpenAIEngine]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint().running() as server:
        yield server


@pytest.fixture
def make(endpoint: Endpoint) -> Iterator[Make]:
    engines: list[OpenAIEngine] = []

    def build(**options: Any) -> OpenAIEngine:
        engines.append(OpenAIEngine("m", **{"base_url": endpoint.url, "api_key": "secret", **options}))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("engine ")]


def ask(name: str = "a", text: str = "hello", seed: int = 0, **sampling: Any) -> Request:
    return Request(name, (Message("user", text),), None, Sampling(**sampling), seed)


def answer(engine: OpenAIEngine, request: Request | None = None) -> Completion:
    engine.submit(request or ask())
    ((_, completion),) = engine.collect()
    return completion


def says(text: str, **choice: Any) -> ScriptedResponse:
    return ScriptedResponse(body=default_completion({"messages": []}, text, **choice))


# ---------------------------------------------------------------------- what is sent, what comes back


def test_a_request_says_what_was_asked_and_the_reply_what_was_said(endpoint: Endpoint, make: Make) -> None:
    engine = make(headers={"x-team": "green"}, extra={"reasoning_effort": "low"})
    said = [("system", "be brief"), ("user", "a b"), ("assistant", "c"), ("user", "d")]
    messages = tuple(Message(role, content) for role, content in said)
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=20, max_tokens=33, stop=("</answer>",))
    completion = answer(engine, Request("a", messages, None, sampling, seed=2**63 + 5))
    ((path, headers, body),) = endpoint.requests
    assert path == "/v1/chat/completions"
    assert headers["authorization"] == "Bearer secret" and headers["x-team"] == "green"
    assert body == {
        "model": "m",
        "messages": [{"role": role, "content": content} for role, content in messages],
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "max_tokens": 33,
        "seed": 5,
        "stop": ["</answer>"],
        "reasoning_effort": "low",
    }
    assert completion == Completion("I read 4 messages.", "stop", usage=Usage(6, 0, 4))
    assert engine.usage == Usage(6, 0, 4)
    assert engine.name == "openai:m" and engine.tokenizer is None and engine.context is None


@pytest.mark.parametrize(
    ("response", "stop", "text", "finish"),
    [
        (says("x", stop_reason="</a>"), ("</a>",), "x</a>", "stop"),  # vLLM tells
        (says("x", matched_stop="\nObs"), ("\nObs", "!"), "x\nObs", "stop"),  # SGLang tells
        (says("<a>x", stop_reason=None), ("</a>",), "<a>x", "stop"),  # vLLM tells that it was the end of turn
        (says("<b>y <a>x"), ("</a>", "</b>"), "<b>y <a>x</a>", "stop"),  # the innermost open element
        (says("x <a>y</a>"), ("</a>",), "x <a>y</a>", "stop"),  # a server that includes it
        (says("x"), ("\nObs",), "x", "stop"),  # cannot be known
        (says("a STOP b STOP"), ("STOP",), "a STOP", "stop"),  # a server that ignores stop texts
        (says("<a>x", finish_reason="length"), ("</a>",), "<a>x", "length"),
        (says("x", finish_reason="content_filter"), (), "x", "stop"),
        (says("", message={"role": "assistant", "content": None}), (), "", "stop"),
        (says("", message={"role": "assistant", "content": None, "refusal": "no"}), (), "no", "stop"),
    ],
)
def test_replies_end_as_the_contract_wants(
    endpoint: Endpoint, make: Make, response: ScriptedResponse, stop: tuple[str, ...], text: str, finish: str
) -> None:
    endpoint.script.append(response)
    completion = answer(make(), ask(stop=stop))
    assert (completion.text, completion.finish) == (text, finish)


def test_a_prefill_is_taken_off_or_continued(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.extend([says("<think>hm"), says("hm")])
    request = replace(ask(), prefill="<think>")
    assert answer(make(), request).text == "hm"
    assert answer(make(continue_prefill=True), request).text == "hm"
    plain, continued = (body for _, _, body in endpoint.requests)
    assert len(plain["messages"]) == 1
    assert continued["messages"][-1] == {"role": "assistant", "content": "<think>"}
    assert continued["continue_final_message"] is True and continued["add_generation_prompt"] is False


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=3), max_size=3))
def test_cutting_keeps_a_beginning_with_at_most_one_stop_text_at_its_end(text: str, stop: list[str]) -> None:
    kept, cut = cut_at_stop(text, stop)
    assert text.startswith(kept)
    assert cut == any(s in text for s in stop)
    if cut:
        assert any(kept.endswith(s) for s in stop)
        assert not any(s in kept[:-1] for s in stop)


@given(st.text(alphabet="<>/ab x", max_size=40))
def test_only_an_open_element_is_closed(text: str) -> None:
    added = open_tag_stop(text, ("</a>", "</b>", "\nx"))
    assert added in ("", "</a>", "</b>")
    if added:
        name = added[2]
        assert text.count(f"<{name}>") >= 1 and not text.rpartition(f"<{name}>")[2].count(added)


# ---------------------------------------------------------------------- faults that pass


FAULTS = {
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


@pytest.mark.parametrize("fault", FAULTS)
def test_a_passing_fault_is_tried_again(endpoint: Endpoint, make: Make, fault: str) -> None:
    endpoint.script.append(FAULTS[fault])
    engine = make()
    assert answer(engine).text == "I read 1 messages."
    assert len(endpoint.requests) == 2 and engine.retries == 1


def test_hanging_and_dripping_servers_are_given_up_on(endpoint: Endpoint, make: Make) -> None:
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
def test_a_rate_limit_is_waited_out_by_all_requests(
    endpoint: Endpoint, make: Make, headers: list[tuple[str, str]]
) -> None:
    endpoint.script.append(
        ScriptedResponse(status=429, headers=tuple(headers), body={"error": {"message": "slow down"}})
    )
    engine = make()
    start = time.perf_counter()
    engine.submit(ask("a"))
    while engine.retries == 0 and len(endpoint.requests) == 0:
        time.sleep(0.01)
    time.sleep(0.1)  # the refusal is read by now
    engine.submit(ask("b"))
    got: dict[str, Completion] = {}
    while len(got) < 2:
        got |= dict(engine.collect())
        assert time.perf_counter() - start >= 1.0  # b, though never refused itself, held back too
    assert {completion.finish for completion in got.values()} == {"stop"}
    assert len(endpoint.requests) == 3


def test_what_stays_unanswered_is_an_error_in_one_sentence(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.extend([ScriptedResponse(status=500, body={"error": {"message": "the disk is full"}})] * 2)
    completion = answer(make(attempts=2))
    assert (completion.text, completion.finish) == ("", "error")
    assert completion.error == f"{endpoint.url} failed 2 times in a row, at last: status 500: the disk is full."


def test_the_deadline_bounds_all_tries_together(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.extend([ScriptedResponse(delay=30)] * 9)
    start = time.perf_counter()
    completion = answer(make(timeout=0.4, deadline=1.5))
    assert completion.finish == "error" and completion.error is not None
    assert "no whole reply within 0.4 s" in completion.error
    assert time.perf_counter() - start < 3
    only = answer(make(deadline=0.3))
    assert only.error == f"{endpoint.url} gave no reply within 0.3 s."


def test_a_wait_beyond_the_deadline_is_not_begun(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.append(ScriptedResponse(status=429, headers=(("retry-after", "3600"),), body=b""))
    start = time.perf_counter()
    completion = answer(make(deadline=30))
    assert completion.error is not None and completion.error.endswith("and asks to wait 3600 s.")
    assert time.perf_counter() - start < 5


def test_a_request_that_is_wrong_in_itself_is_not_repeated(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.append(ScriptedResponse(status=400, body={"error": {"message": "messages: too many images"}}))
    engine = make()
    completion = answer(engine)
    assert completion.error is not None and "too many images" in completion.error
    assert answer(engine).finish == "stop"
    assert len(endpoint.requests) == 2


def test_a_full_context_is_a_reply_cut_to_nothing(endpoint: Endpoint, make: Make) -> None:
    message = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."
    endpoint.script.append(ScriptedResponse(status=400, body={"error": {"message": message, "code": 400}}))
    assert answer(make()) == Completion("", "length")


def test_options_that_a_model_does_not_take_are_left_out(endpoint: Endpoint, make: Make) -> None:
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
    assert len(endpoint.requests) == 5  # remembered


# ---------------------------------------------------------------------- faults that stay


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
            "is the model's name right?",
        ),
        (
            ScriptedResponse(status=429, body={"error": {"message": "pay", "code": "insufficient_quota"}}),
            "account",
        ),
        (ScriptedResponse(status=307, headers=(("location", "https://b.example/v1"),)), "https://b.example/v1"),
    ],
)
def test_what_no_request_can_escape_stops_at_once(
    endpoint: Endpoint, make: Make, response: ScriptedResponse, hint: str
) -> None:
    endpoint.script.extend([response, *[ScriptedResponse(delay=30)] * 2])
    engine = make(concurrency=3)
    start = time.perf_counter()
    for name in "abc":
        engine.submit(ask(name))
        time.sleep(0.05)
    with pytest.raises(Stop, match=r"refuses|moved") as caught:
        engine.collect()
    assert hint in str(caught.value) and "\n" not in str(caught.value) and endpoint.url in str(caught.value)
    with pytest.raises(Stop):
        engine.collect()
    engine.close()
    assert time.perf_counter() - start < 5
    assert len(endpoint.requests) == 3


def test_after_a_first_answer_a_missing_model_is_a_passing_fault(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.extend([says("x"), ScriptedResponse(status=404, body=b"loading")])
    engine = make()
    assert answer(engine).text == "x"
    assert answer(engine).finish == "stop"


def test_no_server_at_all_stops(make: Make) -> None:
    engine = make(base_url="http://127.0.0.1:9/v1")
    engine.submit(ask())
    with pytest.raises(Stop, match=r"no server answers at http://127.0.0.1:9/v1 .*is it running"):
        engine.collect()


def test_wrong_options_are_told_at_once(monkeypatch: pytest.MonkeyPatch, make: Make, tmp_path: Path) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        OpenAIEngine("gpt-4.1-mini")
    for options, message in (
        ({"concurrency": 0}, "concurrency must be a positive integer"),
        ({"deadline": -1}, "deadline must be a positive number"),
        ({"base_url": "localhost:8000"}, "base_url must look like"),
        ({"cost_limit": 1.0}, "needs prices"),
        ({"cost_limit": 0.0, "prices": {"input": 1, "output": 1}}, "positive number of US dollars"),
        ({"prices": {"input": 1, "ouput": 1}}, "unknown price 'ouput'; did you mean .*output"),
        ({"prices": {"input": 1}}, 'need "input" and "output"'),
        ({"prices": {"input": "1", "output": 1}}, "must be a number"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            make(**options)
    (tmp_path / "text").write_text("no database at all, but long enough to be looked at\n" * 50)
    with pytest.raises(DataError, match="no readable reply cache"):
        make(cache=tmp_path / "text")


def test_the_table_knows_all_options_of_an_engine(endpoint: Endpoint) -> None:
    options = {"base_url": endpoint.url, "concurrency": 2, "extra": {"x": 1}, "continue_prefill": True}
    with closing(make_engine("openai", "m", **options)) as engine:
        assert isinstance(engine, OpenAIEngine) and answer(engine).finish == "stop"
    with pytest.raises(ConfigurationError, match=r"unknown option of engine openai 'concurency'.*concurrency"):
        make_engine("openai", "m", concurency=2)


# ---------------------------------------------------------------------- many at once


def test_requests_under_way_are_bounded_and_all_are_answered(endpoint: Endpoint, make: Make) -> None:
    endpoint.delay = 0.02
    engine = make(concurrency=4)
    for n in range(40):
        engine.submit(ask(str(n)))
    got: dict[str, Completion] = {}
    while len(got) < 40:
        got |= dict(engine.collect())
    assert set(got) == {str(n) for n in range(40)}
    assert endpoint.peak_active == 4


def test_a_slow_reply_does_not_hold_up_the_others(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.append(ScriptedResponse(delay=1.0))
    engine = make()
    engine.submit(ask("slow"))
    while not endpoint.requests:
        time.sleep(0.01)
    for turn in range(3):
        engine.submit(ask("quick", str(turn)))
        assert [name for name, _ in engine.collect()] == ["quick"]
    assert [name for name, _ in engine.collect()] == ["slow"]


def test_a_conversation_has_one_request_and_collecting_nothing_is_an_error(endpoint: Endpoint, make: Make) -> None:
    engine = make()
    with pytest.raises(RuntimeError, match="nothing was submitted"):
        engine.collect()
    endpoint.delay = 0.2
    engine.submit(ask())
    with pytest.raises(RuntimeError, match="under way already"):
        engine.submit(ask())


def test_a_released_conversation_is_dropped(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.append(ScriptedResponse(delay=30))
    engine = make(concurrency=1)
    engine.submit(ask("a"))
    engine.submit(ask("b"))
    while not endpoint.requests:
        time.sleep(0.01)
    engine.release("a")
    engine.release("never seen")
    assert [name for name, _ in engine.collect()] == ["b"]  # which waited for the place of a
    engine.submit(ask("c"))
    while len(endpoint.requests) < 3:
        time.sleep(0.01)
    time.sleep(0.1)
    engine.release("c")  # its reply is in, but not collected
    with pytest.raises(RuntimeError, match="nothing was submitted"):
        engine.collect()


def test_closing_breaks_off_what_is_under_way(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.extend([ScriptedResponse(delay=30)] * 3)
    engine = make()
    for name in "abc":
        engine.submit(ask(name))
    while len(endpoint.requests) < 3:
        time.sleep(0.01)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            engine.collect()
        except RuntimeError as error:
            caught.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    start = time.perf_counter()
    engine.close()
    engine.close()
    waiter.join(timeout=5)
    assert not waiter.is_alive() and "closed" in str(caught[0])
    assert time.perf_counter() - start < 5
    with pytest.raises(RuntimeError, match="closed"):
        engine.submit(ask())


def test_a_server_killed_in_the_middle_and_started_again(make: Make) -> None:
    with run_in_process(delay=0.05) as (url, process):
        engine = make(base_url=url, attempts=4)
        assert answer(engine).finish == "stop"
        process.send_signal(signal.SIGSTOP)  # so that requests are surely under way
        for n in range(5):
            engine.submit(ask(str(n)))
        time.sleep(0.3)
        process.kill()
    port = int(url.rsplit(":", 1)[1].removesuffix("/v1"))
    with run_in_process(port=port):
        got: dict[str, Completion] = {}
        while len(got) < 5:
            got |= dict(engine.collect())
        assert {completion.finish for completion in got.values()} == {"stop"}
        assert engine.retries >= 5
    completion = answer(engine)  # dead for good: an error, not an exception, as it did answer once
    assert (
        completion.finish == "error" and completion.error is not None and "connection failed" in completion.error
    )


# ---------------------------------------------------------------------- cache


def test_a_second_run_asks_nothing_and_costs_nothing(endpoint: Endpoint, make: Make, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "cache": tmp_path / "deep" / "replies.sqlite",
        "prices": {"input": 10, "output": 20},
    }
    requests = [ask(str(n), f"question {n % 2}", seed=n // 2) for n in range(6)]
    first = make(**options)
    before = [answer(first, request) for request in requests]
    assert len(endpoint.requests) == 6 and first.usage.cost > 0
    first.close()
    second = make(**options)
    after = [answer(second, replace(request, conversation="new" + request.conversation)) for request in requests]
    assert len(endpoint.requests) == 6 and second.cache_hits == 6
    assert [c.text for c in after] == [c.text for c in before]
    assert second.usage.cost == 0 and second.usage.cached_tokens == second.usage.prompt_tokens == 12


@pytest.mark.parametrize(
    "other",
    [
        ask(text="bye"),
        ask(seed=1),
        ask(temperature=0.5),
        ask(max_tokens=1),
        ask(stop=("x",)),
        replace(ask(), messages=(Message("system", "hello"),)),
    ],
)
def test_another_request_is_not_found_in_the_cache(
    endpoint: Endpoint, make: Make, tmp_path: Path, other: Request
) -> None:
    engine = make(cache=tmp_path / "c.sqlite")
    answer(engine)
    answer(engine, replace(other, conversation="b"))
    assert len(endpoint.requests) == 2 and engine.cache_hits == 0


def test_asking_the_same_again_in_a_conversation_draws_again(
    endpoint: Endpoint, make: Make, tmp_path: Path
) -> None:
    endpoint.script.extend([says("first"), says("second")])
    for name in ("a", "b"):
        engine = make(cache=tmp_path / "c.sqlite")
        assert [answer(engine, ask(name)).text for _ in range(2)] == ["first", "second"]
    engine.release("b")
    assert answer(engine, ask("b")).text == "first"
    assert len(endpoint.requests) == 2


def test_errors_are_not_cached_and_processes_share_the_file(
    endpoint: Endpoint, make: Make, tmp_path: Path
) -> None:
    endpoint.script.append(ScriptedResponse(status=400, body=b"bad"))
    one, two = make(cache=tmp_path / "c.sqlite"), make(cache=tmp_path / "c.sqlite")
    assert answer(one).finish == "error"
    assert answer(two).finish == "stop"
    assert answer(one, ask("fresh")).finish == "stop"
    assert len(endpoint.requests) == 2


def test_a_cache_that_breaks_later_costs_no_reply(endpoint: Endpoint, make: Make, tmp_path: Path) -> None:
    engine = make(cache=tmp_path / "c.sqlite")
    assert answer(engine).finish == "stop"
    other = sqlite3.connect(tmp_path / "c.sqlite")
    other.execute("DROP TABLE replies")
    other.commit()
    other.close()
    assert answer(engine, ask("b")).finish == "stop"


# ---------------------------------------------------------------------- money


def test_the_price_of_a_reply_by_hand() -> None:
    prices = Prices(input=2.0, output=8.0, cached=0.5)
    usage = Usage(prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=250_000)
    assert prices.of_usage(usage) == pytest.approx(0.6 * 2.0 + 0.4 * 0.5 + 0.25 * 8.0)
    assert Prices(2.0, 8.0).of_usage(usage) == pytest.approx(2.0 + 2.0)


def test_costs_are_counted(endpoint: Endpoint, make: Make) -> None:
    body = default_completion({"messages": []}, "a b c")
    body["usage"] = {
        "prompt_tokens": 1000,
        "completion_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 600},
    }
    endpoint.script.append(ScriptedResponse(body=body))
    engine = make(prices={"input": 2, "cached": 1, "output": 10})
    completion = answer(engine)
    assert completion.usage == Usage(1000, 600, 10, pytest.approx((400 * 2 + 600 * 1 + 10 * 10) / 1e6))
    assert engine.usage == completion.usage


def test_the_cost_limit_is_never_passed_and_what_is_under_way_still_arrives(
    endpoint: Endpoint, make: Make
) -> None:
    endpoint.delay = 0.01
    body = default_completion({"messages": []}, "x")
    body["usage"] = {"prompt_tokens": 10, "completion_tokens": 100}
    endpoint.script.extend([ScriptedResponse(body=body)] * 500)
    engine = make(prices={"input": 0, "output": 1e4}, cost_limit=50.5, concurrency=8)  # a reply costs 1, at most 4
    for n in range(100):
        engine.submit(ask(str(n)))
    got: dict[str, Completion] = {}
    with pytest.raises(CostLimit, match=r"the cost limit of \$50\.5 is reached: .*raise cost_limit") as caught:
        while True:
            got |= dict(engine.collect())
    assert {completion.finish for completion in got.values()} == {"stop"}
    assert len(got) == len(endpoint.requests) == 47  # a 48th could have brought 51
    assert engine.usage.cost == pytest.approx(47.0)
    assert isinstance(caught.value, Stop)
    engine.submit(ask("late"))
    with pytest.raises(CostLimit):
        engine.collect()
    assert len(endpoint.requests) == 47


def test_a_reply_that_hides_its_usage_is_booked_at_its_worst(endpoint: Endpoint, make: Make) -> None:
    body = default_completion({"messages": []}, "x")
    del body["usage"]
    endpoint.script.append(ScriptedResponse(body=body))
    engine = make(prices={"input": 0, "output": 1e6}, cost_limit=1000)
    assert answer(engine, ask(max_tokens=7)).usage.cost == 7


# ---------------------------------------------------------------------- reading what servers say


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1s", 1), ("6m0s", 360), ("20ms", 0.02), ("1h2m3.5s", 3723.5), ("1d", 86400), ("2", 2), ("1m5ms", 60.005)]
    + [(bad, None) for bad in ("", "soon", "s", "-1", "nan", "inf", "1.2.3s")],
)
def test_durations(text: str, expected: float | None) -> None:
    assert seconds(text) == (None if expected is None else pytest.approx(expected))


def test_what_headers_ask_for() -> None:
    now = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT
    assert asked_wait({}, now) is None
    assert asked_wait({"retry-after": "7", "retry-after-ms": "1500"}, now) == 1.5
    assert asked_wait({"retry-after": "Tue, 14 Nov 2023 22:13:50 GMT"}, now) == pytest.approx(30)
    assert asked_wait({"retry-after": "Tue, 14 Nov 2023 22:13:00 GMT"}, now) == 0
    assert asked_wait({"retry-after": "whenever"}, now) is None
    resets = {"x-ratelimit-reset-requests": "3h", "x-ratelimit-reset-tokens": "5s"}
    assert asked_wait(resets, now) is None
    assert asked_wait({**resets, "x-ratelimit-remaining-tokens": "0"}, now) == 5
    assert asked_wait({**resets, "x-ratelimit-remaining-requests": "0"}, now) == 60  # not hours


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "x-ratelimit-reset-tokens"]), st.text()))
def test_no_header_can_hurt(headers: dict[str, str]) -> None:
    wait = asked_wait({**headers, "x-ratelimit-remaining-tokens": "0"}, 0.0)
    assert wait is None or wait >= 0


@pytest.mark.parametrize(
    ("body", "option"),
    [
        (
            {"message": "Unsupported value: 'temperature' does not support 0", "param": "temperature"},
            "temperature",
        ),
        ({"error": {"message": "Unknown parameter: 'seed'."}}, "seed"),
        ({"message": "temperature must be below 2", "param": "temperature", "code": "invalid_value"}, None),
        ({"message": "Unsupported parameter: 'top_k'"}, None),  # was not sent
        ("unexpected 'stop' in the request", "stop"),
        (None, None),
    ],
)
def test_which_option_a_server_objects_to(body: Any, option: str | None) -> None:
    assert unsupported_option(json.loads(json.dumps(body)), {"temperature": 0, "seed": 1, "stop": []}) == option
