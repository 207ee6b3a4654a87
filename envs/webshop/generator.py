"""Generator of the built-in catalog: synthetic products in the published schema, for shops without data.

Products belong to families. The products of a family share a query, a category and a pool of attributes, and
differ in brand, attributes, options and price. A goal therefore has one product that fits in full and near misses
on the same results page. Product n is the same in a catalog of any size.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from ...assets import asset
from ..seeding import stable_seed
from .product import HumanInstruction, Product

BUILTIN_PRODUCTS = 400
"""Default number of products of the generated catalog."""

GENERATOR_VERSION = 1
"""Part of the cache key and of every seed; raise it when the generated products change."""


class Family(NamedTuple):
    """Family of similar products.

    Attributes:
        category: Top-level category.
        query: Search under which the products are collected; also their name in instructions.
        path: Path in the product taxonomy.
        noun: Name of the products in titles.
        uses: Endings of titles.
        attributes: Pool of attributes, some of which instructions ask for.
        options: Possible values of every option by option name.
        prices: Lowest and highest price in whole dollars.
    """

    category: str
    query: str
    path: str
    noun: str
    uses: list[str]
    attributes: list[str]
    options: dict[str, list[str]]
    prices: list[int]


@lru_cache(maxsize=1)
def _tables() -> tuple[tuple[str, ...], tuple[Family, ...]]:
    """Return the brands and families of the packaged tables.

    No option value in the tables contains a color word inside another word ("peppermint"): by a quirk of the
    published reward (see `reward.options_met`), such a goal could not be met in full.
    """
    source = asset("webshop_families.json")
    tables = json.loads(source.read_text(encoding="utf-8"))
    return tuple(tables["brands"]), tuple(Family(**family) for family in tables["families"])


def make_product(number: int) -> Product:
    """Return product `number` of the built-in catalog."""
    rng = random.Random(stable_seed("webshop product", GENERATOR_VERSION, number))
    brands, families = _tables()
    family = families[number % len(families)]
    attributes = tuple(rng.sample(family.attributes, k=rng.randint(3, 4)))
    brand = rng.choice(brands)
    titled = ", ".join(word.title() for word in attributes[:2])
    title = f"{brand} {family.noun} {rng.choice(family.uses)}, {titled}"
    options = {
        name: tuple(sorted(rng.sample(values, k=rng.randint(2, min(5, len(values)))), key=values.index))
        for name, values in family.options.items()
    }
    low = rng.randint(family.prices[0], family.prices[1]) - 0.01
    prices = (low, round(low * rng.uniform(1.1, 1.6), 2)) if rng.random() < 0.25 else (low,)
    asked = attributes[: rng.randint(2, len(attributes))]
    article = family.noun.lower()
    others = " and ".join(attributes[2:])
    return Product(
        asin=_asin(number),
        title=title,
        description=(
            f"The {brand} {article} is made for those who look for {family.query} with {others}."
            f" Designed by {brand} and checked by hand before it ships."
        ),
        bullets=(
            f"{attributes[0].capitalize()}: what you would expect of {family.query} by {brand}.",
            *(f"{attribute.capitalize()} for everyday comfort." for attribute in attributes[1:]),
            f"Available in {', '.join(f'{len(values)} choices of {name}' for name, values in options.items())}.",
        ),
        prices=prices,
        image="",
        category=family.category,
        query=family.query,
        product_category=family.path,
        options=options,
        images={value: None for values in options.values() for value in values},
        attributes=attributes,
        instruction=f"Find me {asked[0]} {family.query} with {', '.join(asked[1:])}",
        instruction_attributes=asked,
        human=_human(family, asked, options, rng) if number % 3 == 0 else (),
    )


def _human(
    family: Family, asked: tuple[str, ...], options: dict[str, tuple[str, ...]], rng: random.Random
) -> tuple[HumanInstruction]:
    """Return an instruction in the style of the crowd-sourced ones."""
    wanted = tuple(rng.choice(values) for values in options.values())
    opening = rng.choice(("i am looking for", "i would like", "can you find me", "i need"))
    features = " and ".join(asked[:2])
    return (HumanInstruction(f"{opening} {family.query} with {features}, {', '.join(wanted)}", asked[:2], wanted),)


def _asin(number: int) -> str:
    """Return a ten-character id in the style of the published ones: G, part of a hash, the number in base 36."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    code = ""
    rest = number
    while rest or len(code) < 4:
        rest, digit = divmod(rest, 36)
        code = digits[digit] + code
    hashed = stable_seed("webshop asin", number)
    head = ""
    while len(head) + len(code) < 9:
        hashed, digit = divmod(hashed, 36)
        head += digits[digit]
    return f"G{head}{code}"


def generate_products(count: int) -> Iterator[Product]:
    """Yield the first `count` products."""
    return map(make_product, range(count))
