"""The agent loop for verl, against a stand-in of its interface: verl itself requires an older transformers."""

from __future__ import annotations

import asyncio
import sys
import types
from types import SimpleNamespace
from typing import Any

import pytest

from arboretum.agents.dialogue import make_dialogue
from arboretum.agents.episode_chat import EpisodeChat
from arboretum.envs.bandit import Bandit
from arboretum.envs.registry import make_env

REPLIES = ["<think>a</think><answer>Up || Left</answer>", "?", "<think>b</think><answer>Down</answer>"]


class Loop:
    """`AgentLoopBase` of verl 0.9.1 with characters as tokens."""

    def __init__(self, server_manager: Any, response_length: int = 10_000) -> None:
        self.server_manager = server_manager
        self.rollout_config = SimpleNamespace(response_length=response_length)
        self.tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: "".join(map(chr, ids)))

    async def ct_build_initial_tokens(self, messages: list[dict[str, str]]) -> list[int]:
        return [ord(c) for message in messages for c in message["content"]]

    async def ct_merge_assistant_token(
        self, ids: Any, new: Any, mask: Any, logprobs: Any, assistant_logprobs: Any = None
    ) -> Any:
        return SimpleNamespace(token_ids=ids + new), mask + [1] * len(new), logprobs + assistant_logprobs

    async def ct_merge_context_msg(self, before: Any, after: Any, ids: Any, mask: Any, logprobs: Any) -> Any:
        assert after[: len(before)] == before and before[-1]["role"] == "assistant"
        new = [ord(c) for message in after[len(before) :] for c in message["content"]]
        return SimpleNamespace(token_ids=ids + new), mask + [0] * len(new), logprobs + [0.0] * len(new)


class Server:
    """Server with given replies."""

    def __init__(self, replies: list[str]) -> None:
        self.replies, self.prompts = iter(replies), []  # type: ignore[var-annotated]

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: Any) -> Any:
        self.prompts.append(prompt_ids)
        ids = [ord(c) for c in next(self.replies)]
        return SimpleNamespace(token_ids=ids, log_probs=[-1.0] * len(ids))


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Any:
    name = "verl.experimental.agent_loop.agent_loop"
    for depth in range(1, 5):
        monkeypatch.setitem(sys.modules, ".".join(name.split(".")[:depth]), types.ModuleType("verl"))
    module: Any = sys.modules[name]
    module.AgentLoopBase, module.AgentLoopMetrics, module.AgentLoopOutput = Loop, dict, SimpleNamespace
    monkeypatch.delitem(sys.modules, "arboretum.agents.adapters.verl", raising=False)
    import arboretum.agents.adapters.verl as verl

    yield verl
    del sys.modules["arboretum.agents.adapters.verl"]


def test_loop_plays_the_episode_of_the_conversation_and_masks_the_environment(adapter: Any) -> None:
    options = {"max_turns": 3}
    chat = EpisodeChat(make_env("TextSokoban-v0"), make_dialogue("think", options))
    chat.open(seed=4)
    messages = [[chat.hear(reply).messages, reply] for reply in REPLIES]
    server = Server(REPLIES)
    loop = adapter.EnvironmentLoop(server, env="TextSokoban-v0", dialogue_options=options)
    output = asyncio.run(loop.run({}, task=chat.episode.task, seed=4, raw_prompt=[]))
    assert output.reward_score == chat.score and output.num_turns == 6
    assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs)
    sampled = [i for i, own in zip(output.response_ids, output.response_mask, strict=True) if own]
    assert "".join(map(chr, sampled)) == "".join(REPLIES)
    given = [i for i, own in zip(output.response_ids, output.response_mask, strict=True) if not own]
    assert "".join(map(chr, given)) == "".join(m.content for new, _ in messages for m in new)
    assert [value for value in output.response_logprobs if value] == [-1.0] * len(sampled)
    # Every request extends the one before it, with the sampled tokens unchanged.
    assert all(b[: len(a)] == a for a, b in zip(server.prompts, server.prompts[1:], strict=False))
    assert output.prompt_ids == server.prompts[0]


def test_response_is_cut_to_the_length_of_the_run(adapter: Any) -> None:
    loop = adapter.EnvironmentLoop(Server(["?"] * 99), response_length=50, env="TextSokoban-v0")
    output = asyncio.run(loop.run({}, task="train/1", seed=4))
    assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs) == 50


def test_failing_environment_ends_the_row_with_its_reason(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise ConnectionError("gone")

    loop = adapter.EnvironmentLoop(Server(["Trader"]), env="TextBandit-v0", dialogue="plain")
    monkeypatch.setattr(Bandit, "_apply", broken)
    with pytest.raises(RuntimeError, match="the environment failed: ConnectionError: gone"):
        asyncio.run(loop.run({}, task=make_env("TextBandit-v0").tasks[0], seed=1))
