"""One episode as a conversation: recorded as `play` records it, ended by every limit, restored by replay."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import arboretum
from arboretum.agents.base import Stop
from arboretum.agents.dialogue import Dialogue, make_dialogue
from arboretum.agents.engines.base import Completion, Engine, Request, Usage
from arboretum.agents.episode_chat import EpisodeChat
from arboretum.agents.language import LanguageAgent
from arboretum.agents.play import Job, play
from arboretum.agents.tool_calls import ToolCall, write_reply
from arboretum.envs.bandit import Bandit
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import make_env


class Script(Engine):
    """Engine with the given replies; None is a rejected prompt."""

    def __init__(self, replies: Iterator[str | None]) -> None:
        self.name, self.usage, self.replies = "script", Usage(), replies
        self.waiting: list[str] = []

    def submit(self, request: Request) -> None:
        self.waiting.append(request.conversation)

    def collect(self) -> list[tuple[str, Completion]]:
        reply = next(self.replies)
        rejected = Completion("", "rejected", error="filtered")
        return [(self.waiting.pop(), rejected if reply is None else Completion(reply, "stop"))]


def played(env_id: str, dialogue: Dialogue, replies: list[str | None], task: str | None, seed: int) -> Any:
    agent = LanguageAgent("chat", Script(iter(replies)), dialogue)
    (episode,) = play(agent, [make_env(env_id)], [Job(task, seed)])
    return episode


def comparable(value: Any) -> Any:
    """Return a record without times and without the tokens and cost that only an engine counts."""
    if isinstance(value, dict):
        left_out = {"agent_seconds", "env_seconds", "trace", *Usage.__dataclass_fields__}
        return {key: comparable(part) for key, part in value.items() if key not in left_out}
    return [comparable(part) for part in value] if isinstance(value, list) else value


REPLIES: list[str | None] = [
    "<think>a</think><answer>Up || Left</answer>",
    "no format at all",
    "<think>b</think><answer>Right || Fly || Down</answer>",
    "<think></think><answer></answer>",
    "",
    *["<think>c</think><answer>Down || Up</answer>"] * 120,
]


@pytest.mark.parametrize(
    "options",
    [
        {"max_actions_per_turn": 2, "max_turns": 6},
        {"history": "window", "window": 3, "max_turns": 9, "format_penalty": -0.5},
        {"history": "single", "window": 2, "max_actions": 5, "show_reward": True},
        {"max_actions_per_turn": 5},
    ],
)
@pytest.mark.parametrize("env_id", ["TextSokoban-v0", "TextFrozenLake-v0", "TextBlocksworld-v0"])
def test_the_same_replies_give_the_same_episode_as_play(env_id: str, options: dict[str, Any]) -> None:
    dialogue = make_dialogue("think", options)
    expected = played(env_id, dialogue, REPLIES, None, 3)
    chat = EpisodeChat(make_env(env_id), dialogue)
    prompts, heard = [chat.open(seed=3)], []
    for reply in REPLIES:
        prompts.append(chat.prompt)
        assert reply is not None
        heard.append(chat.hear(reply))
        if heard[-1].done:
            break
    assert comparable(chat.episode.to_dict()) == comparable(expected.to_dict())
    # The exchanges of a record repeat little, so the prompts are compared as the engine received them.
    assert [tuple(prompt) for prompt in prompts[1:]] == [exchange.messages for exchange in expected.exchanges]
    assert [(one.reward, one.penalty) for one in heard] == [
        (sum(move.reward for move in turn.moves), turn.penalty) for turn in expected.turns
    ]
    assert chat.score == expected.total_reward + expected.total_penalty
    assert not heard[-1].messages and all(one.messages[0].role == "user" for one in heard[:-1])


def test_refused_prompt_ends_the_episode_as_in_play() -> None:
    dialogue = make_dialogue("think")
    expected = played("TextSokoban-v0", dialogue, [REPLIES[0], None], None, 1)
    chat = EpisodeChat(make_env("TextSokoban-v0"), dialogue)
    chat.open(seed=1)
    assert not chat.hear(str(REPLIES[0])).done
    heard = chat.refuse("filtered")
    assert heard.done and heard.messages == [] and heard.penalty == 0.0
    assert chat.episode.truncated and chat.episode.details["ended"] == "filtered"
    assert comparable(chat.episode.to_dict()) == comparable(expected.to_dict())
    with pytest.raises(RuntimeError, match="the episode has ended"):
        chat.hear("<answer>Up</answer>")


def test_prompt_that_was_too_long_is_cut_and_not_recorded_as_a_request() -> None:
    chat = EpisodeChat(make_env("TextSokoban-v0"), make_dialogue("think"))
    chat.open(seed=1)
    assert chat.refuse("a prompt of 9 tokens fills the context of 8", too_long=True).done
    assert chat.episode.turns[0].cut and chat.episode.exchanges == []


def test_members_of_a_group_begin_alike_and_environments_can_be_used_again() -> None:
    chat, other = (EpisodeChat(make_env("TextSokoban-v0"), make_dialogue("think")) for _ in range(2))
    first = chat.open(seed=7)
    chat.hear("<think>x</think><answer>Up</answer>")
    assert chat.open(seed=7) == first == other.open(chat.episode.task, 7)
    assert chat.open(seed=8) != first


def test_replies_after_the_time_limit_are_dropped() -> None:
    chat = EpisodeChat(make_env("TextSokoban-v0"), make_dialogue("think"), time_limit=0.05)
    chat.open(seed=1)
    time.sleep(0.06)
    assert chat.hear("<think>x</think><answer>Up</answer>").done
    assert chat.episode.error == "the time limit of 0.05 s per episode expired" and chat.episode.turns == []


def test_environment_that_was_interrupted_is_replaced_once_and_names_its_functions() -> None:
    class Slow(Bandit):
        made = 0

        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            Slow.made += 1

        def _apply(self, action: str) -> Any:
            time.sleep(3)
            return super()._apply(action)

    chat = EpisodeChat(Slow(), make_dialogue("tools"), time_limit=0.5)
    chat.open(seed=1)
    chat.hear(write_reply(None, "", [ToolCall("act", {"action": "x"})]))
    assert str(chat.episode.error).startswith("the time limit of 0.5 s per episode expired")
    for seed in (2, 3):
        chat.open(seed=seed)
        assert chat.env.task == chat.episode.task
        assert chat.tools == [tool.schema() for tool in chat.env.tools]
    assert Slow.made == 2


def test_turn_limit_of_the_caller_ends_the_episode() -> None:
    chat = EpisodeChat(make_env("TextSokoban-v0"), make_dialogue("think"), max_turns=2)
    chat.open(seed=1)
    assert not chat.hear("?").done and chat.hear("?").done
    assert chat.episode.truncated and chat.episode.details["ended"] == "the 2 turns are spent"


def test_episode_without_limits_is_ended_by_who_passes_the_replies() -> None:
    chat = EpisodeChat(make_env("TextSokoban-v0", count_refused=False), make_dialogue("plain"))
    assert chat.open(seed=1)
    for _ in range(200):
        assert not chat.hear("?").done


@pytest.mark.parametrize(("method", "turns"), [("_open", 0), ("_apply", 1)])
def test_failing_environment_is_recorded_in_one_sentence(
    method: str, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> Any:
        raise ConnectionError("the bandit's server is gone")

    chat = EpisodeChat(make_env("TextBandit-v0"), make_dialogue("plain"))
    monkeypatch.setattr(Bandit, method, broken)
    messages = chat.open(seed=0)
    if turns:
        assert messages and chat.hear("Trader").done
    assert chat.done and len(chat.episode.turns) == turns
    assert chat.episode.error is not None
    assert (
        "failed: ConnectionError: the bandit's server is gone (test_episode_chat.py, line " in chat.episode.error
    )


def test_unknown_task_is_recorded_as_an_error() -> None:
    chat = EpisodeChat(make_env("TextBandit-v0"), make_dialogue("plain"))
    assert chat.open("no such task") == [] and chat.done
    assert chat.episode.error is not None and "no such task" in chat.episode.error


def test_examples_for_an_environment_without_an_id_are_refused_in_one_sentence() -> None:
    with pytest.raises(Stop, match=r"examples of Bandit are played in another .* make it with make_env\(\)"):
        EpisodeChat(Bandit(), make_dialogue("react"), examples=1).open(seed=1)


def test_calls_before_open_are_rejected() -> None:
    chat = EpisodeChat(make_env("TextBandit-v0"), make_dialogue("plain"))
    with pytest.raises(RuntimeError, match=r"call open\(\) first"):
        chat.hear("Trader")


@pytest.mark.parametrize("with_replies", [True, False])
@pytest.mark.parametrize("env_id", ["TextSokoban-v0", "TextFrozenLake-v0"])
def test_state_is_json_and_restores_the_episode_by_replay(env_id: str, with_replies: bool) -> None:
    dialogue = make_dialogue("think", {"max_actions_per_turn": 2})
    chat = EpisodeChat(make_env(env_id), dialogue)
    chat.open(seed=5)
    for reply in REPLIES[:2]:
        chat.hear(str(reply))
    state = json.loads(json.dumps(chat.state()))
    if not with_replies:
        del state["replies"]
    copy = EpisodeChat(make_env(env_id), dialogue)
    messages = copy.resume(state)
    assert [m.role for m in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    if with_replies:
        assert comparable(copy.episode.to_dict()) == comparable(chat.episode.to_dict())
        assert copy.prompt == chat.prompt and copy.state() == chat.state()
    for one in (chat, copy):
        one.hear("<think>b</think><answer>Right || Down</answer>")
    assert copy.episode.final_observation == chat.episode.final_observation
    assert [turn.moves for turn in copy.episode.turns] == [turn.moves for turn in chat.episode.turns]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": "1"}, "malformed: expected a whole number"),
        ({"seed": -1}, "malformed: expected a whole number >= 0"),
        ({"actions": [[1]]}, "malformed: expected text"),
        ({"pickle": "gASV"}, "malformed: it has the unknown field `pickle`"),
        ({"env": "TextBandit-v0"}, "of TextBandit-v0, not of TextSokoban-v0"),
        ({"task": "nowhere"}, "cannot be replayed: opening the task failed: ConfigurationError: unknown task"),
        ({"replies": ["one"]}, "2 turns of actions, but 1 replies"),
        ({"actions": [["Up"], ["Down"]]}, "turn 1 of the replayed episode has other actions"),
        ({"digest": "0" * 64}, "other observations"),
    ],
)
def test_hostile_state_is_rejected_in_one_sentence(change: dict[str, Any], message: str) -> None:
    dialogue = make_dialogue("think", {"max_actions_per_turn": 2})
    chat = EpisodeChat(make_env("TextSokoban-v0"), dialogue)
    chat.open(seed=5)
    for reply in REPLIES[:2]:
        chat.hear(str(reply))
    with pytest.raises(ConfigurationError, match=message) as caught:
        EpisodeChat(make_env("TextSokoban-v0"), dialogue).resume({**chat.state(), **change})
    assert "\n" not in str(caught.value)


def test_tokens_of_a_turn_are_recorded_if_given() -> None:
    chat = EpisodeChat(make_env("TextSokoban-v0"), make_dialogue("think"))
    chat.open(seed=1)
    reply = "<think>x</think><answer>Up</answer>"
    chat.hear(reply, cut=True, token_ids=[1, 2], logprobs=[0.0, -0.5], loss_mask=[0, 1])
    turn = chat.episode.turns[0]
    assert (turn.token_ids, turn.logprobs, turn.loss_mask, turn.cut) == ([1, 2], [0.0, -0.5], [0, 1], True)
    assert chat.episode.exchanges[0].finish == "length"


def test_example_of_the_docs_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(arboretum.__file__).parent / "docs" / "adapters.md").read_text(encoding="utf-8")
    exec(page.split("```python\n")[1].partition("```")[0], {})
    assert f"This prints `{capsys.readouterr().out.strip()}`." in page


def test_no_reply_is_an_empty_one() -> None:
    chats = [EpisodeChat(make_env("TextSokoban-v0"), make_dialogue("no_think")) for _ in range(2)]
    for chat, reply in zip(chats, (None, ""), strict=True):
        chat.open("test/1")
        chat.hear(reply)
    assert chats[0].episode.turns[0].reply == chats[1].episode.turns[0].reply == ""
