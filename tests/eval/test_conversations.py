"""Conversations of stored runs: equal to what the engine received and replied, for every dialogue and agent."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from arboretum.agents.dialogue.registry import DIALOGUES
from arboretum.agents.engines.base import Completion, Engine, Message, Request, Usage
from arboretum.agents.episode import Episode
from arboretum.agents.exchange import Exchange, pack_exchanges, unpack_exchanges
from arboretum.eval.agents import NamedAgent
from arboretum.eval.evaluate import evaluate
from arboretum.eval.models import GivenModel
from arboretum.eval.results import report
from arboretum.eval.store import read_episode, read_results
from arboretum.eval.texts import read_texts

SUITE = """
name: talks
entries:
  - {name: Sokoban, env: TextSokobanEasy-v0, split: test, tasks: 3, max_steps: 7}
  - {name: Questions, env: TextSearchQA-v0, kwargs: {max_steps: 5}, split: test, tasks: 3}
"""
REPLIES = (
    "<think>Hm\u2028.</think><answer>Up || Left</answer>",
    "<answer>Right</answer> and more",
    "Thought: perhaps\nAction: Down",
    "Up",
    "",
    "<think>x</think><search>river</search>",
    "I wonder. <|begin_search_query|> river <|end_search_query|>",
    "**Final Information** It flows \ud800 north. \\boxed{north}",
)


@pytest.fixture(autouse=True)
def generated_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the data that the package generates."""
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)


class Recorder(Engine):
    """Engine that replies from a fixed list and records every request with its reply.

    Args:
        rejecting: Fraction, in percent, of the requests that are rejected.
    """

    def __init__(self, rejecting: int = 0) -> None:
        self.name = self.identity = "recorder:m"
        self.usage = Usage()
        self.rejecting = rejecting
        self.log: list[tuple[Request, Completion]] = []
        self._done: list[tuple[str, Completion]] = []

    def submit(self, request: Request) -> None:
        if request.seed % 100 < self.rejecting:
            completion = Completion("", "rejected", error="too long")
        else:
            completion = Completion(
                REPLIES[request.seed % len(REPLIES)], ("stop", "length")[request.seed % 3 == 0]
            )
        self.log.append((request, completion))
        self._done.append((request.conversation, completion))

    def collect(self) -> list[tuple[str, Completion]]:
        done, self._done = self._done, []
        return done


