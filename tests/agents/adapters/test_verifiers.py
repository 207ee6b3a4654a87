"""Environments in verifiers: `vf-eval` plays the episodes of `play`, of scripted replies and of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arboretum.agents.dialogue import make_dialogue
from arboretum.envs.registry import make_env
from support.chat_server import ChatServer, model_replies
from support.evaluators import FLAKY, LAKE, outcome, scripted
from support.neighbours import Neighbour, neighbour


@pytest.fixture(scope="module")
def verifiers(tmp_path_factory: pytest.TempPathFactory) -> Neighbour:
    return neighbour("verifiers", tmp_path_factory.mktemp("verifiers"))


def evaluate(verifiers: Neighbour, folder: Path, server: ChatServer, *options: str) -> list[Any]:
    """Run `vf-eval`, and return its episodes, ordered by task."""
    client = ["--model", "m", "--client.base-url", server.url, "--client.api-key-var", "LOCAL_API_KEY"]
    stored = ["--run.name", "run", "--output-dir", "out", "--no-push", "--no-rich"]
    verifiers.run("vf-eval", "arboretum-verifiers", *options, *client, *stored, cwd=folder, LOCAL_API_KEY="none")
    lines = (folder / "out" / "run" / "traces.jsonl").read_text(encoding="utf-8").splitlines()
    return sorted(map(json.loads, lines), key=lambda episode: episode["task"]["data"]["idx"])


@pytest.mark.heavy
def test_group_plays_the_episode_of_play_and_a_failing_environment_is_not_scored(
    verifiers: Neighbour, tmp_path: Path
) -> None:
    (verifiers.site / "flaky.py").write_text(FLAKY, encoding="utf-8")
    taskset = {"env": "flaky:Flaky", "env-options": '{"split": "test"}', "dialogue-options": '{"max_turns": 3}'}
    options = [part for name, value in taskset.items() for part in (f"--env.taskset.{name}", value)]
    dialogue = make_dialogue("think", {"max_turns": 3})
    with ChatServer(scripted("TextSokoban-v0", refused=2, split="test")).running() as server:
        episodes = evaluate(verifiers, tmp_path, server, *options, "-n", "3", "-r", "2")
        asked, server.conversations[:] = list(server.conversations), []
        tasks = [(data["name"], data["seed"]) for data in (episode["task"]["data"] for episode in episodes)]
        assert [name for name, _ in tasks] == [f"test/{n}" for n in (0, 0, 1, 1, 2, 2)]
        assert tasks[::2] == tasks[1::2]
        for episode, (task, seed) in zip(episodes, tasks, strict=True):
            (trace,) = episode["traces"]
            if task == "test/0":
                expected = outcome(server, make_env("TextSokoban-v0"), dialogue, task, seed)
                score = trace["rewards"].pop("score")["score"]
                assert episode["ok"] and {"score": score, **trace["metrics"]} == expected
                assert not trace["rewards"] and expected["turns"] == 3
            else:
                error = "RuntimeError: the environment failed" if task == "test/1" else "the content filter"
                (reason, *_) = episode["errors"] or trace["errors"]
                assert error in reason["message"]
                assert not episode["ok"] and not trace["rewards"] and not trace["metrics"]
    opening = server.conversations[0][:2]
    assert sorted(one for one in asked if one[:2] == opening) == sorted(server.conversations)


@pytest.mark.heavy
def test_shipped_model_is_evaluated(verifiers: Neighbour, tmp_path: Path) -> None:
    taskset = {"env": "TextFrozenLake-v0", "dialogue": "no_think", "env-options": json.dumps(LAKE)}
    options = [part for name, value in taskset.items() for part in (f"--env.taskset.{name}", value)]
    dialogue, env = make_dialogue("no_think"), make_env("TextFrozenLake-v0", **LAKE)
    with ChatServer(model_replies("sapling", dialogue, 32)).running() as server:
        episodes = evaluate(verifiers, tmp_path, server, *options, "-n", "3", "--sampling.temperature", "0")
        assert len(episodes) == 3
        for episode in episodes:
            (trace,) = episode["traces"]
            data = episode["task"]["data"]
            expected = outcome(server, env, dialogue, data["name"], data["seed"])
            assert {"score": trace["rewards"]["score"]["score"], **trace["metrics"]} == expected
            assert expected["success"] == 1.0
