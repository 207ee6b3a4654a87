"""What a purchase is worth (Yao, Chen, Yang and Narasimhan, "WebShop", NeurIPS 2022, section 3.1 and its code).

    reward = r_type · (attributes met + options met + price met) / (attributes + options + 1)

Quirks of the published code are kept, because published scores have them: see `options_met` and `title_score`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from .fuzzy import token_sets_alike
from .goals import Goal
from .product import Product
from .tagger import Tagger

_COLOURS = """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream
crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather
indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha
multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal
rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise
violet walnut wheat white wine yellow
"""
COLOURS = tuple(_COLOURS.split())
"""In the order in which they are tried; the benchmark's list (MIT licence)."""


class Purchase(NamedTuple):
    """A purchase's reward in [0, 1], and its parts under the benchmark's names."""

    reward: float
    parts: dict[str, Any]


def _plain_colour(value: str | tuple[str, str]) -> str:
    """The first colour of the list that the value contains, else the value as text.

    A pair *contains* only what equals one of its two strings, so `("color", "navy blue")` stays as it is.
    """
    for colour in COLOURS:
        if colour in value:
            return colour
    return str(value)


def attributes_met(product: Product, goal: Goal) -> int:
    """How many of the goal's attributes the product has: in its list (fuzzily), or in its texts (literally)."""
    texts = (product.title.lower(), " ".join(product.bullets).lower(), product.description.lower())
    return sum(
        any(token_sets_alike(own, wanted) for own in product.attributes) or any(wanted in text for text in texts)
        for wanted in goal.attributes
    )


def options_met(chosen: Iterable[str], goal: Goal) -> int:
    """How many of the goal's options are among the chosen values, whatever options those belong to.

    A synthetic goal's option is compared as the pair (name, value), as published: 6 % of the synthetic goals of
    the 1,000-product set cannot be met in full by any choice. See `_plain_colour`.
    """
    wanted = goal.goal_options.items() if isinstance(goal.goal_options, dict) else goal.goal_options
    values = [_plain_colour(value) for value in chosen]
    return sum(any(token_sets_alike(value, _plain_colour(one)) for value in values) for one in wanted)


def title_score(product: Product, goal: Goal, tagger: Tagger) -> float:
    """Nouns common to both titles, each counted once, over the goal title's nouns, with repeats (as published)."""
    wanted = tagger.nouns(goal.name)
    if not wanted:
        return 0.2
    return len(set(tagger.nouns(product.title)) & set(wanted)) / len(wanted)


def score_purchase(product: Product, goal: Goal, price: float, chosen: Iterable[str], tagger: Tagger) -> Purchase:
    """The reward of buying a product at a price with these option values.

    The parts `w_*` are the shares of the denominator; `r_option` is missing where the goal has no options, and
    `r_price` where its limit is not positive.
    """
    query_match = product.query == goal.query
    common = {part.strip() for part in product.product_category.split("›")} & {
        part.strip() for part in goal.product_category.split("›")
    }
    category_match = len(common) >= 2
    title = title_score(product, goal, tagger)
    kind = 1.0 if query_match or category_match or title > 0.2 else 0.5
    if title < 0.1:
        kind = 0.1
    if title == 0.0:
        kind = 0.0

    affordable = price <= goal.price_upper if goal.price_upper > 0 else None
    attributes, options = attributes_met(product, goal), options_met(chosen, goal)
    wanted, optional = len(goal.attributes), len(goal.goal_options)
    parts_wanted = wanted + optional + 1
    reward = kind * ((attributes + options + bool(affordable)) / parts_wanted)
    parts: dict[str, Any] = {
        "r_type": kind,
        "r_att": attributes / wanted if wanted else 0.0,
        "w_att": wanted / parts_wanted,
        "query_match": query_match,
        "category_match": category_match,
        "title_score": title,
    }
    if optional:
        parts |= {"r_option": options / optional, "w_option": optional / parts_wanted}
    if affordable is not None:
        parts |= {"r_price": affordable, "w_price": 1 / parts_wanted}
    return Purchase(reward, parts)
