"""The MCP server of an environment in an evaluator: Inspect AI plays it with a model that calls its tools."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from arboretum.agents.dialogue import make_dialogue
from arboretum.agents.episode_chat import EpisodeChat
from arboretum.envs.registry import make_env
from support.chat_server import Answer, ChatServer, Messages, model_replies
from support.neighbours import ROOT, neighbour


def task_of_the_page() -> str:
    """Return the task file in docs/mcp.md."""
    page = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
    (block,) = [text for text in re.findall(r"```python\n(.*?)```", page, re.S) if "mcp_server_stdio" in text]
    return str(block)


class ToolCaller:
    """Tool calls of the shipped model, whose own format is translated as by the tool-call parser of a server.

    Attributes:
        episodes: The conversation that the model reads, by the id of the task.
        results: Results of the tools in the last request, by the id of the task.
    """

    def __init__(self) -> None:
        self.dialogue = make_dialogue("no_think")
        self.sample = model_replies("sapling", self.dialogue, 32)
        self.episodes: dict[str, EpisodeChat] = {}
        self.results: dict[str, list[dict[str, Any]]] = {}

    def __call__(self, messages: Messages) -> Answer:
        (task,) = re.findall(r"'(any/\d+)'", str(messages[0]["content"]))
        self.results[task] = [json.loads(message["content"]) for message in messages if message["role"] == "tool"]
        if task not in self.episodes:
            self.episodes[task] = EpisodeChat(make_env("TextFrozenLake-v0"), self.dialogue)
            self.episodes[task].open(task, 7)
            return Answer("", "tool_calls", ("start", {"task": task, "seed": 7}))
        chat = self.episodes[task]
        if chat.done:
            return Answer("done")
        prompt = [{"role": message.role, "content": message.content} for message in chat.prompt]
        reply = self.sample(prompt).text or ""
        action = self.dialogue.parse(reply).actions[0]
        chat.hear(f"<answer>{action}</answer>")
        return Answer("", "tool_calls", ("act", {"action": action}))


@pytest.mark.heavy
def test_model_of_inspect_plays_the_tools_of_the_server(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    inspect = neighbour("inspect", tmp_path)
    (tmp_path / "lake.py").write_text(task_of_the_page(), encoding="utf-8")
    model = ToolCaller()
    with ChatServer(model).running() as server:
        shown = ["--display", "plain", "--log-format", "json", "--log-dir", "logs"]
        variables = {"LOCAL_BASE_URL": server.url, "LOCAL_API_KEY": "none"}
        command = ["eval", "lake.py", "--model", "openai-api/local/m", *shown]
        inspect.run("inspect", *command, cwd=tmp_path, **variables)
    (log,) = (tmp_path / "logs").glob("*.json")
    samples = json.loads(log.read_text(encoding="utf-8"))["samples"]
    assert len(samples) == len(model.episodes) == 4
    for sample in samples:
        (task,) = re.findall(r"'(any/\d+)'", sample["input"])
        episode = model.episodes[task].episode
        # The results of the tools are those of the episode that `EpisodeChat` plays with the same actions.
        results = model.results[task]
        rewards = [sum(move.reward for move in turn.moves) for turn in episode.turns]
        assert [result["reward"] for result in results] == [0.0, *rewards]
        assert results[-1]["observation"] == episode.final_observation and results[-1]["done"]
        assert results[-1]["return"] == episode.total_reward
        assert sample["scores"]["success"]["value"] == results[-1]["success"] == episode.success
    assert any(chat.episode.success for chat in model.episodes.values())
