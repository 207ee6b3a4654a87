"""The catalogue: every product of a shop with its search index, parsed once and memory-mapped ever after.

The published files are JSON, up to 1.18 million products. On first use they are streamed into a folder of the
cache: one packed record per product, the columns that goals and searches scan, and the search index. Opening such
a folder takes milliseconds at any size, and processes share its pages.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError, DataError
from ..retrieval.lucene_bm25 import BM25Index
from ..retrieval.lucene_bm25.index import PackedStrings
from .product import Product

FORMAT = 3
"""Version of the cached form; a change makes every catalogue be built anew."""


class Catalogue:
    """The products of a shop, read from a folder that `build` wrote.

    Attributes:
        low, high: the lowest and highest price of every product; `high` is NaN where there is one price.
        synthetic: numbers of the products with a synthetic instruction.
        combinations: for each of those, how many combinations of option values there are.
        human: for each human instruction with attributes, the product's number; `human_place` its place there.
        longest_page: no page of this shop shows more characters than this and the instruction together.
        index: the search index over all products.
    """

    def __init__(self, folder: Path) -> None:
        try:
            meta: dict[str, Any] = json.loads((folder / "catalogue.json").read_text())
            columns = {
                name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in meta["columns"]
            }
        except (OSError, ValueError, KeyError) as error:
            raise DataError(folder, f"not a whole catalogue ({error}); delete the folder.") from error
        self.folder = folder
        self.low: NDArray[np.float64] = columns["low"]
        self.high: NDArray[np.float64] = columns["high"]
        self.synthetic: NDArray[np.int32] = columns["synthetic"]
        self.combinations: NDArray[np.int64] = columns["combinations"]
        self.human: NDArray[np.int32] = columns["human"]
        self.human_place: NDArray[np.int32] = columns["human_place"]
        self.longest_page: int = meta["longest_page"]
        self.attribute_ids: NDArray[np.int32] = columns["attribute_ids"]
        self.attribute_ends: NDArray[np.int64] = columns["attribute_ends"]
        self.asins = PackedStrings(columns["asins"], columns["asin_ends"])
        self._asin_order: NDArray[np.int32] = columns["asin_order"]
        self._categories: NDArray[np.int32] = columns["category"]
        self._queries: NDArray[np.int32] = columns["query"]
        self._category_names: list[str] = meta["categories"]
        self._query_names = PackedStrings(columns["query_names"], columns["query_name_ends"])
        self._records = memoryview(columns["records"].data)
        self._ends: NDArray[np.int64] = columns["record_ends"]
        self._index: BM25Index | None = None
        self.product = lru_cache(maxsize=4096)(self._load)
        """The product of a number (0 … len - 1); recently used ones are kept decoded."""

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def index(self) -> BM25Index:
        if self._index is None:
            self._index = BM25Index.load(self.folder / "index")
        return self._index

    def _load(self, number: int) -> Product:
        start = int(self._ends[number - 1]) if number else 0
        return Product.load(bytes(self._records[start : int(self._ends[number])]))

    def number(self, asin: str) -> int | None:
        """The number of the product with this asin, or None."""
        low, high = 0, len(self._asin_order)
        while low < high:
            middle = (low + high) // 2
            if self.asins[int(self._asin_order[middle])] < asin:
                low = middle + 1
            else:
                high = middle
        if low < len(self._asin_order) and self.asins[int(self._asin_order[low])] == asin:
            return int(self._asin_order[low])
        return None

    def in_category(self, name: str) -> list[int]:
        """Numbers of the products of a category, in order."""
        if name not in self._category_names:
            return []
        found: list[int] = np.flatnonzero(self._categories == self._category_names.index(name)).tolist()
        return found

    def with_query(self, query: str) -> list[int]:
        """Numbers of the products that were collected under a query, in order."""
        names = list(self._query_names)
        if query not in names:
            return []
        found: list[int] = np.flatnonzero(self._queries == names.index(query)).tolist()
        return found

    # ------------------------------------------------------------------ building

    @classmethod
    def build(
        cls, products: Iterable[Product], folder: Path, progress: Callable[[int], None] | None = None
    ) -> Catalogue:
        """Write a catalogue into `folder`, whole or not at all, and open it.

        Two processes may build the same folder at once; the first to finish wins.

        Args:
            progress: called now and then with the number of products so far.
        """
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix="building-", dir=folder.parent))
        try:
            columns = _Columns()
            with (fresh / "records.bin").open("wb") as records:
                documents = ((p.asin, p.document) for p in columns.follow(products, records.write))
                index = BM25Index.build(documents, folder=fresh / "index", progress=progress)
            if not len(index):
                raise ConfigurationError("a shop needs at least one product; the product file has none to offer.")
            columns.save(fresh)
            fresh.chmod(0o755)
            try:
                fresh.rename(folder)
            except OSError:
                if not (folder / "catalogue.json").exists():
                    raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return cls(folder)


class _Columns:
    """What `Catalogue` keeps of every product besides its record, gathered as the products pass by."""

    def __init__(self) -> None:
        self.low, self.high = array("d"), array("d")
        self.category, self.query = array("i"), array("i")
        self.record_ends = array("q")
        self.synthetic, self.combinations = array("i"), array("q")
        self.human, self.human_place = array("i"), array("i")
        self.attribute_ids, self.attribute_ends = array("i"), array("q")
        self.asins: list[str] = []
        self._longest = self._longest_title = 0
        self._categories: dict[str, int] = {}
        self._queries: dict[str, int] = {}
        self._attributes: dict[str, int] = {}

    def follow(self, products: Iterable[Product], write: Callable[[bytes], Any]) -> Iterator[Product]:
        for product in products:
            number = len(self.asins)
            record = product.dump()
            write(record)
            self.record_ends.append(len(record) + (self.record_ends[-1] if number else 0))
            self.asins.append(product.asin)
            self.low.append(product.prices[0])
            self.high.append(product.prices[1] if len(product.prices) > 1 else float("nan"))
            self.category.append(self._categories.setdefault(product.category, len(self._categories)))
            self.query.append(self._queries.setdefault(product.query, len(self._queries)))
            self._measure(product)
            if product.instruction is not None:
                self.synthetic.append(number)
                count = 1
                for values in product.options.values():
                    count *= len(values)
                self.combinations.append(count)
                ids = self._attributes
                self.attribute_ids.extend(ids.setdefault(a, len(ids)) for a in product.instruction_attributes)
                self.attribute_ends.append(len(self.attribute_ids))
            for place, instruction in enumerate(product.human):
                if instruction.attributes:
                    self.human.append(number)
                    self.human_place.append(place)
            yield product

    def _measure(self, product: Product) -> None:
        """Note how long this product's pages can get: every option marked as clicked is the worst case."""
        options = sum(
            len(name) + 8 + sum(2 * len(value) + 80 for value in values)
            for name, values in product.options.items()
        )
        texts = (product.description, product.category, product.query, product.product_category)
        lists = (*product.bullets, *product.attributes)
        shown = options + len(product.title) + sum(map(len, texts)) + sum(len(text) + 8 for text in lists)
        self._longest = max(self._longest, shown)
        self._longest_title = max(self._longest_title, len(product.title))

    def save(self, folder: Path) -> None:
        records = np.memmap(folder / "records.bin", dtype=np.uint8, mode="r")
        asin_blob, asin_ends = PackedStrings.pack(self.asins)
        query_blob, query_ends = PackedStrings.pack(self._queries)
        order = np.array(sorted(range(len(self.asins)), key=self.asins.__getitem__), dtype=np.int32)
        columns: Mapping[str, Any] = {
            "low": np.array(self.low),
            "high": np.array(self.high),
            "category": np.array(self.category, dtype=np.int32),
            "query": np.array(self.query, dtype=np.int32),
            "record_ends": np.array(self.record_ends, dtype=np.int64),
            "records": records,
            "synthetic": np.array(self.synthetic, dtype=np.int32),
            "combinations": np.array(self.combinations, dtype=np.int64),
            "human": np.array(self.human, dtype=np.int32),
            "human_place": np.array(self.human_place, dtype=np.int32),
            "attribute_ids": np.array(self.attribute_ids, dtype=np.int32),
            "attribute_ends": np.array(self.attribute_ends, dtype=np.int64),
            "asins": asin_blob,
            "asin_ends": asin_ends,
            "asin_order": order,
            "query_names": query_blob,
            "query_name_ends": query_ends,
        }
        for name, values in columns.items():
            np.save(folder / f"{name}.npy", values)
        del records
        os.unlink(folder / "records.bin")
        meta = {
            "format": FORMAT,
            "columns": list(columns),
            "categories": list(self._categories),
            "longest_page": max(self._longest, 10 * (self._longest_title + 120)),
        }
        (folder / "catalogue.json").write_text(json.dumps(meta))
