"""Scoring of short answers: exact match, sub-string match, token F1, and the shaped rewards built on them.

Normalisation and F1 follow the SQuAD evaluation (Rajpurkar et al., 2016) as HotpotQA extended it (Yang et al.,
2018); the shaped rewards follow Search-R1 v0.3 and Tree-GRPO (format score 0.2, final-format score 0.1, retrieval
score 0).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

from .tags import INFORMATION, FormatState, advance

_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CLOSED_CLASS = frozenset({"yes", "no", "noanswer"})

STRUCTURE_SCORE = 0.2
"""What a well-formed dialogue is worth beside its answer (Tree-GRPO's `structure_format_score`)."""
FINAL_SCORE = 0.1
"""What any answer at all is worth in a malformed dialogue (Tree-GRPO's `final_format_score`)."""
LENIENT_F1 = 0.3
"""RAGEN counts an answer as right from this F1 on."""


def normalise(text: str) -> str:
    """Lower-case, delete ASCII punctuation, drop the words a, an and the, collapse white space.

    Punctuation is deleted, not replaced: "Eiffel-Tower" becomes "eiffeltower". Other Unicode is left alone.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_DELETE_PUNCTUATION)).split())


def exact_match(prediction: str, golds: Iterable[str]) -> bool:
    """Whether the normalised prediction equals a normalised gold answer."""
    wanted = normalise(prediction)
    return any(normalise(gold) == wanted for gold in golds)


def sub_exact_match(prediction: str, golds: Iterable[str]) -> bool:
    """Whether a normalised gold answer occurs within the normalised prediction."""
    text = normalise(prediction)
    return any(normalise(gold) in text for gold in golds)


def f1(prediction: str, golds: Iterable[str]) -> float:
    """Token F1: the harmonic mean of precision and recall of the bags of words, at its best over the golds.

    Where either side is "yes", "no" or "noanswer", only equality counts.
    """
    return max((_f1(normalise(prediction), normalise(gold)) for gold in golds), default=0.0)


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
    """Tree-GRPO's training reward on exact match.

    Args:
        correct: exact match of the answer.
        answered: whether there was an answer at all.
        well_formed: whether the dialogue follows the grammar of `tags.advance`.
        evidence: whether a gold answer occurred in a retrieved block; worth `retrieval` to a wrong answer.

    Returns:
        1 right and well formed; 1 − structure right; structure (+ retrieval) wrong but well formed; final wrong
        and malformed; 0 without an answer.
    """
    if not answered:
        return structure if well_formed else 0.0
    if correct:
        return 1.0 if well_formed else 1.0 - structure
    if well_formed:
        return structure + (retrieval if evidence else 0.0)
    return final


def shaped_f1(score: float, answered: bool, well_formed: bool, *, structure: float = STRUCTURE_SCORE) -> float:
    """The web-agent variant: F1 in place of exact match.

    Returns:
        With some overlap: F1 when well formed, F1 − structure when not (possibly negative). With none: structure
        when an answer was given in a well-formed dialogue, else 0.
    """
    if answered and score > 0.0:
        return score if well_formed else score - structure
    return structure if answered and well_formed else 0.0


def score_transcript(
    response: str,
    golds: Sequence[str],
    *,
    structure: float = STRUCTURE_SCORE,
    final: float = FINAL_SCORE,
    retrieval: float = 0.0,
) -> float:
    """`shaped_em` of a whole recorded response (agent turns with the information blocks between them).

    The prompt must not be part of it. Text within information blocks is never taken for an answer.
    """
    spoken = INFORMATION.sub("", response)
    answers = re.findall(r"<answer>(.*?)</answer>", spoken, re.DOTALL)
    blocks = [normalise(block) for block in INFORMATION.findall(response)]
    return shaped_em(
        correct=bool(answers) and exact_match(answers[-1].strip(), golds),
        answered=bool(answers),
        well_formed=advance(FormatState.START, response) is FormatState.ANSWERED,
        evidence=any(normalise(gold) in block for gold in golds for block in blocks),
        structure=structure,
        final=final,
        retrieval=retrieval,
    )
