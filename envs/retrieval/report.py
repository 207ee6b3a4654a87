"""How well retrievers find what questions need: recall of the supporting articles among the first k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..errors import ConfigurationError
from .interface import Retriever

DEPTHS = (1, 2, 3, 5, 10, 20)


class Recall(NamedTuple):
    """Retrieval quality of one retriever.

    Attributes:
        retriever: its name.
        questions: how many were asked.
        recall: by k, the share of supporting titles among the first k, averaged over the questions.
        complete: by k, the share of questions all of whose supporting titles are among the first k.
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
    """Ask every question as it stands and look for its supporting titles.

    Args:
        titles: the supporting titles of each question; questions without any are left out.
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
        complete[k] = sum(share == 1.0 for share in found) / len(found)
    return Recall(name, len(asked), recall, complete)


def as_table(rows: Sequence[Recall]) -> str:
    """A Markdown table: recall@k, and in brackets the share of questions with every title found."""
    depths = list(rows[0].recall)
    lines = ["| retriever | " + " | ".join(f"recall@{k}" for k in depths) + " |"]
    lines.append("|---|" + "---|" * len(depths))
    for row in rows:
        cells = (f"{row.recall[k]:.3f} ({row.complete[k]:.2f})" for k in depths)
        lines.append(f"| {row.retriever} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
