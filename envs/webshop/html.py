"""HTML of pages, from the same templates for the `html` observation and for browsers."""

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
    # Titles, searches and options are untrusted text, so everything is escaped.
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=False,
        auto_reload=False,
    )


def render(template: str, **values: Any) -> str:
    """Return a rendered template."""
    return _environment().get_template(template).render(**values)


def _picture(product: Product | None, chosen: dict[str, str]) -> str:
    """Return the image of the last chosen option value that has one, else the product's image."""
    if product is None:
        return ""
    for value in reversed(chosen.values()):
        if image := product.images.get(value):
            return image
    return product.image


def page_html(page: Page, *, here: str = "", base: str = "", message: str = "") -> str:
    """Return the HTML of a page.

    Args:
        page: The page.
        here: Address of the page, to which its forms and links are relative.
        base: Prefix of the addresses of style sheet and script.
        message: Message to display on the start page.
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
    """Return the HTML of the score page after a purchase.

    Args:
        page: Page after the purchase.
        parts: Parts of the reward; see `reward.score_purchase`.
        tagger: Name of the noun tagger.
        price: Price of the product in dollars.
        base: Prefix of the addresses of style sheet and script.
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
    """Return (property, bought, wanted) rows that compare a purchase with its goal."""
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
