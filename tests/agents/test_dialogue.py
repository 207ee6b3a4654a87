"""Dialogues: parsers that accept any text, the budgets and penalties of RAGEN, and prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arboretum.agents.dialogue import DIALOGUES, NoThink, Plain, ReAct, Tags, Think, make_dialogue
from arboretum.agents.episode import Move, Turn
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import make_env

FRAGMENTS = [
    *("<think>", "</think>", "<answer>", "</answer>", "<search>", "</search>", "<information>", "||", "\n"),
    *("Thought:", "Action:", "Action 2:", "Observation:", "Up", "search[x]", " ", "\x00", "\ud800", "√"),
]
NOISE = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=30).map("".join) | st.text()


TAGGED = ("tags", "search_o1")
"""Dialogues that pass malformed text to the environment, which rejects it."""


@pytest.mark.parametrize("name", DIALOGUES)
@given(reply=NOISE)
def test_any_text_is_parsed_without_an_exception(name: str, reply: str) -> None:
    parsed = make_dialogue(name).parse(reply)
    assert isinstance(parsed.actions, tuple)
    assert all(isinstance(action, str) and action.strip() for action in parsed.actions)
    assert parsed.well_formed or name in TAGGED or not parsed.actions


@pytest.mark.parametrize("name", DIALOGUES)
@given(action=st.text("abcXYZ[] 019", min_size=1, max_size=20).map(str.strip).filter(bool))
def test_demonstrated_reply_is_parsed_back(name: str, action: str) -> None:
    wanted = f"<answer>{action}</answer>" if name in TAGGED else action
    parsed = make_dialogue(name).parse(make_dialogue(name).demonstrate("because", wanted))
    assert parsed.well_formed and parsed.actions[0].endswith(wanted)
    assert parsed.actions == (wanted,) or name == "tags"  # whose action includes the thought
    assert parsed.thought is None or "because" in parsed.thought


@pytest.mark.parametrize("name", DIALOGUES)
@given(action=st.text("abcXYZ[] 019", min_size=1, max_size=20).map(str.strip).filter(bool))
def test_action_without_a_thought_follows_the_prefix(name: str, action: str) -> None:
    dialogue = make_dialogue(name)
    wanted = f"<search>{action}</search>" if name in TAGGED else action
    written = dialogue.write_action(wanted)
    assert dialogue.read_action(written) == wanted
    assert dialogue.action_prefix.startswith(dialogue.prefill)
    parsed = dialogue.parse(dialogue.action_prefix + written)
    assert parsed.well_formed and not parsed.thought and parsed.actions[0].endswith(wanted)
    if name == "tags":  # whose parsed action is the whole reply
        assert dialogue.write_action(parsed.actions[0]) == wanted


def test_several_actions_of_a_reply_are_one_text() -> None:
    for dialogue in (Think(), NoThink()):
        assert dialogue.read_action(dialogue.write_action("Up || Left")) == "Up || Left"
        assert dialogue.read_action(" Up ||Left</answer> and more") == "Up || Left"
        assert dialogue.read_action(" unfinished ") == "unfinished"
    assert ReAct().read_action(" go north\nObservation: x") == "go north"


@pytest.mark.parametrize("name", DIALOGUES)
@given(thought=st.text("abc \n.", max_size=20), reply=NOISE)
def test_span_of_a_thought_holds_the_thought(name: str, thought: str, reply: str) -> None:
    dialogue = make_dialogue(name)
    wanted = "<search>x</search>" if name in TAGGED else "x"
    demonstrated = dialogue.demonstrate(thought, wanted)
    span = dialogue.thought_span(demonstrated)
    assert (span is not None) == dialogue.has_thoughts
    if span is not None:
        assert demonstrated[slice(*span)] == thought.strip()
    found = dialogue.thought_span(reply)
    if found is not None:
        assert dialogue.parse(reply).well_formed and 0 <= found[0] <= found[1] <= len(reply)


@pytest.mark.parametrize(
    ("reply", "actions", "thought"),
    [
        ("<think>wall ahead</think><answer>Up || Right</answer>", ("Up", "Right"), "wall ahead"),
        ("<think>a</think>\n \n<answer> Up||  ||Down </answer> and more", ("Up", "Down"), "a"),
        ("<think>one</think><answer>Up</answer><think>two</think><answer>Down</answer>", ("Up",), "one"),
        (
            "noise <think>x\ny</think><answer>Right, Up</answer>",
            ("Right, Up",),
            "x\ny",
        ),  # a comma is no separator
        ("<think><think>twice</think><answer>Up</answer>", ("Up",), "twice"),  # the prefill repeated
        ("<think>so<|im_end|></think><answer><|im_start|>Up || Down<|im_end|></answer>", ("Up", "Down"), "so"),
        ("<think>a</think> so <answer>Up</answer>", (), None),
        ("<answer>Up</answer>", (), None),
        ("", (), None),
    ],
)
def test_think_reply_is_parsed_as_in_ragen(reply: str, actions: tuple[str, ...], thought: str | None) -> None:
    parsed = Think().parse(reply)
    assert (parsed.actions, parsed.thought) == (actions, thought)
    assert parsed.well_formed is bool(actions)


def test_replies_of_other_dialogues_are_parsed() -> None:
    assert NoThink().parse("<answer>Up||Down<|im_end|></answer>").actions == ("Up", "Down")
    invented = "Thought: hm\nAction: go to desk 1\nObservation: done\nThought: so\nAction: stop"
    assert ReAct().parse(invented) == (("go to desk 1",), "hm", True)
    assert ReAct().parse("Thought 2: hm\naction 2: look") == (("look",), "hm", True)
    assert ReAct().parse("go to desk 1") == ((), "go to desk 1", False)
    hallucinated = "<information><answer>no</answer></information>"
    assert Tags().parse("<think>t</think><search>a b</search>" + hallucinated).actions == (
        "<think>t</think><search>a b</search>",
    )
    assert Tags().parse("nothing tagged") == (("nothing tagged",), None, False)
    assert Plain().parse("  two\nlines ") == (("two\nlines",), None, True)


def turn(*moves: bool, well_formed: bool = True) -> Turn:
    return Turn("seen", "said", moves=[Move("x", 0.5, valid, valid) for valid in moves], well_formed=well_formed)


def test_dialogues_have_no_budget_of_their_own() -> None:
    for dialogue in (Think(), NoThink()):
        assert dialogue.max_turns is None and dialogue.max_actions is None
        assert dialogue.spent([turn(True)] * 200) is None and dialogue.actions_left([turn(True)] * 200) is None


def test_budgets_of_ragen_count_turns_and_valid_actions() -> None:
    think = Think(max_turns=5, max_actions=10)  # and 5 actions per turn
    turns = [turn(True, True, True, True), turn(True, False, True, True, True)]
    assert think.actions_left(turns) == 2  # the invalid action uses no budget
    assert think.spent(turns) is None
    assert "10 actions" in str(think.spent([*turns, turn(True, True)]))
    assert "5 turns" in str(think.spent([turn()] * 5))


def test_format_penalty_applies_once_per_turn() -> None:
    think = Think()
    assert think.penalty(turn(True, True)) == 0.0
    assert think.penalty(turn(True, False, False)) == -0.1  # one valid action, two invalid ones
    assert think.penalty(turn()) == -0.1  # no actions
    assert think.penalty(turn(True, well_formed=False)) == -0.1


def test_user_message_has_reward_observation_warning_and_actions_left() -> None:
    think = Think(max_turns=5, max_actions=10)
    first = think.user("the board", [])
    assert "the board" in first and "Actions left: 10" in first and "Reward" not in first
    second = think.user("the board", [turn(True, True)])
    assert second.startswith("Reward: 1\n") and "Turn 2" in second and "Actions left: 8" in second
    assert "no action that the world accepts" not in second
    assert "no action that the world accepts" in think.user("the board", [turn(False)])
    assert "no action that the world accepts" in think.user("the board", [turn()])


def test_system_message_has_instructions_budget_and_format() -> None:
    env = make_env("TextBandit-v0")
    message = Think(max_actions=7).system(env)
    assert env.instructions in message and "7 actions" in message and "<answer>" in message


def test_single_history_summarizes_turns_within_the_window() -> None:
    single = Think(history="single", window=2)
    message = single.summary("now", [turn(True), turn(True, False)])
    assert "Turn 2: you saw" in message and "Turn 1: you saw" not in message
    assert "now" in message and "x, x" in message


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("thnk", {}, "did you mean think"),
        ("think", {"max_turn": 3}, "did you mean max_turns"),
        ("think", {"max_turns": 0}, "max_turns must be an integer of at least 1, not 0"),
        ("think", {"max_turns": True}, "max_turns must be an integer of at least 1, not True"),
        (
            "think",
            {"max_actions_per_turn": None},
            "max_actions_per_turn must be an integer of at least 1, not None",
        ),
        ("think", {"window": None}, "window must be an integer of at least 1, not None"),
        ("think", {"format_penalty": float("nan")}, "format_penalty must be a number of at most 0, not nan"),
        ("think", {"format_penalty": "none"}, "format_penalty must be a number of at most 0, not 'none'"),
        ("think", {"show_reward": "no"}, "show_reward must be true or false, not 'no'"),
        ("react", {"history": "some"}, "history must be one of full, window, single, not 'some'"),
        ("react", {"format_penalty": 1.0}, "format_penalty must be a number of at most 0"),
    ],
)
def test_invalid_setting_is_rejected(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_dialogue(name, options)
