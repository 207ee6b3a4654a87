"""Reward of a purchase (Yao, Chen, Yang and Narasimhan, "WebShop", NeurIPS 2022, section 3.1 and its code).

    reward = r_type · (attributes met + options met + price met) / (attributes + options + 1)

Quirks of the published code are kept because published scores depend on them; see `options_met` and `title_score`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from .fuzzy import token_sets_alike
from .goals import Goal
from .product import Product
from .tagger import Tagger

_COLORS = """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream
crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather
indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha
multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal
rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise
violet walnut wheat white wine yellow
"""
COLORS = tuple(_COLORS.split())
"""The benchmark's list of colors (see THIRD_PARTY_NOTICES), in the order in which they are matched."""


class Purchase(NamedTuple):
    """Score of a purchase.

    Attributes:
        reward: Reward in [0, 1].
        parts: Parts of the reward under the benchmark's names.
    """

    reward: float
    parts: dict[str, Any]


def _plain_color(value: str | tuple[str, str]) -> str:
    """Return the first color of the list that a value contains, else the value as text.

    A pair contains only strings that equal one of its elements, so `("color", "navy blue")` is unchanged.
    """
    for color in COLORS:
        if color in value:
            return color
    return str(value)


def attributes_met(product: Product, goal: Goal) -> int:
    """Count the goal's attributes that match one of the product's (fuzzily) or occur in its texts (literally)."""
    texts = (product.title.lower(), " ".join(product.bullets).lower(), product.description.lower())
    return sum(
        any(token_sets_alike(own, wanted) for own in product.attributes) or any(wanted in text for text in texts)
        for wanted in goal.attributes
    )


def options_met(chosen: Iterable[str], goal: Goal) -> int:
    """Count the goal's options that match a chosen value, whichever option that value belongs to.

    As in the published code, an option of a synthetic goal is compared as the pair (name, value); see
    `_plain_color`. Therefore no choice meets 6 % of the synthetic goals of the 1,000-product set in full.
    """
    wanted = goal.goal_options.items() if isinstance(goal.goal_options, dict) else goal.goal_options
    values = [_plain_color(value) for value in chosen]
    return sum(any(token_sets_alike(value, _plain_color(option)) for value in values) for option in wanted)


def title_score(product: Product, goal: Goal, tagger: Tagger) -> float:
    """Return the fraction of the goal title's nouns that the product's title shares, or 0.2 if it has none.

    As in the published code, shared nouns count once and the goal's nouns count with repeats.
    """
    wanted = tagger.nouns(goal.name)
    if not wanted:
        return 0.2
    return len(set(tagger.nouns(product.title)) & set(wanted)) / len(wanted)


def score_purchase(product: Product, goal: Goal, price: float, chosen: Iterable[str], tagger: Tagger) -> Purchase:
    """Return the reward of a purchase.

    Args:
        product: Product that was bought.
        goal: Goal of the customer.
        price: Price of the product in dollars.
        chosen: Chosen option values.
        tagger: Noun tagger of the title score.

    Returns:
        The reward and its parts. `w_*` are fractions of the denominator. `r_option` and `w_option` are missing if
        the goal has no options, `r_price` and `w_price` if its price limit is not positive.
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
