"""The agent loop for verl, in verl itself with a model, and against a stand-in of its interface."""

from __future__ import annotations

import asyncio
import json
import sys
import types
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arboretum.agents.adapters.rows import as_dicts, open_episodes
from arboretum.agents.dialogue import make_dialogue
from arboretum.agents.engines.shipped_models import model_source
from arboretum.agents.episode_chat import EpisodeChat
from arboretum.envs.bandit import Bandit
from arboretum.envs.registry import make_env
from support.neighbours import ROOT, neighbour

REPLIES = ["<think>a</think><answer>Up || Left</answer>", "?", "<think>b</think><answer>Down</answer>"]

END = "\x03"


def decode(ids: list[int], skip_special_tokens: bool) -> str:
    text = "".join(map(chr, ids))
    return text.replace(END, "") if skip_special_tokens else text


class Loop:
    """`AgentLoopBase` of verl 0.9.1 with characters as tokens."""

    def __init__(self, server_manager: Any, response_length: int = 10_000) -> None:
        self.server_manager = server_manager
        self.rollout_config = SimpleNamespace(response_length=response_length)
        self.tokenizer = SimpleNamespace(decode=decode, eos_token_id=ord(END))

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


@pytest.mark.parametrize("end", ["", END, " and so on", f"</answer>{END}"])
def test_reply_ends_at_the_stop_text(adapter: Any, end: str) -> None:
    server = Server([REPLIES[0] + end, REPLIES[1]])
    loop = adapter.EnvironmentLoop(server, env="TextSokoban-v0", dialogue_options={"max_turns": 2})
    output = asyncio.run(loop.run({}, task="train/1", seed=4))
    values = zip(output.response_ids, output.response_mask, output.response_logprobs, strict=True)
    first = list(values)[: len(REPLIES[0]) + 1]
    # A model's own end of the turn is trained; otherwise the loop ends the turn of a reply that it cuts.
    assert first[:-1] == [(ord(character), 1, -1.0) for character in REPLIES[0]]
    expected = {END: (ord(END), 1, -1.0), "": (output.response_ids[len(REPLIES[0])], 0, 0.0)}
    assert first[-1] == expected.get(end, (ord(END), 0, 0.0))


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


LOOPS = """
- name: arboretum
  _target_: arboretum.agents.adapters.verl.EnvironmentLoop
  env: TextFrozenLake-v0
  dialogue: no_think
  dialogue_options: {max_turns: 4}
  env_options: {split: train}
"""


@pytest.mark.heavy
@pytest.mark.timeout(1000)
def test_verl_plays_groups_with_a_model_and_learns_from_them(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    verl = neighbour("verl", tmp_path)
    (tmp_path / "loops.yaml").write_text(LOOPS, encoding="utf-8")
    dialogue, model = make_dialogue("no_think", {"max_turns": 4}), model_source("sapling")
    options = {"split": "train"}
    opened = open_episodes("TextFrozenLake-v0", 4, dialogue, **options)
    rows = [
        {"raw_prompt": row.messages, "agent_name": "arboretum", "task": row.task, "seed": row.seed, "uid": str(n)}
        for n, row in enumerate(opened)
        for _ in range(4)
    ]
    program = ROOT / "tests" / "support" / "verl_step.py"
    arguments = [model, tmp_path / "loops.yaml", json.dumps(rows), tmp_path / "out.json"]
    # Ray writes to the home folder.
    variables = {"HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    verl.run("python", "-P", program, *arguments, cwd=tmp_path, timeout=900, **variables)
    result = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    episodes = zip(*(result[name] for name in ("prompts", "responses", "mask", "scores", "turns")), strict=True)
    for row, (prompt, response, mask, score, turns) in zip(rows, episodes, strict=True):
        chat = EpisodeChat(make_env("TextFrozenLake-v0", **options), dialogue)
        messages = as_dicts(chat.open(row["task"], row["seed"]))
        for sampled, part in groupby(zip(response, mask, strict=True), key=lambda token: token[1]):
            if sampled:
                reply = tokenizer.decode([token for token, _ in part])
                messages += [{"role": "assistant", "content": reply}, *as_dicts(chat.hear(reply).messages)]
        assert chat.done and score == pytest.approx(chat.score) and turns == 2 * len(chat.episode.turns)
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        assert tokenizer.decode(prompt + response) == text.removesuffix(tokenizer.eos_token)
    assert max(result["turns"]) > 2
    assert result["masked"] == sum(map(sum, result["mask"]))
    # The model assigns the log-probabilities of sampling to the tokens of the batch.
    assert result["difference"] < 1e-4
    assert any(result["advantages"]) and result["gain"] > 0
