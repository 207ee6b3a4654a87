"""Sources of a shop's products: the published data files or the built-in generator."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from ..data import cache_folder
from ..errors import DataError
from ..retrieval.progress import Progress
from .generator import BUILTIN_PRODUCTS, GENERATOR_VERSION, generate_products
from .json_stream import read_array, read_object
from .product import Product, parse_product
from .product_catalog import FORMAT, ProductCatalog

_log = logging.getLogger(__name__)

_STAGE = "Reading products"
_GENERATED = f"v{FORMAT}-generated{GENERATOR_VERSION}-"


class Sources(NamedTuple):
    """Paths of a shop's data files.

    Attributes:
        products: Product file.
        attributes: Attribute file.
        human: File of crowd-sourced instructions, or None.
    """

    products: Path
    attributes: Path
    human: Path | None

    @property
    def key(self) -> str:
        """Key of the files in the cache; it changes with the path, size or time of any of them."""
        parts = []
        for path in self:
            if path is not None:
                stat = path.stat()
                parts.append(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}")
        return blake2b("\n".join(parts).encode(), digest_size=10).hexdigest()


def find_sources(place: Path) -> Sources:
    """Find the data files in a folder by their published names, plain or gzipped.

    Of several product files the largest is used. Attribute and instruction files with the ending of the product
    file, such as `_1000`, take precedence over those without an ending.

    Args:
        place: Folder, or the product file itself.

    Raises:
        DataError: There is no product file or no attribute file.
    """
    folder = place if place.is_dir() else place.parent
    found = [p for p in folder.glob("items_shuffle*") if p.name.endswith((".json", ".json.gz"))]
    if folder != place:
        found = [p for p in found if p.name == place.name]
    if not found:
        raise DataError(place, "has no items_shuffle*.json(.gz); set data to the folder of WebShop's files.")
    products = max(found, key=lambda path: (path.stat().st_size, path.name))
    ending = products.name.removeprefix("items_shuffle").partition(".")[0]

    def companion(stem: str) -> Path | None:
        names = (f"{stem}{e}.json{z}" for e in (ending, "") for z in ("", ".gz"))
        return next((folder / name for name in names if (folder / name).is_file()), None)

    attributes = companion("items_ins_v2")
    if attributes is None:
        raise DataError(folder, f"has no items_ins_v2{ending}.json beside {products.name}; add that file.")
    return Sources(products, attributes, companion("items_human_ins"))


def read_products(
    sources: Sources, num_products: int | None, scratch: Path, on_read: Callable[[float], None] | None = None
) -> Iterator[Product]:
    """Yield the products of the data files in file order, without repeats, in bounded memory.

    Args:
        sources: Data files.
        num_products: Number of entries of the product file to read; None for all.
        scratch: Folder for a temporary table of the attribute file, whose order is arbitrary.
        on_read: Called with the fraction of the product file that has been read, from 0 to 1.

    Raises:
        DataError: A file is truncated or malformed.
    """
    table = sqlite3.connect(scratch / "attributes.sqlite", isolation_level=None)
    try:
        table.execute("PRAGMA journal_mode=OFF")
        table.execute("PRAGMA synchronous=OFF")
        table.execute("CREATE TABLE mined (asin TEXT PRIMARY KEY, entry TEXT) WITHOUT ROWID")
        table.execute("BEGIN")
        table.executemany(
            "INSERT OR REPLACE INTO mined VALUES (?, ?)",
            ((asin, json.dumps(entry)) for asin, entry in read_object(sources.attributes)),
        )
        table.execute("COMMIT")
        human = dict(read_object(sources.human)) if sources.human else {}
        seen: set[str] = set()
        for index, raw in enumerate(read_array(sources.products, on_read)):
            if index == num_products:
                return
            try:
                asin = raw["asin"]
                if asin == "nan" or len(asin) > 10 or asin in seen:
                    continue
                seen.add(asin)
                row = table.execute("SELECT entry FROM mined WHERE asin = ?", (asin,)).fetchone()
                yield parse_product(raw, json.loads(row[0]) if row else None, human.get(asin))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                reason = f"no field {error}" if isinstance(error, KeyError) else error
                raise DataError(
                    sources.products, f"product {index} does not have the expected form: {reason}."
                ) from error
    finally:
        table.close()


def _catalogs_folder() -> Path:
    return cache_folder() / "webshop"


def _open_cached(folder: Path) -> ProductCatalog | None:
    """Open a catalog of the cache; return None if there is none, or after a damaged one has been deleted."""
    if not folder.exists():
        return None
    try:
        return ProductCatalog(folder)
    except DataError as error:
        _log.warning("The catalog is built again: %s", error)
        shutil.rmtree(folder)
        return None


def open_catalog(
    sources: Sources, num_products: int | None = None, progress: Progress | None = None
) -> ProductCatalog:
    """Open the catalog of data files, after building it on first use.

    Args:
        sources: Data files.
        num_products: Number of entries of the product file to read; None for all.
        progress: Called from time to time while the catalog is built.

    Raises:
        DataError: A file is missing, truncated or malformed.
    """
    folder = _catalogs_folder() / f"v{FORMAT}-{sources.key}-{num_products or 'all'}"
    catalog = _open_cached(folder)
    if catalog is not None:
        return catalog
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="reading-", dir=folder.parent) as scratch:
        fraction = 0.0

        def on_read(read: float) -> None:
            nonlocal fraction
            fraction = read

        def on_indexed(done: int) -> None:
            if progress:
                total = round(done / fraction) if fraction else None  # An estimate: the file has no count.
                progress(_STAGE, done, total)

        return ProductCatalog.build(
            read_products(sources, num_products, Path(scratch), on_read), folder, on_indexed
        )


def builtin_catalog(num_products: int | None = None, progress: Progress | None = None) -> ProductCatalog:
    """Open the generated catalog, after building it on first use."""
    count = num_products or BUILTIN_PRODUCTS
    folder = _catalogs_folder() / f"{_GENERATED}{count}"
    catalog = _open_cached(folder)
    if catalog is not None:
        return catalog

    def on_indexed(done: int) -> None:
        if progress:
            progress(_STAGE, done, count)

    return ProductCatalog.build(generate_products(count), folder, on_indexed)


def is_builtin(catalog: ProductCatalog) -> bool:
    """Return True for the generated catalog."""
    return catalog.folder.name.startswith(_GENERATED)
