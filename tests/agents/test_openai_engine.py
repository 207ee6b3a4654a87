"""The OpenAI engine's requests, replies, options and concurrency, against a local HTTP server."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("aiohttp", reason="needs the extra openai")
pytest.importorskip("stamina", reason="needs the extra openai")

from arboretum.agents.engines.base import Completion, Message, Request, Sampling, Usage
from arboretum.agents.engines.openai import OpenAIEngine, cut_at_stop, missing_closing_tag
from arboretum.agents.engines.registry import make_engine
from arboretum.agents.play import Job, play
from arboretum.agents.registry import make_agent
from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.envs.registry import make_env
from arboretum.eval.bench.endpoint import Endpoint, ScriptedResponse, run_in_process
from support.openai import Make, answer, ask, says

# ---------------------------------------------------------------------- requests and replies


def test_request_and_reply_match_the_chat_completions_format(endpoint: Endpoint, make: Make) -> None:
    engine = make(headers={"x-team": "green"}, extra={"reasoning_effort": "low"})
    conversation = [("system", "be brief"), ("user", "a b"), ("assistant", "c"), ("user", "d")]
    messages = tuple(Message(role, content) for role, content in conversation)
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
        (says("x", stop_reason="</a>"), ("</a>",), "x</a>", "stop"),  # vLLM reports the stop text
        (says("x", matched_stop="\nObs"), ("\nObs", "!"), "x\nObs", "stop"),  # SGLang reports the stop text
        (says("<a>x", stop_reason=None), ("</a>",), "<a>x", "stop"),  # vLLM reports an end of turn
        (says("x", stop_reason="end_turn"), ("</a>",), "x", "stop"),  # a gateway passes on another API's field
        (says("<|begin_q|>x"), ("<|end_q|>",), "<|begin_q|>x<|end_q|>", "stop"),  # the delimiters of Search-o1
        (says("<b>y <a>x"), ("</a>", "</b>"), "<b>y <a>x</a>", "stop"),  # the innermost open element
        (says("x <a>y</a>"), ("</a>",), "x <a>y</a>", "stop"),  # a server that includes it
        (says("x"), ("\nObs",), "x", "stop"),  # unknown
        (says("a STOP b STOP"), ("STOP",), "a STOP", "stop"),  # a server that ignores stop texts
        (says("<a>x", finish_reason="length"), ("</a>",), "<a>x", "length"),
        (says("x", finish_reason="content_filter"), (), "x", "stop"),
        (says("", message={"role": "assistant", "content": None}), (), "", "stop"),
        (says("", message={"role": "assistant", "content": None, "refusal": "no"}), (), "no", "stop"),
    ],
)
def test_reply_ends_with_its_stop_text(
    endpoint: Endpoint, make: Make, response: ScriptedResponse, stop: tuple[str, ...], text: str, finish: str
) -> None:
    endpoint.script.append(response)
    completion = answer(make(), ask(stop=stop))
    assert (completion.text, completion.finish) == (text, finish)


def test_prefill_is_stripped_or_continued(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.extend([says("<think>hm"), says("hm")])
    request = replace(ask(), prefill="<think>")
    assert answer(make(), request).text == "hm"
    assert answer(make(continue_prefill=True), request).text == "hm"
    plain, continued = (body for _, _, body in endpoint.requests)
    assert len(plain["messages"]) == 1
    assert continued["messages"][-1] == {"role": "assistant", "content": "<think>"}
    assert continued["continue_final_message"] is True and continued["add_generation_prompt"] is False


def test_prefill_of_a_dialogue_is_continued_by_a_server_that_can(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.extend([says("I go up.</think><answer>Up")] * 2)
    for continued, well_formed in ((True, True), (False, False)):
        agent = make_agent("think", engine=make(continue_prefill=continued))
        (episode,) = play(agent, [make_env("TextSokoban-v0")], [Job(None, 1)], max_turns=1)
        assert episode.turns[0].well_formed == well_formed
        assert episode.turns[0].reply.startswith("<think>") == continued
        _, _, body = endpoint.requests[-1]
        assert (body["messages"][-1] == {"role": "assistant", "content": "<think>"}) == continued


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=3), max_size=3))
def test_cut_text_has_at_most_one_stop_text_at_its_end(text: str, stop: list[str]) -> None:
    kept, cut = cut_at_stop(text, stop)
    assert text.startswith(kept)
    assert cut == any(s in text for s in stop)
    if cut:
        assert any(kept.endswith(s) for s in stop)
        assert not any(s in kept[:-1] for s in stop)


@given(st.text(alphabet="<>/ab x", max_size=40))
def test_closing_tag_is_added_only_for_an_open_element(text: str) -> None:
    added = missing_closing_tag(text, ("</a>", "</b>", "\nx"))
    assert added in ("", "</a>", "</b>")
    if added:
        name = added[2]
        assert text.count(f"<{name}>") >= 1 and not text.rpartition(f"<{name}>")[2].count(added)


# ---------------------------------------------------------------------- options


def test_key_may_end_with_the_newline_of_its_file(endpoint: Endpoint, make: Make) -> None:
    assert answer(make(api_key="secret\n", attempts=1)).finish == "stop"
    assert endpoint.requests[0][1]["authorization"] == "Bearer secret"


def test_template_is_refused_where_the_server_has_its_own(make: Make) -> None:
    with pytest.raises(
        ConfigurationError, match=r"template 'chatml' has no effect with engine openai:.*remove it"
    ):
        make_agent("no_think", engine=make(), template="chatml")


def test_invalid_options_are_rejected_at_construction(
    monkeypatch: pytest.MonkeyPatch, make: Make, tmp_path: Path
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        OpenAIEngine("gpt-4.1-mini")
    for options, message in (
        ({"concurrency": 0}, "concurrency must be a positive integer"),
        ({"deadline": -1}, "deadline must be a positive number"),
        ({"base_url": "localhost:8000"}, "--base-url .* must look like"),
        ({"cost_limit": 1.0}, "needs prices"),
        ({"cost_limit": 0.0, "prices": {"input": 1, "output": 1}}, "positive number of US dollars"),
        ({"prices": {"input": 1, "ouput": 1}}, "unknown price 'ouput'; did you mean .*output"),
        ({"prices": {"input": 1}}, 'need "input" and "output"'),
        ({"prices": {"input": "1", "output": 1}}, "must be a number"),
        ({"prices": 5}, "prices must be a mapping of names to values, not 5"),
        ({"prices": {"input": 1, "output": 1}, "cost_limit": "5"}, "positive number of US dollars, not '5'"),
        ({"extra": "reasoning_effort=low"}, "extra must be a mapping of names to values"),
        ({"headers": {"x-team": 5}}, "the header 'x-team' must be a text, not a int"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            make(**options)
    (tmp_path / "text").write_text("not a database, but longer than the header of one\n" * 50)
    with pytest.raises(DataError, match="not a readable reply cache"):
        make(cache=tmp_path / "text")


def test_cached_replies_are_those_of_the_query_of_the_address(
    endpoint: Endpoint, make: Make, tmp_path: Path
) -> None:
    """A query may choose among the models of one server; credentials in it change nothing."""
    for query, hits in (("?profile=a&key=1", 0), ("?profile=b&key=1", 0), ("?key=2&profile=a", 1), ("", 0)):
        engine = make(base_url=endpoint.url + query, cache=tmp_path / "replies")
        assert answer(engine).finish == "stop" and engine.cache_hits == hits
        engine.close()
    assert len(endpoint.requests) == 3


def test_registry_accepts_inherited_options_and_rejects_unknown_ones(endpoint: Endpoint) -> None:
    options = {"base_url": endpoint.url, "concurrency": 2, "extra": {"x": 1}, "continue_prefill": True}
    with closing(make_engine("openai", "m", **options)) as engine:
        assert isinstance(engine, OpenAIEngine) and answer(engine).finish == "stop"
    with pytest.raises(ConfigurationError, match=r"unknown option of engine openai 'concurency'.*concurrency"):
        make_engine("openai", "m", concurency=2)
    with pytest.raises(ConfigurationError, match="unknown option of engine openai 'name'; known: base_url, "):
        make_engine("openai", "m", name=2)
    for engine in ("openai", "vllm"):  # the latter takes all options of another library
        with pytest.raises(
            ConfigurationError, match=f"the model is no option of engine {engine}; name it with --model"
        ):
            make_engine(engine, "m", model="other")


# ---------------------------------------------------------------------- concurrency


def test_concurrency_is_bounded_and_all_requests_are_answered(endpoint: Endpoint, make: Make) -> None:
    endpoint.delay = 0.02
    engine = make(concurrency=4)
    for n in range(40):
        engine.submit(ask(str(n)))
    got: dict[str, Completion] = {}
    while len(got) < 40:
        got |= dict(engine.collect())
    assert set(got) == {str(n) for n in range(40)}
    assert endpoint.peak_active == 4


def test_slow_reply_does_not_delay_the_others(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.append(ScriptedResponse(delay=1.0))
    engine = make()
    engine.submit(ask("slow"))
    while not endpoint.requests:
        time.sleep(0.01)
    for turn in range(3):
        engine.submit(ask("quick", str(turn)))
        assert [name for name, _ in engine.collect()] == ["quick"]
    assert [name for name, _ in engine.collect()] == ["slow"]


def test_second_request_of_a_conversation_and_empty_collect_are_errors(endpoint: Endpoint, make: Make) -> None:
    engine = make()
    with pytest.raises(RuntimeError, match="no request is pending"):
        engine.collect()
    endpoint.delay = 0.2
    engine.submit(ask())
    with pytest.raises(RuntimeError, match="already has a pending request"):
        engine.submit(ask())


def test_released_conversation_is_dropped(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.append(ScriptedResponse(delay=30))
    engine = make(concurrency=1)
    engine.submit(ask("a"))
    engine.submit(ask("b"))
    while not endpoint.requests:
        time.sleep(0.01)
    engine.release("a")
    engine.release("never seen")
    assert [name for name, _ in engine.collect()] == ["b"]  # which waited for a to finish
    engine.submit(ask("c"))
    while len(endpoint.requests) < 3:
        time.sleep(0.01)
    time.sleep(0.1)
    engine.release("c")  # after its reply, but before `collect`
    with pytest.raises(RuntimeError, match="no request is pending"):
        engine.collect()


def test_close_cancels_pending_requests(endpoint: Endpoint, make: Make) -> None:
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


def test_requests_survive_a_restart_of_the_server(make: Make) -> None:
    with run_in_process(delay=0.05) as (url, process):
        engine = make(base_url=url, attempts=4)
        assert answer(engine).finish == "stop"
        process.send_signal(signal.SIGSTOP)  # so that the requests are certainly in progress
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
    completion = answer(engine)  # an error, not `Stop`, because the server has answered before
    assert (
        completion.finish == "error" and completion.error is not None and "connection failed" in completion.error
    )
