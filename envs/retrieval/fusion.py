"""Several retrievers as one: reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009)."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigurationError
from .interface import Document, Hit, Retriever

RANK_CONSTANT = 60
"""The paper's k: how little the first ranks stand out from the following ones."""


def reciprocal_rank_fusion(rankings: Sequence[Sequence[Hit]], k: int, constant: int = RANK_CONSTANT) -> list[Hit]:
    """Merge rankings of one query: a document scores Σ 1 / (constant + its rank), ranks counted from 1.

    Documents are the same if their ids are. Equal scores keep the order of first appearance, ranking by ranking.
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
    """Fuses the rankings of several retrievers over the same corpus, usually BM25 and a dense one.

    Args:
        parts: the retrievers to fuse.
        depth: how many hits of each are fused (more where more are asked for).
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

    def close(self) -> None:
        for part in self.parts:
            part.close()