def played(out: Path, engine: Engine, agent: str, suite: str = SUITE, **settings: Any) -> list[Episode]:
    """Play the suite, and return the stored episodes."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "suite.yaml").write_text(suite)
    dialogue, sampling = settings.pop("dialogue", {}), settings.pop("sampling", {})
    with open(os.devnull, "w") as sink:
        evaluate(
            str(out / "suite.yaml"),
            [NamedAgent(agent, GivenModel(engine), sampling, dialogue, settings)],
            out=out / "run",
            references=False,
            console=Console(file=sink),
        )
    return [read_episode(out / "run", result) for result in read_results(out / "run").latest.values()]


def conversations(log: list[tuple[Request, Completion]]) -> list[list[Any]]:
    """Return what an engine received and replied, by conversation, in a stable order."""
    found = defaultdict(list)
    for request, done in log:
        trial = request.conversation.removesuffix("-reading").removesuffix("-reflection")
        reply = None if done.finish == "rejected" else done.text
        found[trial].append((request.messages, request.prefill, reply, done.finish))
    return sorted(found.values(), key=repr)


def stored(episodes: list[Episode]) -> list[list[Any]]:
    """Return the same of stored episodes and their trials."""
    trials = [trial for episode in episodes for trial in (*episode.trials, episode)]
    found = [[(e.messages, e.prefill, e.reply, e.finish) for e in trial.exchanges] for trial in trials]
    return sorted((exchanges for exchanges in found if exchanges), key=repr)


CASES = [("direct", name) for name in DIALOGUES] + [(name, None) for name in ("think", "react", "reflexion")]
CASES_BY_HISTORY = [(*case, history) for case in CASES for history in ("full", "window", "single")]


@pytest.mark.parametrize(("agent", "dialogue", "history"), [*CASES_BY_HISTORY, ("search_o1", None, "full")])
def test_stored_messages_equal_those_the_engine_received(
    agent: str, dialogue: str | None, history: str, tmp_path: Path
) -> None:
    engine = Recorder(rejecting=3)
    settings: dict[str, Any] = {} if dialogue is None else {"dialogue_name": dialogue}
    if agent == "react":
        settings["examples"] = 2
    episodes = played(tmp_path, engine, agent, dialogue={"history": history, "window": 3}, **settings)
    assert len(episodes) == 6 and len(engine.log) > 15
    assert stored(episodes) == conversations(engine.log)


def test_stored_messages_equal_those_an_engine_with_tokenizer_received(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from arboretum.agents.engines.registry import make_engine

    log: list[tuple[Request, Completion]] = []
    engine = make_engine("transformers", "sapling")
    submit, collect = engine.submit, engine.collect
    pending: dict[str, Request] = {}

    def submitted(request: Request) -> None:
        pending[request.conversation] = request
        submit(request)

    def collected() -> list[tuple[str, Completion]]:
        done = collect()
        log.extend((pending.pop(name), completion) for name, completion in done)
        return done

    engine.submit, engine.collect = submitted, collected  # type: ignore[method-assign]
    suite = "name: short\nentries:\n  - {env: TextSokoban-v0, split: test, tasks: 4, max_steps: 6}\n"
    episodes = played(tmp_path, engine, "no_think", suite, sampling={"max_tokens": 20, "temperature": 1.0})
    engine.close()
    assert stored(episodes) == conversations(log)
    assert any(exchange.prefill == "<answer>" for episode in episodes for exchange in episode.exchanges)


def test_instructions_and_examples_are_stored_once(tmp_path: Path) -> None:
    episodes = played(tmp_path, Recorder(), "reflexion", trials=2)
    text = (tmp_path / "run" / "episodes.jsonl").read_text(encoding="utf-8", errors="replace")
    instructions = {e.exchanges[0].messages[0].content for e in episodes}
    assert instructions <= set(read_texts(tmp_path / "run").values())
    for one in instructions:
        assert json.dumps(one)[1:60] not in text
    assert sum(len(episode.trials) for episode in episodes) > 3
    notes = [e.exchanges[-1].messages[0].content for e in episodes if e.trials]
    assert notes and all("What you noted about earlier attempts" in note for note in notes)


def test_resumed_run_completes_its_texts(tmp_path: Path) -> None:
    whole = played(tmp_path / "a", Recorder(), "react")
    played(tmp_path / "b", Recorder(), "react")
    run = tmp_path / "b" / "run"
    lines = (run / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (run / "episodes.jsonl").write_bytes(b"".join(lines[:2]))
    (run / "texts.jsonl").write_bytes((run / "texts.jsonl").read_bytes()[:50])  # as a full disk leaves it
    first = next(iter(read_results(run).latest.values()))
    (problem,) = report([run]).problems
    assert "texts.jsonl: is lost or damaged; 1 of 1 system messages are missing" in problem
    assert "is missing: texts.jsonl is damaged" in read_episode(run, first).exchanges[0].messages[0].content
    assert stored(played(tmp_path / "b", Recorder(), "react")) == stored(whole)


def test_old_run_without_conversations_is_read_and_reported(tmp_path: Path) -> None:
    import zlib

    from arboretum.eval.episode_lines import _CHECKSUM

    before = played(tmp_path, Recorder(), "think")
    run = tmp_path / "run"
    (run / "texts.jsonl").unlink()
    lines = []
    for line in (run / "episodes.jsonl").read_bytes().splitlines():
        record = json.loads(line.decode("utf-8", "surrogatepass"))
        del record["exchanges"], record["crc"]
        body = json.dumps(record, separators=(",", ":")).encode()[:-1]
        lines.append(body + _CHECKSUM % zlib.crc32(body) + b"\n")
    (run / "episodes.jsonl").write_bytes(b"".join(lines))
    episodes = [read_episode(run, result) for result in read_results(run).latest.values()]
    assert [e.turns for e in episodes] == [e.turns for e in before]
    assert all(e.exchanges == [] for e in episodes)
    assert report([run]).episodes == 6 and (run / "report.html").exists()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("agent", "history"), [("reflexion", "window"), ("search_o1", "full"), ("direct", "single")]
)
def test_page_shows_the_stored_conversation(agent: str, history: str, tmp_path: Path, browser: Any) -> None:
    episodes = played(tmp_path, Recorder(), agent, dialogue={"history": history, "window": 2})
    browser.get((tmp_path / "run" / "report.html").as_uri())
    browser.set_script_timeout(60)
    read = """
      const done = arguments[0];
      (async () => {
        const chunks = [];
        for (const chunk of document.querySelectorAll("script.chunk")) chunks.push(...await unpack(chunk));
        const trials = chunks.flatMap(e => [...(e.trials || []), e]);
        done(trials.map(e => requests(e).map(r => [r.messages.map(m => [m.role, m.content]), r.answer])));
      })();
    """
    clean = lambda text: None if text is None else text.replace("\ud800", "?")  # noqa: E731
    expected = [
        [[[[m.role, clean(m.content)] for m in e.messages], clean(e.answer)] for e in trial.exchanges]
        for episode in episodes
        for trial in (*episode.trials, episode)
    ]
    assert sorted(browser.execute_async_script(read), key=repr) == sorted(expected, key=repr)

    show = """
      const done = arguments[0];
      const entry = cells[cells.length - 1].dataset.entry;
      (async () => {
        $("entry").value = entry;
        await pickEntry();
        if (!isWhole()) $("whole").click();
        for (const exact of document.querySelectorAll("#turns .exact")) exact.remove();
        for (const details of document.querySelectorAll("#turns details")) details.open = true;
        await new Promise(resolve => setTimeout(resolve, 500));  // The `toggle` events fill the details.
        for (const button of document.querySelectorAll("#turns .unfold")) button.click();
        done([open.task, $("turns").textContent]);
      })();
    """
    task, text = browser.execute_async_script(show)
    (shown,) = (episode for episode in episodes if episode.task == task)
    for exchange in shown.exchanges:
        assert clean(exchange.answer) in text
        for message in exchange.messages[-1:]:
            assert clean(message.content) in text
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


TEXTS = st.sampled_from(["a", "b", "ab", "", "a\nb", "<answer>"])
MESSAGES = st.lists(st.builds(Message, st.sampled_from(["system", "user", "assistant"]), TEXTS), max_size=6)


@given(data=st.data())
def test_any_exchanges_survive_packing(data: st.DataObject) -> None:
    observations = data.draw(st.lists(TEXTS, min_size=1, max_size=5))
    replies = data.draw(st.lists(TEXTS, min_size=len(observations) - 1, max_size=len(observations) - 1))
    exchanges = data.draw(
        st.lists(
            st.builds(
                Exchange,
                st.integers(0, len(observations) - 1),
                st.sampled_from(["turn", "reading"]),
                MESSAGES.map(tuple),
                TEXTS,
                st.none() | TEXTS,
                st.sampled_from([None, "stop", "length", "error"]),
            ),
            max_size=6,
        )
    )
    packed = json.loads(json.dumps(pack_exchanges(exchanges, observations, replies)))
    assert unpack_exchanges(packed, observations, replies) == exchanges
