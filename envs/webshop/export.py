"""Export of products to the published data files, for custom catalogs and tests of any size."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from .product import Product


class Entries(NamedTuple):
    """Entries of a product in the product, attribute and human instruction files."""

    product: dict[str, Any]
    mined: dict[str, Any]
    human: list[dict[str, Any]]


def published_entries(product: Product) -> Entries:
    """Return a product in the published schema, which `product.parse_product` reads."""
    options = {
        name: [{"value": value, "image": product.images.get(value)} for value in values]
        for name, values in product.options.items()
    }
    entry = {
        "asin": product.asin,
        "name": product.title,
        "full_description": product.description,
        "small_description": list(product.bullets),
        "pricing": " - ".join(f"${price}" for price in product.prices),
        "images": [product.image],
        "category": product.category,
        "query": product.query,
        "product_category": product.product_category,
        "customization_options": options or "",
    }
    mined: dict[str, Any] = {"attributes": list(product.attributes)}
    if product.instruction is not None:
        mined["instruction"] = product.instruction
        mined["instruction_attributes"] = list(product.instruction_attributes)
    human = [
        {
            "asin": product.asin,
            "instruction": instruction.text,
            "instruction_attributes": list(instruction.attributes),
            "instruction_options": list(instruction.options),
        }
        for instruction in product.human
    ]
    return Entries(entry, mined, human)


def write_data_files(products: Iterable[Product], folder: Path) -> None:
    """Write `items_shuffle.json`, `items_ins_v2.json` and `items_human_ins.json`, streaming the products."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("items_shuffle.json", "items_ins_v2.json", "items_human_ins.json")
    shuffle, mined, human = ((folder / name).open("w", encoding="utf-8") for name in names)
    with shuffle, mined, human:
        shuffle.write("[")
        mined.write("{")
        human.write("{")
        instructed = 0
        for count, product in enumerate(products):
            entries = published_entries(product)
            comma = ",\n" if count else "\n"
            shuffle.write(comma + json.dumps(entries.product))
            mined.write(f"{comma}{json.dumps(product.asin)}: {json.dumps(entries.mined)}")
            if entries.human:
                separator = ",\n" if instructed else "\n"
                human.write(f"{separator}{json.dumps(product.asin)}: {json.dumps(entries.human)}")
                instructed += 1
        shuffle.write("\n]\n")
        mined.write("\n}\n")
        human.write("\n}\n")
