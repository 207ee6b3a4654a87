"""Language agents end to end: a tiny random model in real environments, and through the evaluation harness."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arboretum.agents.play import Job, play
from arboretum.agents.registry import LANGUAGE_AGENTS, make_agent
from arboretum.envs.registry import make_env

pytestmark = pytest.mark.heavy
torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")

ENVS = {
    "TextSokoban-v0": {"max_steps": 4},
    "TextBlocksworld-v0": {"max_steps": 4, "blocks": 3},
    "TextSearchQA-v0": {"dataset": "encyclopedia", "max_steps": 4},
    "TextALFWorld-v0": {"max_steps": 4, "split": "train"},
}
SHORT = {"max_tokens": 12, "temperature": 1.0}


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Any:
    from arboretum.agents.engines.registry import make_engine

    engine = make_engine("transformers", str(tiny_model), context=4096, max_batch=8)
    yield engine
    engine.close()


@pytest.mark.parametrize("env_id", ENVS)
@pytest.mark.parametrize("agent", LANGUAGE_AGENTS)
def test_every_language_agent_plays_every_kind_of_environment(agent: str, env_id: str, engine: Any) -> None:
    language_agent = make_agent(agent, engine=engine, sampling=SHORT, dialogue={"max_turns": 3})
    envs = [make_env(env_id, **ENVS[env_id]) for _ in range(4)]
    episodes = list(play(language_agent, envs, [Job(None, seed) for seed in range(6)]))
    assert len(episodes) == 6
    for episode in episodes:
        assert episode.error is None and (episode.terminated or episode.truncated)
        assert 1 <= len(episode.turns) <= 4
        if "fills the context" in str(episode.details.get("ended")):
            assert episode.turns.pop().token_ids is None  # no request was submitted
        assert all(turn.loss_mask is not None and sum(turn.loss_mask) > 0 for turn in episode.turns)
        assert episode.details["completion_tokens"] > 0


@pytest.mark.parametrize("history", ["full", "window", "single"])
def test_recorded_tokens_have_recorded_logprobs_in_a_plain_forward_pass(history: str, engine: Any) -> None:
    dialogue = {"history": history, "window": 2, "max_turns": 4, "max_actions": None}
    agent = make_agent("think", engine=engine, sampling=SHORT, dialogue=dialogue)
    envs = [make_env("TextSokoban-v0") for _ in range(3)]
    for episode in play(agent, envs, [Job(None, seed) for seed in range(3)]):
        sequences: list[list[Any]] = []
        for turn in episode.turns:
            if turn.restart or not sequences:
                sequences.append([])
            sequences[-1].append(turn)
        assert len(sequences) == (1 if history == "full" else len(episode.turns) - (history == "window"))
        for turns in sequences:
            ids = [token for turn in turns for token in turn.token_ids]
            mask = [m for turn in turns for m in turn.loss_mask]
            recorded = [p for turn in turns for p in turn.logprobs]
            with torch.no_grad():
                logits = engine.model(torch.tensor([ids])).logits[0].float()
            expected = torch.log_softmax(logits, -1)
            for i in [i for i, m in enumerate(mask) if m]:
                assert recorded[i] == pytest.approx(float(expected[i - 1, ids[i]]), abs=2e-4)


def test_episode_that_fills_the_context_is_truncated(tiny_model: Path) -> None:
    from arboretum.agents.engines.registry import make_engine

    engine = make_engine("transformers", str(tiny_model), context=400)
    unlimited = {"max_turns": None, "max_actions": None}
    agent = make_agent("think", engine=engine, sampling={"max_tokens": 40, "temperature": 1.0}, dialogue=unlimited)
    (episode,) = play(agent, [make_env("TextSokoban-v0", max_steps=None)], [Job(None, 0)])
    assert episode.truncated and episode.error is None
    assert "fills the context of 400" in episode.details["ended"] and episode.turns[-1].cut
    full = [turn for turn in episode.turns if sum(turn.loss_mask or ()) == 40]
    assert full and all(turn.cut for turn in full if (turn.token_ids or [0])[-1] not in engine.end_ids)
    assert sum(len(turn.token_ids or ()) for turn in episode.turns) <= 400


def test_evaluation_with_a_model_is_resumed_without_repetition(tiny_model: Path, tmp_path: Path) -> None:
    from arboretum.eval.agents import open_agents
    from arboretum.eval.evaluate import evaluate

    suite = tmp_path / "s.yaml"
    suite.write_text(
        "name: s\nsampling: {max_tokens: 8, temperature: 1.0}\ndialogue: {max_turns: 2}\nentries:\n"
        "  - {name: Sokoban, env: TextSokoban-v0, split: test, tasks: 5}\n"
        "  - {name: Bandit, env: TextBandit-v0, split: test, tasks: 4}\n"
    )
    with Path(os.devnull).open("w") as sink:
        for _ in range(2):
            with open_agents(["think", "reflexion"], engine="transformers", model=str(tiny_model)) as agents:
                status = evaluate(str(suite), agents, out=tmp_path / "r", console=Console(file=sink))
            assert status == 0
    lines = (tmp_path / "r" / "episodes.jsonl").read_text().splitlines()
    assert len(lines) == 4 * 9  # random, expert, think, reflexion
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert any("sampled tokens" in note for note in summary["notes"])
    assert any("uses the success label of each episode" in note for note in summary["notes"])


def test_evaluation_whose_server_dies_is_resumed_from_finished_episodes(tmp_path: Path) -> None:
    """The server is killed during the first run and restarted for the second."""
    import socket

    from arboretum.eval.agents import open_agents
    from arboretum.eval.bench.endpoint import run_in_process
    from arboretum.eval.evaluate import evaluate

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    suite = tmp_path / "s.yaml"
    suite.write_text(
        "name: s\ndialogue: {max_turns: 2, max_actions: null}\nentries:\n"
        "  - {name: Sokoban, env: TextSokoban-v0, split: test, tasks: 40}\n"
    )
    out = tmp_path / "r"

    def run(sink: Any, in_flight: int) -> int:
        options = {"base_url": f"http://127.0.0.1:{port}/v1", "engine_arg": ("attempts=1", "concurrency=4")}
        with open_agents(["think"], engine="openai", model="m", **options) as agents:
            console = Console(file=sink)
            return evaluate(str(suite), agents, out=out, references=False, in_flight=in_flight, console=console)

    with Path(os.devnull).open("w") as sink:
        with run_in_process(delay=0.1, port=port) as (_, process):
            killer = threading.Timer(1.2, process.kill)
            killer.start()
            assert run(sink, in_flight=4) == 1
            killer.join()
        finished = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
        complete = [record["task"] for record in finished if record["error"] is None]
        assert 0 < len(complete) < 40
        with run_in_process(delay=0.0, port=port):
            assert run(sink, in_flight=8) == 0
    records = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    assert records[: len(finished)] == finished
    resumed = [record["task"] for record in records[len(finished) :]]
    assert len(resumed) == len(set(resumed)) == 40 - len(complete) and not set(resumed) & set(complete)
    assert json.loads((out / "summary.json").read_text())["episodes"] == 40
