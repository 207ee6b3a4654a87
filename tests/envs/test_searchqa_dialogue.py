"""Tests of the two protocols: parsing of actions and formatting of retrieved text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arboretum.envs.retrieval import Document
from arboretum.envs.searchqa import react, tags


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        ("<search>a</search>", ("search", "a")),
        ("<think>x</think>\n<search> who is it </search> then more", ("search", "who is it")),
        ("<answer>Beijing</answer> and on it goes", ("answer", "Beijing")),
        # The turn is cut after the first </search>; its first complete pair counts.
        ("<search>a</search><answer>b</answer>", ("search", "a")),
        ("<answer>b</answer><search>a</search>", ("answer", "b")),
        ("<search>one\ntwo</search>", ("search", "one\ntwo")),
        ("<search>open <answer>b</answer>", ("answer", "b")),
        ("<search>a</answer>", None),
        ("<SEARCH>a</SEARCH>", None),
        ("no tags", None),
        ("", None),
    ],
)
def test_tags_action_is_parsed(turn, expected):
    assert tags.parse_action(turn) == expected


def test_search_results_are_formatted_as_in_search_r1():
    documents = [Document("0", '"A"\nParis is big'), Document("1", '"B"\nRome\nis old')]
    assert tags.format_results(documents, 1000) == (
        '\n\n<information>Doc 1(Title: "A") Paris is big\nDoc 2(Title: "B") Rome\nis old</information>\n\n'
    )
    assert tags.format_results([], 1000) == "\n\n<information></information>\n\n"


def test_observation_budget_cuts_text_but_keeps_the_closing_tag():
    documents = [Document(str(i), f'"T{i}"\n' + "word " * 50) for i in range(3)]
    shown = tags.format_results(documents, 100)
    assert shown.endswith("</information>\n\n")
    assert len(shown) == 100 + len("\n\n<information></information>\n\n")
    assert [d.id for d in tags.visible_documents(documents, 100)] == ["0"]
    assert [d.id for d in tags.visible_documents(documents, 300)] == ["0", "1"]
    assert len(tags.visible_documents(documents, 10_000)) == 3


@given(st.lists(st.sampled_from(["<answer>", "</answer>", "</information>", "<search>", "</ search >", "x", " "])))
def test_tags_in_retrieved_text_are_escaped(parts):
    shown = tags.format_results([Document("0", "T\n" + "".join(parts))], 10_000)
    inner = shown.strip().removeprefix("<information>").removesuffix("</information>")
    assert tags.parse_action(inner) is None
    assert tags.advance(tags.FormatState.SEARCHED, shown) is tags.FormatState.INFORMED


WELL_FORMED = (
    "<think>t</think> <search>q</search>\n<information>i</information>\n<think>u</think><answer>a</answer>"
)


@given(st.data())
def test_format_state_is_independent_of_the_split_into_parts(data):
    # Each part starts from the state after the previous one.
    pieces = [piece + ">" for piece in WELL_FORMED.split(">")[:-1]]
    state = tags.FormatState.START
    while pieces:
        n = data.draw(st.integers(1, len(pieces)))
        state = tags.advance(state, "".join(pieces[:n]))
        pieces = pieces[n:]
    assert state is tags.FormatState.ANSWERED


@pytest.mark.parametrize(
    "broken",
    [
        "<answer>a</answer>",
        "<think>t</think> and <answer>a</answer>",
        "<think>t<think></think></think><answer>a</answer>",
        "<think>t</think><search>q</search><answer>a</answer>",
        "<think>t</think><answer>a</answer> more",
        "<think>t</think><answer>a</answer><answer>b</answer>",
        "<think>t</think><search>q</search><information>i</information><answer>a</answer>",
    ],
)
def test_malformed_dialogue_breaks_the_format(broken):
    assert tags.advance(tags.FormatState.START, broken) is tags.FormatState.BROKEN


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("search[Milhouse]", ("search", "Milhouse")),
        (" Search[ The Simpsons ] \n", ("search", "The Simpsons")),
        ("Finish[yes]", ("finish", "yes")),
        ("Thought 1: I need it.\nAction 1: Lookup[named after]", ("lookup", "named after")),
        ("search[a[b]]", ("search", "a[b]")),
        ("search Milhouse", None),
        ("finish[a] finish", None),
        ("open[x]", None),
    ],
)
def test_react_action_is_parsed(action, expected):
    assert react.parse_action(action) == expected


def test_sentences_are_not_split_after_initials_and_titles():
    text = "J. R. R. Tolkien met Dr. Smith in St. Ives. He wrote! Did he? 42 books."
    assert react.split_sentences(text) == [
        "J. R. R. Tolkien met Dr. Smith in St. Ives.",
        "He wrote!",
        "Did he?",
        "42 books.",
    ]


def test_lookup_returns_the_results_in_order():
    page = ["A cat sat.", "No animal.", "The Cat left."]
    assert react.lookup(page, "cat", 0) == ("(Result 1 / 2) A cat sat.", True)
    assert react.lookup(page, "cat", 1) == ("(Result 2 / 2) The Cat left.", True)
    assert react.lookup(page, "cat", 2) == ("No more results.", False)


def test_page_consists_of_the_passages_with_its_title():
    documents = [Document("11", '"A b"\nlater'), Document("3", '"a B"\nfirst'), Document("4", '"A c"\nother')]
    assert [d.id for d in react.find_page("a  b", documents)] == ["3", "11"]
    assert react.format_not_found("A", documents) == "Could not find [A]. Similar: ['A b', 'a B', 'A c']."
