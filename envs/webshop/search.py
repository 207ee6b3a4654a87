"""Search engines behind one interface: from a customer's words to product numbers.

* "bm25" (default): `envs.lucene_bm25`, Lucene's analysis and scores in NumPy; nothing to install.
* "bm25s": the `bm25s` library over the same terms and weights (extra `search`).
* "lucene": Lucene itself through Pyserini (extra `lucene`, which brings the Java machine along).

All three give the recorded rankings of the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from ..errors import unknown_name
from .product_catalog import Catalogue

ENGINES = ("bm25", "bm25s", "lucene")


class SearchEngine(Protocol):
    """Finds products by words."""

    def __call__(self, query: str, k: int) -> Sequence[int]:
        """Numbers of the (at most) k best products, best first, ties by asin."""


class LuceneBM25:
    """The built-in engine, over the index that the catalogue carries."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._index = catalogue.index

    def __call__(self, query: str, k: int) -> Sequence[int]:
        from ..retrieval.lucene_bm25 import analyze

        numbers, _ = self._index.top(analyze(query), k)
        found: list[int] = numbers.tolist()
        return found


@lru_cache(maxsize=8)
def make_engine(name: str, catalogue: Catalogue) -> SearchEngine:
    """The engine of a name over a catalogue; made once and shared.

    Raises:
        ConfigurationError: unknown name, or its extra is not installed.
    """
    if name == "bm25":
        return LuceneBM25(catalogue)
    if name == "bm25s":
        from .search_bm25s import BM25S

        return BM25S(catalogue)
    if name == "lucene":
        from .search_lucene import Pyserini

        return Pyserini(catalogue)
    raise unknown_name("search engine", name, ENGINES)
