"""The dialogue `tools`: calls as text, actions of calls, and the answers that a model gets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arboretum.agents.adapters.rows import append_only_chat
from arboretum.agents.dialogue import Tools, make_dialogue
from arboretum.agents.engines.base import Message
from arboretum.agents.episode_chat import EpisodeChat
from arboretum.agents.tool_calls import ToolCall, as_chat_messages, read_chat_message, read_reply, write_reply
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import ENVS, make_env

TEXT = st.text(alphabet=st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    ["</think>", "<think>", "<tool_call>", "</tool_call>", '{"name": "act"}', "\n\n", '"', "\\", "<"]
)
ARGUMENTS = st.dictionaries(TEXT, TEXT | st.integers() | st.lists(TEXT, max_size=2), max_size=3)


def call(name: str, **arguments: Any) -> str:
    return write_reply(None, "", [ToolCall(name, arguments)])


# ---------------------------------------------------------------------- calls as text


@given(thought=st.none() | TEXT, content=TEXT, made=st.lists(st.tuples(TEXT, ARGUMENTS), max_size=3))
def test_written_calls_are_read_back(
    thought: str | None, content: str, made: list[tuple[str, dict[str, Any]]]
) -> None:
    sent = [ToolCall(name, arguments, f"id{n}") for n, (name, arguments) in enumerate(made)]
    read = read_reply(write_reply(thought, content, sent))
    if sent or "<" not in content:  # text without a call is free to contain one
        assert list(read.calls) == sent
    if thought is not None and "<" not in thought:
        assert read.thought == thought.strip()


@given(text=st.lists(TEXT, max_size=8).map("".join))
def test_any_text_is_read_and_its_messages_answer_every_call(text: str) -> None:
    read = read_reply(text)
    assert 0 <= read.thought_span[0] <= read.thought_span[1] <= len(text)
    answers = [("tool", f"answer {n}") for n in range(len(read.calls))]
    assistant, *sent = as_chat_messages([("assistant", text), *answers])
    assert [one["tool_call_id"] for one in sent] == [one["id"] for one in assistant.get("tool_calls", ())]
    for one in assistant.get("tool_calls", ()):
        assert isinstance(json.loads(one["function"]["arguments"]), dict)


def test_form_of_a_call_is_that_of_qwen_and_hermes() -> None:
    text = write_reply("why", "So:", [ToolCall("act", {"action": "Up"}), ToolCall("act", {"action": "ö"})])
    assert text == (
        "<think>\nwhy\n</think>\n\nSo:\n"
        '<tool_call>\n{"name": "act", "arguments": {"action": "Up"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "act", "arguments": {"action": "ö"}}\n</tool_call>'
    )


@pytest.mark.parametrize(
    ("text", "thought", "calls"),
    [
        ("because</think><tool_call>{}</tool_call>", "because", 1),  # the prompt began the thought
        ("<think>I could <tool_call>{}</tool_call>", "I could <tool_call>{}</tool_call>", 0),  # unfinished
        ('<tool_call>{"name": "a", "arguments": "</think>"}</tool_call>', None, 1),
        ("<tool_call>{", None, 1),  # cut
    ],
)
def test_thoughts_and_unfinished_replies_are_told_apart(text: str, thought: str | None, calls: int) -> None:
    read = read_reply(text)
    assert read.thought == thought and len(read.calls) == calls


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_structured_message_becomes_text(field: str) -> None:
    function = {"name": "act", "arguments": '{"action":"Up"}'}
    message = {
        "role": "assistant",
        "content": None,
        field: "hm",
        "tool_calls": [{"id": "x", "function": function}],
    }
    read = read_reply(read_chat_message(message))
    assert read.thought == "hm" and read.calls == (ToolCall("act", {"action": "Up"}, "x"),)
    assert read_chat_message({"content": "no call"}) == "no call"


# ---------------------------------------------------------------------- actions of calls


@pytest.mark.parametrize("env_id", [spec.id for spec in ENVS])
def test_experts_plan_is_demonstrated_as_calls_and_parsed_back(env_id: str) -> None:
    env = make_env(env_id, **({"homes": "full"} if env_id == "TextALFWorld-v0" else {}))
    env.reset(seed=1)
    dialogue = Tools().bind(env)
    for action in env.expert_actions() or ():
        reply = dialogue.demonstrate("so it is", action)
        assert dialogue.parse(reply) == ((action,), "so it is", True)
        span = dialogue.thought_span(reply)
        assert span is not None and reply[slice(*span)] == "so it is"
        assert dialogue.read_action(dialogue.write_action(action)) == action


def test_several_actions_are_several_calls_within_the_budget() -> None:
    env = make_env("TextSokoban-v0")
    env.reset(seed=1)
    dialogue = Tools(max_actions_per_turn=2).bind(env)
    reply = dialogue.demonstrate("", "Up || Left")
    assert dialogue.parse(reply).actions == ("Up", "Left")
    assert dialogue.read_action(dialogue.write_action("Up || Left")) == "Up || Left"


def test_text_before_a_call_is_the_thought_where_the_model_has_no_other() -> None:
    assert Tools().parse("I go up.\n" + call("act", action="Up")) == (("Up",), "I go up.", True)


BROKEN = [
    ("I think I go up.", "Your reply called no function."),
    (
        '<tool_call>\n{"name": "act", "argu',
        "This call was not executed: it is not a JSON object with a name and ar",
    ),
    (call("walk", action="Up"), "This call was not executed: there is no function 'walk'; the functions are act."),
    (call("act"), "This call was not executed: act needs the argument 'action'."),
    (call("act", action=1), "This call was not executed: the argument 'action' of act must be a string."),
    (call("act", action="Up", speed="2"), "act has no argument 'speed'; its arguments are action."),
    (call("act", action=" "), "This call was not executed: the argument 'action' of act is empty."),
    (
        '<tool_call>\n{"name": "act", "arguments": "{\\"action\\": Up}"}\n</tool_call>',
        "This call was not executed: the arguments of act are not a JSON object.",
    ),
    (f"<tool_call>{'[' * 100_000}</tool_call>", "it is not a JSON object"),
]


@pytest.mark.parametrize(("reply", "sentence"), BROKEN)
def test_malformed_reply_is_answered_in_one_sentence_and_counted(reply: str, sentence: str) -> None:
    chat = EpisodeChat(make_env("TextSokoban-v0"), make_dialogue("tools"))
    chat.open(seed=1)
    heard = chat.hear(reply)
    (turn,) = chat.episode.turns
    assert turn.reply == reply and not turn.well_formed and heard.penalty == -0.1
    assert [move.valid for move in turn.moves] == [False]  # it counts as a step
    (message,) = heard.messages
    assert message.role == ("tool" if "<tool_call>" in reply else "user")
    assert sentence in message.content and turn.observation.splitlines()[-1] in message.content
    chat.hear(call("act", action="Up"))
    assert chat.episode.turns[1].well_formed


def test_every_call_of_a_reply_is_answered_and_good_ones_are_executed() -> None:
    chat = EpisodeChat(make_env("TextSokoban-v0"), Tools(max_actions_per_turn=2, show_reward=True))
    chat.open(seed=1)
    made = [("act", "Up"), ("fly", "Up"), ("act", "Sideways"), ("act", "Left")]
    reply = write_reply(None, "", [ToolCall(name, {"action": action}) for name, action in made])
    heard = chat.hear(reply)
    assert [move.action for move in chat.episode.turns[0].moves] == ["Up", "Sideways"]
    assert not chat.episode.turns[0].well_formed
    first, second, third, last = heard.messages
    assert {message.role for message in heard.messages} == {"tool"}
    assert first.content == "Done." and "no function 'fly'" in second.content
    assert third.content == "Done." or "refus" in third.content
    assert last.content.startswith("This call was not executed: the reply has more calls than are allowed.")
    assert "Reward: " in last.content and "#" in last.content


@pytest.mark.parametrize(
    "options", [{}, {"history": "window", "window": 2}, {"history": "single"}, {"max_actions": 3}]
)
def test_episode_is_restored_from_its_replies(options: dict[str, Any]) -> None:
    replies = [*(reply for reply, _ in BROKEN[:-1]), *(call("act", action=way) for way in ("Up", "Left"))]
    chat = EpisodeChat(make_env("TextSokoban-v0"), make_dialogue("tools", options))
    chat.open(seed=3)
    for reply in replies:
        if not chat.done:
            chat.hear(reply)
    state = json.loads(json.dumps(chat.state()))
    again = EpisodeChat(make_env("TextSokoban-v0"), make_dialogue("tools", options))
    assert again.resume(state) and again.state() == state and again.prompt == chat.prompt
    assert again.episode.exchanges == chat.episode.exchanges
    # What a server receives is valid: every answer has a call before it.
    assert all("tool_call_id" in one for one in as_chat_messages(chat.prompt) if one["role"] == "tool")


def test_actions_without_replies_are_restored_as_calls() -> None:
    chat = EpisodeChat(make_env("TextWebShop-v0"), make_dialogue("tools"))
    opened = chat.open(seed=0)
    assert [one["function"]["name"] for one in chat.tools] == ["search", "click"]
    state = {"env": "TextWebShop-v0", "task": chat.episode.task, "seed": 0, "actions": [["search[red shoes]"]]}
    *before, reply, answer = chat.resume(state)
    assert before == opened and answer.role == "tool"
    assert reply == Message("assistant", call("search", keywords="red shoes"))
    assert chat.episode.turns[0].moves[0].valid


def test_other_dialogues_have_no_functions() -> None:
    assert EpisodeChat(make_env("TextSokoban-v0"), make_dialogue("think")).tools == []
    think = make_dialogue("think")
    assert think.bind(make_env("TextSokoban-v0")) is think


def test_trainers_that_send_no_schemas_refuse_the_dialogue() -> None:
    env = make_env("TextSokoban-v0")
    with pytest.raises(ConfigurationError, match="sends no function schemas; choose a dialogue other than tools"):
        append_only_chat(env, make_dialogue("tools"))
    assert append_only_chat(env, make_dialogue("tools"), sends_tools=True).tools


def test_several_actions_of_a_turn_are_restored_as_calls() -> None:
    chat = EpisodeChat(make_env("TextSokoban-v0"), make_dialogue("tools", {"max_actions_per_turn": 3}))
    chat.open(seed=3)
    state = {"env": "TextSokoban-v0", "task": chat.episode.task, "seed": 3, "actions": [["Up", "Left"]]}
    *_, reply, first, second = chat.resume(state)
    assert [one.arguments for one in read_reply(reply.content).calls] == [{"action": "Up"}, {"action": "Left"}]
    assert (first.role, second.role) == ("tool", "tool")


def test_dialogue_of_a_plug_in_keeps_its_own_rules_in_every_environment() -> None:
    class Polite(Tools):
        def format_rules(self) -> str:
            return "Please call a function."

    env = make_env("TextWebShop-v0")
    env.reset(seed=0)
    bound = Polite().bind(env)
    assert bound.tools == env.tools and Polite().tools != env.tools
    assert "Please call a function." in bound.system(env)
