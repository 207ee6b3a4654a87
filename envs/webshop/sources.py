"""Where a shop's products come from: the published data files, or the built-in catalogue."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from ..data import cache_folder
from ..errors import DataError
from .generator import BUILTIN_PRODUCTS, GENERATOR_VERSION, generate_products
from .json_stream import read_array, read_object
from .product import Product, parse_product
from .product_catalog import FORMAT, Catalogue
from .progress import Progress


class Sources(NamedTuple):
    """The data files of a shop."""

    products: Path
    attributes: Path
    human: Path | None

    @property
    def key(self) -> str:
        """A name for what the files hold: it changes when one of them does."""
        parts = []
        for path in self:
            if path is not None:
                stat = path.stat()
                parts.append(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}")
        return blake2b("\n".join(parts).encode(), digest_size=10).hexdigest()


def find_sources(place: Path) -> Sources:
    """The data files in a folder, under the names that the benchmark publishes them by, plain or gzipped.

    Where there are several product files, the largest one, unless `place` names one itself. The others are those
    with the same ending, such as `_1000`, else those without one.

    Raises:
        DataError: no product or attribute file.
    """
    folder = place if place.is_dir() else place.parent
    found = [p for p in folder.glob("items_shuffle*") if p.name.endswith((".json", ".json.gz"))]
    if folder != place:
        found = [p for p in found if p.name == place.name]
    if not found:
        raise DataError(place, "no items_shuffle*.json(.gz) here; data= must name the folder of WebShop's files.")
    products = max(found, key=lambda path: (path.stat().st_size, path.name))
    ending = products.name.removeprefix("items_shuffle").partition(".")[0]

    def companion(stem: str) -> Path | None:
        names = (f"{stem}{e}.json{z}" for e in (ending, "") for z in ("", ".gz"))
        return next((folder / name for name in names if (folder / name).is_file()), None)

    attributes = companion("items_ins_v2")
    if attributes is None:
        raise DataError(folder, f"no items_ins_v2{ending}.json beside {products.name}; products need attributes.")
    return Sources(products, attributes, companion("items_human_ins"))


def read_products(
    sources: Sources, num_products: int | None, scratch: Path, watch: Callable[[float], None] | None = None
) -> Iterator[Product]:
    """The products of the data files in their order, without repeats; memory does not grow with their number.

    Args:
        num_products: read only so many entries of the product file; None for all.
        scratch: a folder for a temporary table of the attribute file, which may be in any order.
        watch: called with the share of the product file that has been read.
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
        for index, raw in enumerate(read_array(sources.products, watch)):
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
                what = f"no field {error}" if isinstance(error, KeyError) else error
                raise DataError(
                    sources.products, f"product {index} does not have the expected form: {what}."
                ) from error
    finally:
        table.close()


def _shelf() -> Path:
    return cache_folder() / "webshop"


def open_catalogue(
    sources: Sources, num_products: int | None = None, progress: Progress | None = None
) -> Catalogue:
    """The catalogue of data files, from the cache or built into it now.

    Raises:
        DataError: a file is missing, truncated or malformed.
    """
    folder = _shelf() / f"v{FORMAT}-{sources.key}-{num_products or 'all'}"
    if (folder / "catalogue.json").exists():
        return Catalogue(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="reading-", dir=folder.parent) as scratch:
        share = 0.0

        def watch(read: float) -> None:
            nonlocal share
            share = read

        def note(done: int) -> None:
            if progress:
                progress(done, share)

        return Catalogue.build(read_products(sources, num_products, Path(scratch), watch), folder, note)


def builtin_catalogue(num_products: int | None = None, progress: Progress | None = None) -> Catalogue:
    """The generated catalogue, from the cache or made now."""
    count = num_products or BUILTIN_PRODUCTS
    folder = _shelf() / f"v{FORMAT}-generated{GENERATOR_VERSION}-{count}"
    if (folder / "catalogue.json").exists():
        return Catalogue(folder)

    def note(done: int) -> None:
        if progress:
            progress(done, done / count)

    return Catalogue.build(generate_products(count), folder, note)
