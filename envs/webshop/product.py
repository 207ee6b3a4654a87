"""One product: from the data files' schema to what the shop shows, indexes and scores."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

NO_PRICE = 100.0
"""What a product without a price costs."""

NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""The attributes of a product of which the attribute file has no list."""


class HumanInstruction(NamedTuple):
    """One crowd-sourced instruction for a product."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]


class Product(NamedTuple):
    """One product as the shop uses it.

    Attributes:
        prices: one number, or the low and the high end of a range.
        options: option name → values, in file order, repeats kept; names and values are lower case.
        images: option value → image address (or None).
        instruction: the synthetic instruction's text, or None.
        instruction_attributes: the attributes that instruction asks for.
    """

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    prices: tuple[float, ...]
    image: str
    category: str
    query: str
    product_category: str
    options: dict[str, tuple[str, ...]]
    images: dict[str, str | None]
    attributes: tuple[str, ...]
    instruction: str | None = None
    instruction_attributes: tuple[str, ...] = ()
    human: tuple[HumanInstruction, ...] = ()

    @property
    def price_tag(self) -> str:
        """The price as shown: `$5.99` or `$5.99 to $8.5`."""
        return " to ".join(f"${price}" for price in self.prices)

    @property
    def document(self) -> str:
        """The text that the search engine indexes: title, description, first feature and options."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        first = self.bullets[0] if self.bullets else ""
        return f"{self.title} {self.description} {first} {options}".lower()

    def dump(self) -> bytes:
        """A compact record for the catalogue's file; `load` reads it back."""
        return json.dumps(tuple(self), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")

    @classmethod
    def load(cls, record: bytes) -> Product:
        """The product of a record that `dump` wrote."""
        fields = json.loads(record.decode("utf-8", "surrogatepass"))
        fields[3], fields[4], fields[11], fields[13] = map(tuple, (fields[3], fields[4], fields[11], fields[13]))
        fields[9] = {name: tuple(values) for name, values in fields[9].items()}
        fields[14] = tuple(HumanInstruction(t, tuple(a), tuple(o)) for t, a, o in fields[14])
        return cls(*fields)


def parse_prices(pricing: str | None) -> tuple[float, ...]:
    """The prices in a price string: every part after a dollar sign, at most two.

    Raises:
        ValueError: a part holds no number.
    """
    parts = (pricing or "").split("$")[1:]
    if not parts:
        return (NO_PRICE,)
    try:
        return tuple(float(Decimal(re.sub(r"[^\d.]", "", part))) for part in parts)[:2]
    except InvalidOperation:
        raise ValueError(f"no price can be read from {pricing!r}") from None


def parse_product(
    raw: Mapping[str, Any], mined: Mapping[str, Any] | None, human: list[Mapping[str, Any]] | None
) -> Product:
    """A product from its entries in the three data files.

    Args:
        raw: the element of `items_shuffle*.json`.
        mined: its entry in `items_ins_v2*.json` (attributes, synthetic instruction), or None.
        human: its entry in `items_human_ins*.json`, or None.

    Raises:
        KeyError, TypeError, ValueError: a field is missing or of another type.
    """
    features = raw["small_description"]
    for field in ("asin", "name", "category", "query", "product_category"):
        if not isinstance(raw[field], str):
            raise TypeError(f"{field} is {raw[field]!r}, not text")
    options: dict[str, tuple[str, ...]] = {}
    images: dict[str, str | None] = {}
    for name, contents in (raw.get("customization_options") or {}).items():
        if contents is None:
            continue
        values = []
        for content in contents:
            value = content["value"].strip().replace("/", " | ").lower()
            values.append(value)
            images[value] = content.get("image")
        options[name.lower()] = tuple(values)
    mined = mined or {}
    return Product(
        asin=raw["asin"],
        title=raw["name"],
        description=raw["full_description"] or "",
        bullets=tuple(text or "" for text in features) if isinstance(features, list) else (features or "",),
        prices=parse_prices(raw.get("pricing")),
        image=(raw.get("images") or [""])[0] or "",
        category=raw["category"],
        query=raw["query"].lower().strip(),
        product_category=raw["product_category"],
        options=options,
        images=images,
        attributes=tuple(mined["attributes"]) if "attributes" in mined else NO_ATTRIBUTES,
        instruction=mined.get("instruction"),
        instruction_attributes=tuple(mined.get("instruction_attributes") or ()),
        human=tuple(
            HumanInstruction(
                entry["instruction"].strip("."),
                tuple(entry["instruction_attributes"]),
                tuple(entry["instruction_options"]),
            )
            for entry in human or ()
        ),
    )
