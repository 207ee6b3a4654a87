"""Products: parsing of the published schema, and the compact records of the catalog."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

NO_PRICE = 100.0
"""Price in dollars of a product whose entry has none."""

NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""Attributes of a product that the attribute file does not list."""


class HumanInstruction(NamedTuple):
    """Crowd-sourced instruction for a product."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]


class Product(NamedTuple):
    """Product of a shop.

    Attributes:
        asin: Amazon number, unique within a catalog.
        title: Title as displayed.
        description: Text of the description page.
        bullets: Texts of the features page.
        prices: One price, or the ends of a price range, in dollars.
        image: Address of the image; empty if there is none.
        category: One of the benchmark's top-level categories.
        query: Search under which the product was collected, in lower case.
        product_category: Path in the product taxonomy, separated by "›".
        options: Values of every option by option name, in file order with repeats; all in lower case.
        images: Image address of every option value, or None.
        attributes: Attributes mined from the product's texts.
        instruction: Text of the synthetic instruction, or None.
        instruction_attributes: Attributes that the synthetic instruction asks for.
        human: Crowd-sourced instructions.
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
        """Price as displayed, such as `$5.99` or `$5.99 to $8.5`."""
        return " to ".join(f"${price}" for price in self.prices)

    @property
    def document(self) -> str:
        """Text to index for search: title, description, first feature and options."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        first = self.bullets[0] if self.bullets else ""
        return f"{self.title} {self.description} {first} {options}".lower()

    def dump(self) -> bytes:
        """Return a compact record, which `load` reads back."""
        return json.dumps(tuple(self), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")

    @classmethod
    def load(cls, record: bytes) -> Product:
        """Return the product of a record that `dump` wrote."""
        fields = json.loads(record.decode("utf-8", "surrogatepass"))
        fields[3], fields[4], fields[11], fields[13] = map(tuple, (fields[3], fields[4], fields[11], fields[13]))
        fields[9] = {name: tuple(values) for name, values in fields[9].items()}
        fields[14] = tuple(HumanInstruction(t, tuple(a), tuple(o)) for t, a, o in fields[14])
        return cls(*fields)


def parse_prices(pricing: str | None) -> tuple[float, ...]:
    """Parse a price string into at most two prices, one per dollar sign.

    Args:
        pricing: Price string such as "$3.50 - $8"; None or a string without a dollar sign gives `NO_PRICE`.

    Raises:
        ValueError: No number follows a dollar sign.
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
    """Parse a product from its entries in the three data files.

    Args:
        raw: Element of `items_shuffle*.json`.
        mined: Entry in `items_ins_v2*.json` (attributes and synthetic instruction), or None.
        human: Entry in `items_human_ins*.json`, or None.

    Raises:
        KeyError: A field is missing.
        TypeError, AttributeError: A field has another type.
        ValueError: A price cannot be parsed.
    """
    features = raw["small_description"]
    if not isinstance(features, list):
        features = [features]
    for field in ("asin", "name", "category", "query", "product_category"):
        _text(raw[field], field)
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
    instruction = mined.get("instruction")
    return Product(
        asin=raw["asin"],
        title=raw["name"],
        description=_text(raw["full_description"] or "", "full_description"),
        bullets=_texts([text or "" for text in features], "small_description"),
        prices=parse_prices(raw.get("pricing")),
        image=(raw.get("images") or [""])[0] or "",
        category=raw["category"],
        query=raw["query"].lower().strip(),
        product_category=raw["product_category"],
        options=options,
        images=images,
        attributes=_texts(mined["attributes"], "attributes") if "attributes" in mined else NO_ATTRIBUTES,
        instruction=None if instruction is None else _text(instruction, "instruction"),
        instruction_attributes=_texts(mined.get("instruction_attributes") or [], "instruction_attributes"),
        human=tuple(
            HumanInstruction(
                entry["instruction"].strip("."),
                _texts(entry["instruction_attributes"], "instruction_attributes"),
                _texts(entry["instruction_options"], "instruction_options"),
            )
            for entry in human or ()
        ),
    )


def _text(value: Any, field: str) -> str:
    """Return a field that must be text, else raise a TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{field} is {value!r:.60}, not text")
    return value


def _texts(values: Any, field: str) -> tuple[str, ...]:
    """Return a field that must be a list of texts, else raise a TypeError."""
    if not isinstance(values, list):
        raise TypeError(f"{field} is {values!r:.60}, not a list")
    return tuple(_text(value, field) for value in values)
