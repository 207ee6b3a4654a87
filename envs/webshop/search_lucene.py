"""The shop's search by Lucene itself; see `envs.lucene_jvm`."""

from __future__ import annotations

from collections.abc import Sequence

from ..retrieval.lucene_jvm import LuceneIndex
from .product_catalog import Catalogue


class Pyserini:
    """A Lucene index of a catalogue, kept beside it."""

    def __init__(self, catalogue: Catalogue) -> None:
        folder = catalogue.folder / "lucene"
        if folder.exists():
            self._index = LuceneIndex(folder)
        else:
            products = (catalogue.product(number) for number in range(len(catalogue)))
            self._index = LuceneIndex.build(((p.asin, p.document) for p in products), folder)
        self._catalogue = catalogue

    def __call__(self, query: str, k: int) -> Sequence[int]:
        numbers = (self._catalogue.number(asin) for asin, _ in self._index.search(query, k))
        return [number for number in numbers if number is not None]
