"""Dialogues: total parsers, RAGEN's protocol with its budgets, and the same text in sampling and in training."""

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
MESS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=30).map("".join) | st.text()


TAGGED = ("tags", "search_o1")
"""Dialogues whose worlds take tagged text, and refuse the rest of it in their own words."""


@pytest.mark.parametrize("name", DIALOGUES)
@given(reply=MESS)
def test_any_text_can_be_read(name: str, reply: str) -> None:
    parsed = make_dialogue(name).parse(reply)
    assert isinstance(parsed.actions, tuple)
    assert all(isinstance(action, str) and action.strip() for action in parsed.actions)
    assert parsed.well_formed or name in TAGGED or not parsed.actions


@pytest.mark.parametrize("name", DIALOGUES)
@given(action=st.text("abcXYZ[] 019", min_size=1, max_size=20).map(str.strip).filter(bool))
def test_what_a_dialogue_demonstrates_it_can_read(name: str, action: str) -> None:
    wanted = f"<answer>{action}</answer>" if name in TAGGED else action
    parsed = make_dialogue(name).parse(make_dialogue(name).demonstrate("because", wanted))
    assert parsed.well_formed and parsed.actions[0].endswith(wanted)
    assert parsed.actions == (wanted,) or name == "tags"  # which hands over the thought too
    assert parsed.thought is None or "because" in parsed.thought


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
        ),  # comma: one unknown action
        ("<think><think>twice</think><answer>Up</answer>", ("Up",), "twice"),  # the prefill said again
        ("<think>a</think> so <answer>Up</answer>", (), None),
        ("<answer>Up</answer>", (), None),
        ("", (), None),
    ],
)
def test_ragens_reply(reply: str, actions: tuple[str, ...], thought: str | None) -> None:
    parsed = Think().parse(reply)
    assert (parsed.actions, parsed.thought) == (actions, thought)
    assert parsed.well_formed is bool(actions)


def test_other_replies() -> None:
    assert NoThink().parse("<answer>Up||Down</answer>").actions == ("Up", "Down")
    invented = "Thought: hm\nAction: go to desk 1\nObservation: done\nThought: so\nAction: stop"
    assert ReAct().parse(invented) == (("go to desk 1",), "hm", True)
    assert ReAct().parse("Thought 2: hm\naction 2: look") == (("look",), "hm", True)
    assert ReAct().parse("go to desk 1") == ((), "go to desk 1", False)
    told = "<information><answer>no</answer></information>"
    assert Tags().parse("<think>t</think><search>a b</search>" + told).actions == (
        "<think>t</think><search>a b</search>",
    )
    assert Tags().parse("nothing tagged") == (("nothing tagged",), None, False)
    assert Plain().parse("  two\nlines ") == (("two\nlines",), None, True)


def turn(*moves: bool, well_formed: bool = True) -> Turn:
    return Turn("seen", "said", moves=[Move("x", 0.5, valid, valid) for valid in moves], well_formed=well_formed)


def test_budgets_are_ragens() -> None:
    think = Think()  # 5 turns, 5 actions a turn, 10 actions
    assert think.allowed(tuple("abcdefg"), []) == tuple("abcde")  # further ones are dropped without penalty
    played = [turn(True, True, True, True), turn(True, False, True, True, True)]
    assert think.actions_left(played) == 2  # the refused action costs none
    assert think.allowed(tuple("abc"), played) == tuple("ab")
    assert think.spent(played) is None
    assert "10 actions" in str(think.spent([*played, turn(True, True)]))
    assert "5 turns" in str(think.spent([turn()] * 5))


def test_the_format_penalty_is_once_a_turn() -> None:
    think = Think()
    assert think.penalty(turn(True, True)) == 0.0
    assert think.penalty(turn(True, False, False)) == -0.1  # an action refused, others carried out
    assert think.penalty(turn()) == -0.1  # nothing to carry out
    assert think.penalty(turn(True, well_formed=False)) == -0.1


def test_a_turn_is_told_reward_state_warning_and_what_is_left() -> None:
    think = Think()
    first = think.user("the board", [])
    assert "the board" in first and "Actions left: 10" in first and "Reward" not in first
    second = think.user("the board", [turn(True, True)])
    assert second.startswith("Reward: 1\n") and "Turn 2" in second and "Actions left: 8" in second
    assert "no action that the world accepts" not in second
    assert "no action that the world accepts" in think.user("the board", [turn(False)])
    assert "no action that the world accepts" in think.user("the board", [turn()])


def test_the_system_message_is_made_from_the_live_world() -> None:
    env = make_env("TextBandit-v0")
    told = Think(max_actions=7).system(env)
    assert env.instructions in told and "7 actions" in told and "<answer>" in told


def test_histories_say_what_they_cut() -> None:
    single = Think(history="single", window=2)
    told = single.summary("now", [turn(True), turn(True, False)])
    assert "Turn 2: you saw" in told and "Turn 1: you saw" not in told and "now" in told and "x, x" in told


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("thnk", {}, "did you mean think"),
        ("think", {"max_turn": 3}, "did you mean max_turns"),
        ("think", {"max_turns": 0}, "max_turns must be a positive integer"),
        ("react", {"history": "some"}, "history must be"),
        ("react", {"format_penalty": 1.0}, "format_penalty must not be positive"),
    ],
)
def test_impossible_settings_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_dialogue(name, options)
