"""The shop's search by the bm25s library (Lù, "BM25S", arXiv:2407.03618), over the terms and weights of Lucene."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ConfigurationError
from ..retrieval.lucene_bm25 import analyze
from .product_catalog import Catalogue


class BM25S:
    """A bm25s index whose score matrix is filled with Lucene's scores, so that it ranks as Lucene does."""

    def __init__(self, catalogue: Catalogue) -> None:
        try:
            library: Any = importlib.import_module("bm25s")
        except ImportError:
            raise ConfigurationError(
                "search=\"bm25s\" needs the library: pip install 'arboretum[search]'."
            ) from None
        index = catalogue.index
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
