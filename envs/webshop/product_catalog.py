"""Product catalog of a shop: records, columns and search index in a memory-mapped folder.

The published files are JSON with up to 1.18 million products. On first use they are streamed into a folder of the
cache, which holds one packed record per product, the columns that goals and searches scan, and the search index.
Opening such a folder takes milliseconds at any size, and processes share its pages in memory.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checksums import verify_checksums, write_checksums
from ..errors import ConfigurationError, DataError
from ..files import replace_folder
from ..retrieval.lucene_bm25 import BM25Index
from ..retrieval.lucene_bm25.index import PackedStrings
from .product import Product

FORMAT = 4
"""Version of the cached form; catalogs of another version are built again."""

CATALOG_FILE = "catalogue.json"
"""File of a catalog's folder with its format, column names and categories; written last."""

_FIX = "delete the folder, which is then built again."


class ProductCatalog:
    """Read-only products of a shop, numbered from 0, in a folder that `build` wrote.

    Args:
        folder: Folder of the catalog.

    Attributes:
        low: Lowest price of every product; shape (products,).
        high: Highest price of every product, NaN for a product with a single price; shape (products,).
        synthetic: Numbers of the products with a synthetic instruction.
        combinations: Number of combinations of option values of each product in `synthetic`.
        human: Product number of every human instruction with attributes.
        human_place: Index of that instruction within its product's `human`.
        attribute_ids: Ids of the attributes of all synthetic instructions, concatenated.
        attribute_ends: End of each product of `synthetic` in `attribute_ids`.
        asins: Amazon number of every product.
        digest: Digest of the products' records, in their order.
        longest_page: Upper bound on the characters of a page of this shop, its instruction excluded.

    Raises:
        DataError: The folder is not a complete catalog, or a file of it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        verify_checksums(folder, _FIX)
        try:
            meta: dict[str, Any] = json.loads((folder / CATALOG_FILE).read_text(encoding="utf-8"))
            columns = {
                name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in meta["columns"]
            }
        except (OSError, ValueError, KeyError) as error:
            raise DataError(folder, f"not a complete catalog ({error}); {_FIX}") from error
        self.folder = folder
        self.low: NDArray[np.float64] = columns["low"]
        self.high: NDArray[np.float64] = columns["high"]
        self.synthetic: NDArray[np.int32] = columns["synthetic"]
        self.combinations: NDArray[np.int64] = columns["combinations"]
        self.human: NDArray[np.int32] = columns["human"]
        self.human_place: NDArray[np.int32] = columns["human_place"]
        self.longest_page: int = meta["longest_page"]
        self.digest: str = meta["digest"]
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
        """Return the product with a number from 0 to len - 1, from a cache of recently decoded products."""

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def index(self) -> BM25Index:
        """Search index over all products, loaded on first use."""
        if self._index is None:
            self._index = BM25Index.load(self.folder / "index")
        return self._index

    def _load(self, number: int) -> Product:
        start = int(self._ends[number - 1]) if number else 0
        return Product.load(bytes(self._records[start : int(self._ends[number])]))

    def number(self, asin: str) -> int | None:
        """Return the number of the product with this asin, or None."""
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
        """Return the numbers of the products of a category, ascending."""
        if name not in self._category_names:
            return []
        found: list[int] = np.flatnonzero(self._categories == self._category_names.index(name)).tolist()
        return found

    def with_query(self, query: str) -> list[int]:
        """Return the numbers of the products that were collected under a query, ascending."""
        number = self._query_numbers.get(query)
        found: list[int] = [] if number is None else np.flatnonzero(self._queries == number).tolist()
        return found

    @cached_property
    def _query_numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._query_names)}

    # ------------------------------------------------------------------ building

    @classmethod
    def build(
        cls, products: Iterable[Product], folder: Path, progress: Callable[[int], None] | None = None
    ) -> ProductCatalog:
        """Write a catalog into a folder and open it.

        Several processes may build the same folder at once; the first to finish wins. An interrupted build leaves
        no folder.

        Args:
            products: Products in catalog order, consumed once.
            folder: Folder to create.
            progress: Called from time to time with the number of products indexed so far.

        Raises:
            ConfigurationError: There are no products.
        """
        with replace_folder(folder, overwrite=False) as part:
            columns = _Columns()
            with (part / "records.bin").open("wb") as records:
                documents = ((p.asin, p.document) for p in columns.collect(products, records.write))
                index = BM25Index.build(documents, folder=part / "index", progress=progress)
            if not len(index):
                raise ConfigurationError("a shop needs at least one product, but the product file has none.")
            columns.save(part)
            write_checksums(part)
        return cls(folder)


class _Columns:
    """Columns of a `ProductCatalog` under construction."""

    def __init__(self) -> None:
        self.low, self.high = array("d"), array("d")
        self.category, self.query = array("i"), array("i")
        self.record_ends = array("q")
        self.synthetic, self.combinations = array("i"), array("q")
        self.human, self.human_place = array("i"), array("i")
        self.attribute_ids, self.attribute_ends = array("i"), array("q")
        self.asins: list[str] = []
        self._longest = self._longest_title = 0
        self._digest = blake2b(digest_size=12)
        self._categories: dict[str, int] = {}
        self._queries: dict[str, int] = {}
        self._attributes: dict[str, int] = {}

    def collect(self, products: Iterable[Product], write: Callable[[bytes], Any]) -> Iterator[Product]:
        """Yield the products unchanged, after adding each one to the columns and writing its record."""
        for product in products:
            number = len(self.asins)
            record = product.dump()
            write(record)
            self._digest.update(record)
            self.record_ends.append(len(record) + (self.record_ends[-1] if number else 0))
            self.asins.append(product.asin)
            self.low.append(product.prices[0])
            self.high.append(product.prices[1] if len(product.prices) > 1 else float("nan"))
            self.category.append(self._categories.setdefault(product.category, len(self._categories)))
            self.query.append(self._queries.setdefault(product.query, len(self._queries)))
            self._update_longest(product)
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

    def _update_longest(self, product: Product) -> None:
        """Update the bound on page lengths; a product's longest page marks every option as clicked."""
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
        """Write all columns into `folder`, which already has the records in `records.bin`."""
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
            "digest": self._digest.hexdigest(),
            "longest_page": max(self._longest, 10 * (self._longest_title + 120)),
        }
        (folder / CATALOG_FILE).write_text(json.dumps(meta), encoding="utf-8")
