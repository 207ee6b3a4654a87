"""Tests of answer scores against recorded cases of the reference implementations and against properties."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arboretum.envs.searchqa import scoring

DATA = os.environ.get("ARBORETUM_DATA")
needs_recordings = pytest.mark.skipif(
    not DATA, reason="ARBORETUM_DATA is not set; the recorded cases are beside it"
)


def case(name: str) -> dict:
    path = Path(DATA).parent / "golden" / "algorithms" / "cases.json"
    found = [c for c in json.loads(path.read_text())["cases"] if c["name"] == name]
    if not found:
        pytest.skip(f"the recordings have no case {name}")
    return found[0]


@needs_recordings
def test_normalization_and_exact_match_reproduce_the_recordings():
    recorded = case("em_normalisation")
    pairs = recorded["inputs"]["pairs"]
    assert [scoring.normalize(p) for p, _ in pairs] == recorded["expected"]["normalised"]
    assert [scoring.exact_match(p, golds) for p, golds in pairs] == recorded["expected"]["em"]


@needs_recordings
def test_sub_exact_match_reproduces_the_recordings():
    recorded = case("subem")
    pairs = recorded["inputs"]["pairs"]
    assert [scoring.sub_exact_match(p, golds) for p, golds in pairs] == recorded["expected"]


@needs_recordings
def test_shaped_reward_reproduces_the_recordings():
    recorded = case("search_shaped_reward")
    inputs = recorded["inputs"]
    got = {
        name: scoring.score_transcript(
            text,
            inputs["gold"],
            structure=inputs["structure_format_score"],
            final=inputs["final_format_score"],
            retrieval=inputs["retrieval_score"],
        )
        for name, text in inputs["responses"].items()
    }
    assert got == pytest.approx(recorded["expected"])


@needs_recordings
def test_retrieval_bonus_reproduces_the_recordings():
    recorded = case("search_shaped_reward_retrieval_bonus")
    inputs = recorded["inputs"]
    got = scoring.score_transcript(inputs["response"], inputs["gold"], retrieval=inputs["retrieval_score"])
    assert got == pytest.approx(recorded["expected"])


def test_f1_equals_values_computed_by_hand():
    # 2 shared words; precision 2/3, recall 2/2: 2 · (2/3) · 1 / (5/3) = 0.8.
    assert scoring.f1("President Barack Obama", ["Barack Obama", "nothing"]) == pytest.approx(0.8)
    # Words are counted with multiplicity: 1 shared word of 3 and of 1.
    assert scoring.f1("new new new", ["New"]) == pytest.approx(2 * (1 / 3) / (4 / 3))
    assert scoring.f1("completely other", ["Barack Obama"]) == 0.0
    assert scoring.f1("anything", []) == 0.0


@pytest.mark.parametrize(("answer", "gold"), [("yes it is", "yes"), ("no", "no way"), ("noanswer", "no answer")])
def test_f1_of_yes_and_no_requires_equality(answer, gold):
    assert scoring.f1(answer, [gold]) == 0.0


def test_texts_that_normalize_to_nothing_match():
    assert scoring.exact_match("the", ["a"])  # Both consist of an article only.


def test_shaped_f1_equals_its_table():
    assert scoring.shaped_f1(0.5, True, True) == 0.5
    assert scoring.shaped_f1(0.5, True, False) == pytest.approx(0.3)
    assert scoring.shaped_f1(0.1, True, False) == pytest.approx(-0.1)
    assert scoring.shaped_f1(0.0, True, True) == pytest.approx(0.2)
    assert scoring.shaped_f1(0.0, True, False) == 0.0


def test_answer_in_retrieved_text_is_ignored():
    text = (
        "<think>a</think><search>q</search>\n\n<information>see <answer>Paris</answer></information>\n\n"
        "<think>b</think><answer>Rome</answer>"
    )
    assert scoring.score_transcript(text, ["Paris"]) < scoring.score_transcript(text, ["Rome"])
    only_retrieved = "<think>a</think><search>q</search><information><answer>Paris</answer></information>"
    assert scoring.score_transcript(only_retrieved, ["Paris"]) == 0.0


text = st.text(max_size=40)


@given(text)
def test_normalization_is_idempotent_after_two_passes(s):
    once = scoring.normalize(s)
    # Deleting punctuation can create a new article ("t.he"), which the second pass removes.
    assert scoring.normalize(scoring.normalize(once)) == scoring.normalize(once)
    assert "  " not in once
    assert once == once.strip()


@given(text, st.lists(text, max_size=3))
def test_exact_match_implies_the_other_scores(prediction, golds):
    exact = scoring.exact_match(prediction, golds)
    assert 0.0 <= scoring.f1(prediction, golds) <= 1.0 + 1e-12
    if exact:
        assert scoring.sub_exact_match(prediction, golds)
        if scoring.normalize(prediction):
            assert scoring.f1(prediction, golds) == pytest.approx(1.0)
