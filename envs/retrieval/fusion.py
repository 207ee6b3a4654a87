"""Fusion of retrievers by reciprocal rank (Cormack, Clarke and Büttcher, SIGIR 2009)."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigurationError
from .interface import Document, Hit, Retriever

RANK_CONSTANT = 60
"""The paper's k; a larger value reduces the weight of the first ranks relative to later ones."""


def reciprocal_rank_fusion(rankings: Sequence[Sequence[Hit]], k: int, constant: int = RANK_CONSTANT) -> list[Hit]:
    """Merge rankings of one query.

    The score of a document is Σ 1 / (constant + rank) over the rankings that contain it, with ranks from 1.
    Documents with equal ids are the same. Equal scores keep the order of first appearance, ranking by ranking.

    Args:
        rankings: Rankings to merge, each best first.
        k: Maximum number of hits to return.
        constant: Constant of the score.
    """
    scores: dict[str, float] = {}
    documents: dict[str, Document] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, 1):
            name = hit.document.id
            documents.setdefault(name, hit.document)
            scores[name] = scores.get(name, 0.0) + 1.0 / (constant + rank)
    best = sorted(scores, key=lambda name: -scores[name])[: max(k, 0)]
    return [Hit(documents[name], scores[name]) for name in best]


class Hybrid(Retriever):
    """Fusion of several retrievers over the same corpus, usually BM25 and a dense one.

    Args:
        parts: Retrievers to fuse.
        depth: Minimum number of hits of each retriever to fuse.
        constant: Constant of the reciprocal rank score.

    Raises:
        ConfigurationError: There are fewer than two retrievers.
    """

    def __init__(self, parts: Sequence[Retriever], depth: int = 100, constant: int = RANK_CONSTANT) -> None:
        if len(parts) < 2:
            raise ConfigurationError(f"a hybrid retriever needs at least two parts, not {len(parts)}.")
        self.parts = tuple(parts)
        self.depth = depth
        self.constant = constant

    @property
    def identity(self) -> str:
        inner = " + ".join(part.identity for part in self.parts)
        return f"hybrid(depth={self.depth},constant={self.constant}): {inner}"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        depth = max(self.depth, k)
        by_part = [part.search(queries, depth) for part in self.parts]
        return [reciprocal_rank_fusion(rankings, k, self.constant) for rankings in zip(*by_part, strict=True)]

    def check(self) -> None:
        for part in self.parts:
            part.check()

    def close(self) -> None:
        for part in self.parts:
            part.close()
