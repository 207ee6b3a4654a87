"""Environments in Inspect AI: `inspect eval` plays the episodes of `play`, of scripted replies and of a model."""

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
def inspect(tmp_path_factory: pytest.TempPathFactory) -> Neighbour:
    return neighbour("inspect", tmp_path_factory.mktemp("inspect"))


def evaluate(inspect: Neighbour, folder: Path, server: ChatServer, *options: str) -> Any:
    """Run `inspect eval`, and return its log."""
    command = ["eval", "arboretum/environment", "--model", "openai-api/local/m", *options]
    shown = ["--display", "plain", "--log-format", "json", "--log-dir", "logs"]
    inspect.run("inspect", *command, *shown, cwd=folder, LOCAL_BASE_URL=server.url, LOCAL_API_KEY="none")
    (log,) = (folder / "logs").glob("*.json")
    return json.loads(log.read_text(encoding="utf-8"))


@pytest.mark.heavy
def test_epochs_play_the_episode_of_play_and_a_failing_environment_is_not_scored(
    inspect: Neighbour, tmp_path: Path
) -> None:
    (inspect.site / "flaky.py").write_text(FLAKY, encoding="utf-8")
    options = ["env=flaky:Flaky", "tasks=3", "env_options={split: test}", "dialogue_options={max_turns: 5}"]
    dialogue = make_dialogue("think", {"max_turns": 5})
    with ChatServer(scripted("TextSokoban-v0", refused=2, split="test")).running() as server:
        parameters = [part for option in options for part in ("-T", option)]
        log = evaluate(inspect, tmp_path, server, *parameters, "--epochs", "2", "--no-fail-on-error")
        asked, server.conversations[:] = list(server.conversations), []
        samples = {(sample["id"], sample["epoch"]): sample for sample in log["samples"]}
        assert sorted(samples) == [(f"test/{n}", epoch) for n in range(3) for epoch in (1, 2)]
        for (task, _), sample in samples.items():
            assert sample["metadata"] == {"task": task, "seed": samples[task, 1]["metadata"]["seed"]}
            if task == "test/1":
                assert "the environment failed: ConnectionError: gone" in sample["error"]["message"]
                assert not sample["scores"]
                continue
            value = sample["scores"]["episode_scorer"]["value"]
            assert value == outcome(server, make_env("TextSokoban-v0"), dialogue, **sample["metadata"])
            assert value["turns"] == (5 if task == "test/0" else 2)
    # The requests of Inspect had the messages of those of `play`, thoughts and omitted stop texts included.
    failed = samples["test/1", 1]["messages"][1]["content"]
    assert sorted(one for one in asked if one[1][1] != failed) == sorted(server.conversations)
    metrics = {score["name"]: score["metrics"] for score in log["results"]["scores"]}
    assert {name: list(values) for name, values in metrics.items()} == {
        "success": ["accuracy", "stderr"],
        "score": ["mean", "stderr"],
        "turns": ["mean"],
        "invalid_actions": ["mean"],
    }
    assert metrics["turns"]["mean"]["value"] == 3.5


@pytest.mark.heavy
def test_shipped_model_is_evaluated(inspect: Neighbour, tmp_path: Path) -> None:
    options = ["env=TextFrozenLake-v0", "dialogue=no_think", "tasks=6", f"env_options={json.dumps(LAKE)}"]
    parameters = [part for option in options for part in ("-T", option)]
    dialogue = make_dialogue("no_think")
    with ChatServer(model_replies("sapling", dialogue, 32)).running() as server:
        log = evaluate(inspect, tmp_path, server, *parameters, "--temperature", "0")
        env = make_env("TextFrozenLake-v0", **LAKE)
        expected = [outcome(server, env, dialogue, **sample["metadata"]) for sample in log["samples"]]
    assert [sample["scores"]["episode_scorer"]["value"] for sample in log["samples"]] == expected
    assert sum(value["success"] for value in expected) == len(expected) == 6
