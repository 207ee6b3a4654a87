"""Tests of the parsers of foreign text: linear time, and the formats' defining expressions as oracles."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from arboretum.agents.dialogue.registry import DIALOGUES, make_dialogue
from arboretum.agents.dialogue.search_o1 import BEGIN_QUERY, END_QUERY, boxed, queries
from arboretum.agents.dialogue.think import split_actions
from arboretum.envs.searchqa import react, scoring, tags
from arboretum.envs.searchqa.datasets import question_from_prompt
from arboretum.envs.webshop.shop import parse_action
from arboretum.eval.bench.parsers import LENGTH, LIMIT, PIECES, HostileText, cpu_time, parsers, slowest_texts

TOLERANCE = 4
"""Factor between the limit, which the benchmark asserts, and the time at which a test on a busy machine fails."""
NAMES = sorted(parsers())


def assert_linear(name: str, text: HostileText, length: int = LENGTH // 4) -> None:
    """Assert that the time of a parser is bounded, and not quadratic in the length of the text."""
    parse = parsers()[name]
    limit = LIMIT * length / LENGTH
    seconds = cpu_time(parse, text.of_length(length))
    assert seconds < TOLERANCE * limit, f"{name}: {seconds:.2f} s for {text}"
    if seconds > LIMIT / 4:
        quarter = min(cpu_time(parse, text.of_length(length // 4)) for _ in range(3))
        assert seconds < 10 * quarter, f"{name}: {seconds / quarter:.1f} times the time of a quarter for {text}"


@pytest.mark.parametrize("name", NAMES)
def test_parser_takes_linear_time_on_adversarial_text(name: str) -> None:
    for text in slowest_texts(parsers()[name], length=LENGTH // 4):
        assert_linear(name, text)


hostile = st.builds(
    HostileText,
    st.sampled_from(["", *PIECES]),
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join),
    st.lists(st.sampled_from(PIECES), max_size=3).map("".join),
    st.sampled_from(["", *PIECES]),
)


@pytest.mark.parametrize("name", NAMES)
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
@given(hostile)
def test_parser_takes_linear_time_on_random_patterns(name: str, text: HostileText) -> None:
    assert_linear(name, text)


def test_quadratic_parser_is_detected() -> None:
    """The criterion rejects the regular expression that `no_think` had."""
    pattern = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
    parsers()["quadratic"] = pattern.search
    try:
        with pytest.raises(AssertionError, match="quadratic: "):
            assert_linear("quadratic", HostileText("", "<answer>"), LENGTH // 10)
    finally:
        del parsers()["quadratic"]


def test_every_dialogue_is_in_the_registry() -> None:
    assert {f"dialogue {name}" for name in DIALOGUES} <= set(parsers())


# ---------------------------------------------------------------------- the formats' definitions as oracles

short = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<answer>", "</answer>", "<search>", "</search>", "<information>",
         "</information>",
         BEGIN_QUERY, END_QUERY, "\\boxed{", "}", "search[", "click[", "finish[", "[", "]", "Action:", "Action 1:",
         "Question:", "<|im_start|>", "<|im_end|>", "<answer>a</answer>", "||", "a", "B",
         " ", "\t", "\n", "\r", "\u2028"]
    ),
    max_size=14,
).map("".join)  # fmt: skip


def stripped(groups: list[str]) -> list[str]:
    return [re.sub(r"</?(?:think|answer)>|<\|im_(?:start|end)\|>", "", group).strip() for group in groups]


@settings(max_examples=1000, deadline=None)
@given(short)
def test_dialogues_follow_their_expressions(text: str) -> None:
    think = re.search(r"<think>(.*?)</think>\s*<answer>(.*?)</answer>", text, re.DOTALL)
    parsed = make_dialogue("think").parse(text)
    assert parsed.well_formed == (think is not None)
    if think is not None:
        thought, answer = stripped(list(think.groups()))
        assert (parsed.thought, parsed.actions) == (thought, split_actions(answer))
    answered = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
    expected = split_actions(stripped([answered[1]])[0]) if answered else ()
    assert make_dialogue("no_think").parse(text).actions == expected
    tagged = re.search(r"<(search|answer)>(.*?)</\1>", text, re.DOTALL)
    parsed = make_dialogue("tags").parse(text)
    thinking = re.search(r"<think>(.*?)</think>", text[: tagged.start()] if tagged else text, re.DOTALL)
    assert parsed.thought == (thinking[1].strip() if thinking else None)
    assert parsed.actions == ((text[: tagged.end()],) if tagged else (text,) if text.strip() else ())
    assert parsed.well_formed == (tagged is not None)
    delimited = re.compile(re.escape(BEGIN_QUERY) + "(.*?)" + re.escape(END_QUERY), re.DOTALL)
    assert queries(text) == [query.strip() for query in delimited.findall(text)]
    boxes = re.findall(r"\\boxed\{(.*)\}", text)
    assert boxed(text) == (boxes[-1].strip() if boxes else None)


@settings(max_examples=1000, deadline=None)
@given(short)
def test_actions_follow_their_expressions(text: str) -> None:
    match = re.match(r"(.+)\[(.+)\]", text)
    assert parse_action(text) == ((match[1], match[2].lower()) if match else (text, None))
    turn = tags.truncate_turn(text)
    tagged = re.search(r"<(search|answer)>(.*?)</\1>", turn, re.DOTALL)
    assert tags.parse_action(text) == ((tagged[1], tagged[2].strip()) if tagged else None)
    action = re.compile(r"(search|lookup|finish)\[(.*)\]", re.IGNORECASE | re.DOTALL)
    found = action.fullmatch(text.strip())
    if found is None:
        numbered = re.fullmatch(r"(?:.*\n)?\s*Action(?: \d+)?:\s*(.*)\s*", text.strip(), re.DOTALL)
        found = action.fullmatch(numbered[1].strip()) if numbered else None
    assert react.parse_action(text) == ((found[1].lower(), found[2].strip()) if found else None)


@settings(max_examples=1000, deadline=None)
@given(short)
def test_transcripts_and_prompts_follow_their_expressions(text: str) -> None:
    agent_text = re.sub(r"<information>.*?</information>", "", text, flags=re.DOTALL)
    answers = re.findall(r"<answer>(.*?)</answer>", agent_text, re.DOTALL)
    correct = bool(answers) and scoring.exact_match(answers[-1].strip(), ["b"])
    assert (scoring.score_transcript(text, ["b"], structure=0.5) >= 0.5) >= correct
    assert (scoring.score_transcript(text, ["b"], structure=0.0, final=0.25) > 0.0) == bool(answers) or not answers
    asked = re.search(r"Question:\s*(.+?)\s*(?:<\|im_end\|>.*)?$", text, re.DOTALL)
    question = question_from_prompt([{"role": "user", "content": text}])
    assert (question is None) == (asked is None)
    assert question is None or (asked is not None and question.strip() == asked[1].strip())
