"""Search engine on the bm25s library (Lù, "BM25S", arXiv:2407.03618), with the terms and weights of Lucene."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..extras import optional_module
from ..retrieval.lucene_bm25 import analyze
from .product_catalog import ProductCatalog


class BM25S:
    """Index of bm25s whose score matrix holds Lucene's scores, which gives Lucene's ranking."""

    def __init__(self, catalog: ProductCatalog) -> None:
        library = optional_module("bm25s", "search", 'search="bm25s"')
        index = catalog.index
        matrix = index.score_matrix()
        self._vocabulary = {term: number for number, term in enumerate(index.terms)}
        self._retriever = library.BM25(method="lucene", k1=0.9, b=0.4)
        self._retriever.scores = {**matrix, "num_docs": len(index)}
        self._retriever.vocab_dict = self._vocabulary
        self._retriever.nonoccurrence_array = None
        self._ranks = index.id_ranks

    def __call__(self, query: str, k: int) -> Sequence[int]:
        terms = [self._vocabulary[term] for term in analyze(query) if term in self._vocabulary]
        if not terms:
            return []
        scores = np.asarray(self._retriever.get_scores_from_ids(terms))
        found = np.flatnonzero(scores)
        order = np.lexsort((self._ranks[found], -scores[found]))[:k]
        numbers: list[int] = found[order].tolist()
        return numbers
