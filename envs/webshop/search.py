"""Search engines of a shop, behind one interface.

* "bm25" (default): `envs.retrieval.lucene_bm25`, Lucene's analysis and scores in NumPy; needs no extra.
* "bm25s": the `bm25s` library over the same terms and weights (extra `search`).
* "lucene": Lucene through Pyserini (extra `lucene`, which includes a Java runtime).

All three give the recorded rankings of the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from ..errors import unknown_name
from .product_catalog import ProductCatalog

ENGINES = ("bm25", "bm25s", "lucene")


class SearchEngine(Protocol):
    """Function from a query to product numbers."""

    def __call__(self, query: str, k: int) -> Sequence[int]:
        """Return the numbers of at most k products, best first, ties by asin."""


class LuceneBM25:
    """Built-in search engine over the index of a catalog."""

    def __init__(self, catalog: ProductCatalog) -> None:
        self._index = catalog.index

    def __call__(self, query: str, k: int) -> Sequence[int]:
        from ..retrieval.lucene_bm25 import analyze

        numbers, _ = self._index.top(analyze(query), k)
        found: list[int] = numbers.tolist()
        return found


@lru_cache(maxsize=8)
def make_engine(name: str, catalog: ProductCatalog) -> SearchEngine:
    """Return the search engine with a name over a catalog; equal calls share one engine.

    Raises:
        ConfigurationError: The name is unknown, or the engine's extra is not installed.
    """
    if name == "bm25":
        return LuceneBM25(catalog)
    if name == "bm25s":
        from .search_bm25s import BM25S

        return BM25S(catalog)
    if name == "lucene":
        from .search_lucene import Pyserini

        return Pyserini(catalog)
    raise unknown_name("search engine", name, ENGINES)
