"""Search engine on Lucene in this process; see `envs.retrieval.lucene_jvm`."""

from __future__ import annotations

from collections.abc import Sequence

from ..retrieval.lucene_jvm import LuceneIndex
from .product_catalog import ProductCatalog


class Pyserini:
    """Lucene index of a catalog, stored in the catalog's folder."""

    def __init__(self, catalog: ProductCatalog) -> None:
        folder = catalog.folder / "lucene"
        products = (catalog.product(number) for number in range(len(catalog)))
        self._index = LuceneIndex.open_or_build(((p.asin, p.document) for p in products), folder)
        self._catalog = catalog

    def __call__(self, query: str, k: int) -> Sequence[int]:
        numbers = (self._catalog.number(asin) for asin, _ in self._index.search(query, k))
        return [number for number in numbers if number is not None]
