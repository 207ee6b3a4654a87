"""Recall of the supporting articles of questions among the first k hits of a retriever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..errors import ConfigurationError
from .interface import Retriever

DEPTHS = (1, 2, 3, 5, 10, 20)
"""Default values of k."""


class Recall(NamedTuple):
    """Recall of one retriever.

    Attributes:
        retriever: Name of the retriever.
        questions: Number of questions.
        recall: For every k, the fraction of supporting titles among the first k hits, averaged over questions.
        complete: For every k, the fraction of questions with all supporting titles among the first k hits.
    """

    retriever: str
    questions: int
    recall: Mapping[int, float]
    complete: Mapping[int, float]


def recall_of(
    name: str,
    retriever: Retriever,
    questions: Sequence[str],
    titles: Sequence[Sequence[str]],
    depths: Sequence[int] = DEPTHS,
) -> Recall:
    """Measure the recall of a retriever, with the text of every question as the query.

    Args:
        name: Name of the retriever in the result.
        retriever: Retriever to measure.
        questions: Texts of the questions.
        titles: Supporting titles of each question; questions without any are skipped.
        depths: Values of k.

    Raises:
        ConfigurationError: No question has supporting titles.
    """
    asked = [(question, set(wanted)) for question, wanted in zip(questions, titles, strict=True) if wanted]
    if not asked:
        raise ConfigurationError("none of the questions has supporting titles; recall cannot be measured.")
    rankings = retriever.search([question for question, _ in asked], max(depths))
    recall, complete = {}, {}
    for k in depths:
        found = [
            len(wanted & {hit.document.title for hit in ranking[:k]}) / len(wanted)
            for (_, wanted), ranking in zip(asked, rankings, strict=True)
        ]
        recall[k] = sum(found) / len(found)
        complete[k] = sum(fraction == 1.0 for fraction in found) / len(found)
    return Recall(name, len(asked), recall, complete)


def as_table(rows: Sequence[Recall]) -> str:
    """Return a Markdown table of recall@k, with the fraction of completely answered questions in parentheses."""
    depths = list(rows[0].recall)
    lines = ["| retriever | " + " | ".join(f"recall@{k}" for k in depths) + " |"]
    lines.append("|---|" + "---|" * len(depths))
    for row in rows:
        cells = (f"{row.recall[k]:.3f} ({row.complete[k]:.2f})" for k in depths)
        lines.append(f"| {row.retriever} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
