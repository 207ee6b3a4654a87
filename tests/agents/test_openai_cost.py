"""The reply cache and the cost limit of the OpenAI engine, against a local HTTP server."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="needs the extra openai")
pytest.importorskip("stamina", reason="needs the extra openai")

from arboretum.agents.base import Stop
from arboretum.agents.engines.base import Completion, Message, Request, Usage
from arboretum.agents.engines.cost import CostLimit, Prices
from arboretum.eval.bench.endpoint import Endpoint, ScriptedResponse, default_completion
from support.openai import Make, answer, ask, says

# ---------------------------------------------------------------------- cache


def test_cached_run_sends_no_requests_and_costs_nothing(endpoint: Endpoint, make: Make, tmp_path: Path) -> None:
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
def test_different_request_misses_the_cache(
    endpoint: Endpoint, make: Make, tmp_path: Path, other: Request
) -> None:
    engine = make(cache=tmp_path / "c.sqlite")
    answer(engine)
    answer(engine, replace(other, conversation="b"))
    assert len(endpoint.requests) == 2 and engine.cache_hits == 0


def test_identical_request_in_a_conversation_is_another_sample(
    endpoint: Endpoint, make: Make, tmp_path: Path
) -> None:
    endpoint.script.extend([says("first"), says("second")])
    for name in ("a", "b"):
        engine = make(cache=tmp_path / "c.sqlite")
        assert [answer(engine, ask(name)).text for _ in range(2)] == ["first", "second"]
    engine.release("b")
    assert answer(engine, ask("b")).text == "first"
    assert len(endpoint.requests) == 2


def test_errors_are_not_cached_and_engines_share_the_file(endpoint: Endpoint, make: Make, tmp_path: Path) -> None:
    endpoint.script.append(ScriptedResponse(status=400, body=b"bad"))
    one, two = make(cache=tmp_path / "c.sqlite"), make(cache=tmp_path / "c.sqlite")
    assert answer(one).finish == "error"
    assert answer(two).finish == "stop"
    assert answer(one, ask("fresh")).finish == "stop"
    assert len(endpoint.requests) == 2


def test_cache_failure_loses_no_reply(endpoint: Endpoint, make: Make, tmp_path: Path) -> None:
    engine = make(cache=tmp_path / "c.sqlite")
    assert answer(engine).finish == "stop"
    other = sqlite3.connect(tmp_path / "c.sqlite")
    other.execute("DROP TABLE replies")
    other.commit()
    other.close()
    assert answer(engine, ask("b")).finish == "stop"


# ---------------------------------------------------------------------- cost


def test_cost_of_a_reply_matches_manual_calculation() -> None:
    prices = Prices(input=2.0, output=8.0, cached=0.5)
    usage = Usage(prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=250_000)
    assert prices.cost_of(usage) == pytest.approx(0.6 * 2.0 + 0.4 * 0.5 + 0.25 * 8.0)
    assert Prices(2.0, 8.0).cost_of(usage) == pytest.approx(2.0 + 2.0)


def test_cost_is_reported_in_usage(endpoint: Endpoint, make: Make) -> None:
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


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -5, "completion_tokens": -7},
        {"prompt_tokens": 1e30, "completion_tokens": 10**30},
        {"prompt_tokens": "12", "completion_tokens": [1], "prompt_tokens_details": 3},
        {"prompt_tokens": True, "completion_tokens": None, "prompt_tokens_details": {"cached_tokens": -1}},
        [1, 2],
    ],
)
def test_impossible_token_counts_are_taken_as_not_reported(endpoint: Endpoint, make: Make, usage: Any) -> None:
    body = default_completion({"messages": []}, "x")
    body["usage"] = usage
    endpoint.script.append(ScriptedResponse(body=body))
    engine = make(prices={"input": 0, "output": 1e6}, cost_limit=1000)
    assert answer(engine, ask(max_tokens=7)).usage == Usage(0, 0, 0, 7.0)  # charged its maximum cost


def test_more_cached_tokens_than_prompt_tokens_never_make_the_cost_negative(
    endpoint: Endpoint, make: Make
) -> None:
    body = default_completion({"messages": []}, "x")
    body["usage"] = {"prompt_tokens": 5, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 10**6}}
    endpoint.script.append(ScriptedResponse(body=body))
    engine = make(prices={"input": 10, "cached": 0, "output": 1})
    assert answer(engine).usage == Usage(5, 5, 0, 0.0)


def test_hidden_reasoning_that_only_the_total_counts_is_paid(endpoint: Endpoint, make: Make) -> None:
    """The counts of a reply of grok-4-fast-reasoning: 279 prompt, 6 visible and 89 hidden tokens."""
    body = default_completion({"messages": []}, "x")
    body["usage"] = {"prompt_tokens": 279, "completion_tokens": 6, "total_tokens": 374}
    endpoint.script.append(ScriptedResponse(body=body))
    usage = answer(make(prices={"input": 0, "output": 1e6})).usage
    assert (usage.completion_tokens, usage.cost) == (95, 95.0)


def test_cost_limit_holds_and_requests_in_progress_are_returned(endpoint: Endpoint, make: Make) -> None:
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
    assert len(got) == len(endpoint.requests) == 47  # the 48th could have cost 51 in total
    assert engine.usage.cost == pytest.approx(47.0)
    assert isinstance(caught.value, Stop)
    engine.submit(ask("late"))
    with pytest.raises(CostLimit):
        engine.collect()
    assert len(endpoint.requests) == 47


def test_reply_without_usage_is_charged_its_maximum_cost(endpoint: Endpoint, make: Make) -> None:
    body = default_completion({"messages": []}, "x")
    del body["usage"]
    endpoint.script.append(ScriptedResponse(body=body))
    engine = make(prices={"input": 0, "output": 1e6}, cost_limit=1000)
    assert answer(engine, ask(max_tokens=7)).usage.cost == 7


def test_cost_limit_holds_for_the_tokens_that_further_fields_allow(endpoint: Endpoint, make: Make) -> None:
    extra = {"max_completion_tokens": 5000}
    engine = make(prices={"input": 0, "output": 1e6}, cost_limit=1000, extra=extra)
    with pytest.raises(CostLimit, match=r"the next request may cost up to \$5000"):
        answer(engine, ask(max_tokens=7))
    assert not endpoint.requests


def test_replies_that_cannot_be_used_count_for_the_cost_limit(
    endpoint: Endpoint, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arboretum.agents.engines.retries._MIN_WAIT", 0.01)
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    broken = default_completion({"messages": []}, "x", finish_reason="error") | {"usage": usage}
    endpoint.script.extend([ScriptedResponse(body=broken)] * 20)
    engine = make(prices={"input": 0, "output": 1e6}, cost_limit=10, attempts=20)  # a reply costs 1, at most 7
    with pytest.raises(CostLimit, match=r"\$4\.0000 are spent and the next request may cost up to \$7"):
        answer(engine, ask(max_tokens=7))
    assert len(endpoint.requests) == 4 and engine.usage.cost == 4.0


def test_errors_count_what_they_report_and_replies_that_are_cut_off_their_maximum(
    endpoint: Endpoint, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arboretum.agents.engines.retries._MIN_WAIT", 0.01)
    error = {"error": {"message": "overloaded"}}
    usage = {"prompt_tokens": 1, "completion_tokens": 3}
    bodies: list[Any] = [error, error | {"usage": usage}, b'{"choices": [{"mess']
    endpoint.script.extend(ScriptedResponse(body=body) for body in bodies)
    endpoint.script.extend(ScriptedResponse(status=status, body=b"late") for status in (503, 504))
    engine = make(prices={"input": 0, "output": 1e6}, cost_limit=20)  # 0, 3, at most 7, 0, at most 7
    with pytest.raises(CostLimit, match=r"\$17\.0000 are spent"):
        answer(engine, ask(max_tokens=7))
    assert len(endpoint.requests) == 5


def test_requests_without_a_response_in_time_count_their_maximum_cost(
    endpoint: Endpoint, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arboretum.agents.engines.retries._MIN_WAIT", 0.01)
    endpoint.delay = 2.0
    engine = make(prices={"input": 0, "output": 1e6}, cost_limit=20, timeout=0.2)
    with pytest.raises(CostLimit, match=r"\$14\.0000 are spent"):
        answer(engine, ask(max_tokens=7))
    assert len(endpoint.requests) == 2


def test_responses_beyond_the_limit_of_size_count_their_maximum_cost(
    endpoint: Endpoint, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arboretum.envs.http_client.MAX_RESPONSE", 1 << 20)
    endpoint.script.extend([ScriptedResponse(body=default_completion({"messages": []}, "x" * (1 << 21)))] * 2)
    engine = make(prices={"input": 0, "output": 1e6}, cost_limit=20)
    for name in "ab":
        assert answer(engine, ask(name, max_tokens=7)).error == "the response exceeds 1 MB"
    with pytest.raises(CostLimit, match=r"\$14\.0000 are spent"):
        answer(engine, ask("c", max_tokens=7))
    assert len(endpoint.requests) == 2


def test_released_requests_count_their_maximum_cost_and_unsent_ones_nothing(
    endpoint: Endpoint, make: Make
) -> None:
    endpoint.delay = 3.0  # All are released before the first is answered, on a busy machine, too.
    engine = make(prices={"input": 0, "output": 1e6}, cost_limit=20, concurrency=1)
    for name in "abc":
        engine.submit(ask(name, max_tokens=7))
    deadline = time.monotonic() + 10
    while not endpoint.requests and time.monotonic() < deadline:
        time.sleep(0.01)
    for name in "cba":  # The others first: they must not be sent in the place of the released "a".
        engine.release(name)
    endpoint.delay = 0.0
    with pytest.raises(CostLimit, match=r"\$7\.0000 are spent"):
        answer(engine, ask("d", max_tokens=14))
    assert (
        answer(make(prices={"input": 0, "output": 1e6}, cost_limit=20), ask("e", max_tokens=14)).finish == "stop"
    )
