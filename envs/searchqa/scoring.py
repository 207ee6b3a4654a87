"""Scores of short answers: exact match, substring match, token F1, and the shaped rewards based on them.

Normalization and F1 follow the SQuAD evaluation (Rajpurkar et al., 2016) as HotpotQA extended it (Yang et al.,
2018); the shaped rewards follow Search-R1 v0.3 and Tree-GRPO (format score 0.2, final-format score 0.1, retrieval
score 0).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from ..delimiters import iterate_between
from .tags import FormatState, advance

Reward = Literal["em", "f1", "sub_em", "lenient", "shaped", "shaped_f1"]
"""Names of the reward functions of answers."""

SHAPED_REWARDS = ("shaped", "shaped_f1")
"""Rewards that depend on the format of the dialogue."""

_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CLOSED_CLASS = frozenset({"yes", "no", "noanswer"})

STRUCTURE_SCORE = 0.2
"""Score of a well-formed dialogue with a wrong answer (Tree-GRPO's `structure_format_score`)."""
FINAL_SCORE = 0.1
"""Score of a wrong answer in a malformed dialogue (Tree-GRPO's `final_format_score`)."""
LENIENT_F1 = 0.3
"""Minimum F1 of a correct answer in RAGEN."""


def normalize(text: str) -> str:
    """Lower-case a text, delete ASCII punctuation and the words a, an and the, and collapse white space.

    Punctuation is deleted rather than replaced by spaces: "Eiffel-Tower" becomes "eiffeltower". Other Unicode
    punctuation is kept.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_DELETE_PUNCTUATION)).split())


def exact_match(prediction: str, golds: Iterable[str]) -> bool:
    """Return True if the normalized prediction equals a normalized gold answer."""
    wanted = normalize(prediction)
    return any(normalize(gold) == wanted for gold in golds)


def sub_exact_match(prediction: str, golds: Iterable[str]) -> bool:
    """Return True if a normalized gold answer occurs within the normalized prediction."""
    text = normalize(prediction)
    return any(normalize(gold) in text for gold in golds)


def f1(prediction: str, golds: Iterable[str]) -> float:
    """Return the maximum token F1 over the gold answers.

    F1 is the harmonic mean of the precision and recall of the bags of words. If either side is "yes", "no" or
    "noanswer", the score is 1 for equality and 0 otherwise.
    """
    text = normalize(prediction)
    return max((_f1(text, normalize(gold)) for gold in golds), default=0.0)


class Grade(NamedTuple):
    """Scores of an answer: see `exact_match`, `f1` and `sub_exact_match`."""

    em: bool
    f1: float
    sub_em: bool


@lru_cache(maxsize=16)
def grade(prediction: str, golds: tuple[str, ...]) -> Grade:
    """Return all scores of an answer, normalizing each text once."""
    text, wanted = normalize(prediction), [normalize(gold) for gold in golds]
    best = max((_f1(text, gold) for gold in wanted), default=0.0)
    return Grade(text in wanted, best, any(gold in text for gold in wanted))


def _f1(prediction: str, gold: str) -> float:
    if prediction != gold and (prediction in _CLOSED_CLASS or gold in _CLOSED_CLASS):
        return 0.0
    left, right = prediction.split(), gold.split()
    common = sum((Counter(left) & Counter(right)).values())
    if not common:
        return 0.0
    precision, recall = common / len(left), common / len(right)
    return 2 * precision * recall / (precision + recall)


def shaped_em(
    correct: bool,
    answered: bool,
    well_formed: bool,
    evidence: bool = False,
    *,
    structure: float = STRUCTURE_SCORE,
    final: float = FINAL_SCORE,
    retrieval: float = 0.0,
) -> float:
    """Return Tree-GRPO's training reward, based on exact match.

    Args:
        correct: True if the answer is an exact match.
        answered: True if there is an answer.
        well_formed: True if the dialogue matches the grammar of `tags.advance`.
        evidence: True if a gold answer occurred in a retrieved block.
        structure: Score of a well-formed dialogue.
        final: Score of a wrong answer in a malformed dialogue.
        retrieval: Bonus of a wrong answer in a well-formed dialogue if `evidence` is True.

    Returns:
        For a correct answer: 1 if well-formed, else 1 − structure. For a wrong answer: structure (+ retrieval) if
        well-formed, else final. Without an answer: structure if well-formed, else 0.
    """
    if not answered:
        return structure if well_formed else 0.0
    if correct:
        return 1.0 if well_formed else 1.0 - structure
    if well_formed:
        return structure + (retrieval if evidence else 0.0)
    return final


def shaped_f1(score: float, answered: bool, well_formed: bool, *, structure: float = STRUCTURE_SCORE) -> float:
    """Return the web-agent variant of the reward, with F1 in place of exact match.

    Args:
        score: F1 of the answer.
        answered: True if there is an answer.
        well_formed: True if the dialogue matches the grammar of `tags.advance`.
        structure: Score of a well-formed dialogue.

    Returns:
        For an answer with positive F1: F1 if well-formed, else F1 − structure, which may be negative. For an
        answer with zero F1: structure if well-formed, else 0. Without an answer: 0.
    """
    if answered and score > 0.0:
        return score if well_formed else score - structure
    return structure if answered and well_formed else 0.0


def answer_reward(
    reward: Reward, scores: Grade, well_formed: bool, evidence: bool, *, retrieval: float = 0.0
) -> float:
    """Return the reward of an answer.

    Args:
        reward: Reward function, as `SearchQA` describes them.
        scores: Scores of the answer.
        well_formed: True if the dialogue matches the grammar of `tags.advance`.
        evidence: True if a gold answer occurred in a retrieved text.
        retrieval: Bonus of "shaped" for a wrong answer in a well-formed dialogue if `evidence` is True.
    """
    match reward:
        case "em":
            return float(scores.em)
        case "f1":
            return scores.f1
        case "sub_em":
            return float(scores.sub_em)
        case "lenient":
            return float(scores.em or scores.f1 >= LENIENT_F1)
        case "shaped":
            return shaped_em(scores.em, True, well_formed, evidence, retrieval=retrieval)
        case "shaped_f1":
            return shaped_f1(scores.f1, True, well_formed)


def score_transcript(
    response: str,
    golds: Sequence[str],
    *,
    structure: float = STRUCTURE_SCORE,
    final: float = FINAL_SCORE,
    retrieval: float = 0.0,
) -> float:
    """Return `shaped_em` of a complete recorded response: agent turns with information blocks between them.

    The response must not contain the prompt. Text in information blocks is never treated as an answer.
    """
    retrieved = list(iterate_between(response, "<information>", "</information>"))
    starts, ends = [0, *(block.end for block in retrieved)], [*(block.start for block in retrieved), len(response)]
    agent_text = "".join(response[start:end] for start, end in zip(starts, ends, strict=True))
    answers = [answer.content for answer in iterate_between(agent_text, "<answer>", "</answer>")]
    blocks = [normalize(block.content) for block in retrieved]
    return shaped_em(
        correct=bool(answers) and exact_match(answers[-1].strip(), golds),
        answered=bool(answers),
        well_formed=advance(FormatState.START, response) is FormatState.ANSWERED,
        evidence=any(normalize(gold) in block for gold in golds for block in blocks),
        structure=structure,
        final=final,
        retrieval=retrieval,
    )
