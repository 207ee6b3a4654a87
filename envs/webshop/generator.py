"""The built-in catalogue: made-up products in the published schema, so that the shop works with no data at all.

Products come in families that share a query, a category and a pool of attributes, and differ in brand, attributes,
options and price; a goal therefore has near misses on the same results page, and one product that fits in full.
Product n is the same in a catalogue of any size.
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
"""How many products the catalogue has unless `num_products` says otherwise."""

GENERATOR_VERSION = 1
"""Part of the cache's key: raise it when what is generated changes."""


class Family(NamedTuple):
    """A kind of product.

    Attributes:
        query: the search under which it is collected; also what instructions call it.
        noun: what its titles call it.
        uses: endings of its titles.
        attributes: what its products may have; instructions ask for some.
        options: option name → possible values.
        prices: the cheapest and the dearest.
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
    """Brands and families.

    No option value there hides a colour word inside another word ("peppermint"): such a goal could not be met in
    full, by a quirk of the published reward that `reward.options_met` keeps.
    """
    source = asset("webshop_families.json")
    tables = json.loads(source.read_text(encoding="utf-8"))
    return tuple(tables["brands"]), tuple(Family(**family) for family in tables["families"])


def make_product(number: int) -> Product:
    """Product `number` of the built-in catalogue."""
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
    """An instruction as a person would put it."""
    wanted = tuple(rng.choice(values) for values in options.values())
    opening = rng.choice(("i am looking for", "i would like", "can you find me", "i need"))
    features = " and ".join(asked[:2])
    return (HumanInstruction(f"{opening} {family.query} with {features}, {', '.join(wanted)}", asked[:2], wanted),)


def _asin(number: int) -> str:
    """Ten characters that look like the published ones: G, then six of a hash, then the number in base 36."""
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
    """The first `count` products."""
    return map(make_product, range(count))
