"""A page as HTML: for the `html` observation and for browsers, from the same templates."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .goals import NO_LIMIT, Goal
from .pages import Page
from .product import Product

TEMPLATES = Path(__file__).parent / "templates"

_PARTS = (
    ("Attributes", "r_att", "w_att"),
    ("Options", "r_option", "w_option"),
    ("Price", "r_price", "w_price"),
)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    # Everything is escaped: titles, queries and options are other people's text.
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=False,
        auto_reload=False,
    )


def render(template: str, **values: Any) -> str:
    """A template of this shop, filled in."""
    return _environment().get_template(template).render(**values)


def _picture(product: Product | None, chosen: dict[str, str]) -> str:
    """The image of the option value chosen last that has one, else the product's own."""
    if product is None:
        return ""
    for value in reversed(chosen.values()):
        if image := product.images.get(value):
            return image
    return product.image


def page_html(page: Page, *, here: str = "", base: str = "", message: str = "") -> str:
    """A page as HTML.

    Args:
        here: the address that its forms and links go to.
        base: what the addresses of style sheet and script begin with.
        message: something to tell the customer on the start page.
    """
    chosen = dict(page.session.options)
    return render(
        f"{page.session.kind}.html",
        page=page,
        here=here,
        base=base,
        message=message,
        chosen=chosen,
        picture=_picture(page.product, chosen),
    )


def score_html(page: Page, parts: dict[str, Any], tagger: str, price: float, base: str = "") -> str:
    """The score page of a visit that ended in a purchase.

    Args:
        parts: the reward's parts (see `reward.score_purchase`).
        tagger: name of the tagger that found the titles' nouns.
        price: what the product cost.
    """
    rows = [("Kind of product", parts["r_type"], "× all")]
    rows += [
        (name, float(parts[met]), f"{100 * parts[weight]:.0f} %") for name, met, weight in _PARTS if met in parts
    ]
    assert page.product is not None
    return render(
        "score.html",
        page=page,
        base=base,
        rows=rows,
        comparison=_comparison(page.product, page.goal, dict(page.session.options), price),
        tagger=tagger,
    )


def _comparison(product: Product, goal: Goal, chosen: dict[str, str], price: float) -> list[tuple[str, str, str]]:
    wanted = goal.goal_options
    options = wanted if isinstance(wanted, dict) else {}
    limit = "any" if goal.price_upper == NO_LIMIT else f"below ${goal.price_upper:.2f}"
    return [
        ("Product", f"{product.title} ({product.asin})", f"{goal.name} ({goal.asin})"),
        ("Category", product.product_category, goal.product_category),
        ("Attributes", ", ".join(product.attributes), ", ".join(goal.attributes)),
        (
            "Options",
            ", ".join(f"{name}: {value}" for name, value in chosen.items()) or "none",
            ", ".join([f"{name}: {value}" for name, value in options.items()] or list(wanted)) or "any",
        ),
        ("Price", f"${price:.2f}", limit),
    ]
