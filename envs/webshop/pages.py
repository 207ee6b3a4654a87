"""Pages of the shop as lists of text nodes, and their text observations, without any HTML."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from .goals import Goal
from .product import Product
from .session import Session

SUB_PAGES = ("Description", "Features", "Reviews", "Attributes")
BROWSING = frozenset({"back to search", "< prev", "next >", *(name.lower() for name in SUB_PAGES)})
"""Names of the buttons that only open pages, in lower case."""
PRODUCTS_PER_PAGE = 10

_HTML_SPACE = " \n\t\f\r"
_TOJSON = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&'"})


class Node(NamedTuple):
    """Piece of visible text: plain text, a button, the label of an option's value, or a link to a product."""

    kind: Literal["text", "button", "label", "link"]
    text: str


class Clickable(NamedTuple):
    """Target of a click.

    Attributes:
        kind: A button, a link to a product, or a value of an option.
        product: Number of the product that a link leads to; -1 for other kinds.
        option: Name of the option that a value belongs to; empty for other kinds.
    """

    kind: Literal["button", "link", "option"]
    product: int = -1
    option: str = ""


def to_json(value: object) -> str:
    """Return JSON as Flask's `tojson` filter writes it: with sorted keys, and safe inside HTML."""
    return json.dumps(value, sort_keys=True).translate(_TOJSON)


class Page(NamedTuple):
    """Page that is open in a session, with its contents.

    Attributes:
        session: The session.
        goal: Goal of the session.
        product: Product of the page, or None.
        results: Products of a results page, in order; empty on other pages.
        show_attrs: If True, item pages have an "Attributes" button.
    """

    session: Session
    goal: Goal
    product: Product | None
    results: Sequence[Product]
    show_attrs: bool

    @property
    def url(self) -> str:
        """Address of the page in the original's site."""
        return self.session.url(self.product.asin if self.product else "")

    @property
    def buttons(self) -> list[str]:
        """Names of the buttons, in page order."""
        kind = self.session.kind
        if kind == "start":
            return ["Search"]
        if kind == "results":
            return ["Back to Search", *(["< Prev"] if (self.session.page or 0) > 1 else []), "Next >"]
        if kind == "item":
            subs = SUB_PAGES if self.show_attrs else SUB_PAGES[:3]
            return ["Back to Search", "< Prev", *subs, "Buy Now"]
        return ["Back to Search", "< Prev"] if kind == "sub" else []

    def clickables(self) -> dict[str, Clickable]:
        """Return the targets of clicks by name in lower case.

        If several targets share a name, the last one counts, at the position of the first: an option's value hides
        a button.
        """
        names = {button.lower(): Clickable("button") for button in self.buttons}
        if self.session.kind == "results":
            numbers = self.session.results
            for number, product in zip(numbers, self.results, strict=True):
                names[product.asin.lower()] = Clickable("link", product=number)
        elif self.session.kind == "item" and self.product:
            for option, values in self.product.options.items():
                for value in values:
                    names[value] = Clickable("option", option=option)
        return names

    @property
    def has_search_bar(self) -> bool:
        """True on the start page, the only one with a search bar."""
        return self.session.kind == "start"

    # ------------------------------------------------------------------ text

    def nodes(self) -> list[Node]:
        """Return the visible text in page order."""
        return [node for node in _BUILDERS[self.session.kind](self) if node.text]

    def text(self) -> str:
        """Return the `text` observation: stripped nodes joined by `[SEP]`."""
        return " [SEP] ".join([node.text.strip() for node in self.nodes()])

    def text_rich(self) -> str:
        """Return the `text_rich` observation: one node per line, with marks around clickable and clicked nodes."""
        url = self.url
        visited = {self.results[i].asin for i, n in enumerate(self.session.results) if n in self.session.visited}
        clicked: list[str] = []
        lines: list[str] = []
        for kind, text in self.nodes():
            if kind == "text":
                lines.append(text)
            elif kind == "button":
                lines.append(f"[button] {text} [button_]")
            elif kind == "link":
                mark = "clicked button" if text in visited else "button"
                lines.append(f"\n[{mark}] {text} [{mark}_]")
            elif f'"{text}"' in url:  # The original's test; the name of another option can match too.
                lines.append(f"  [clicked button] {text} [clicked button_]")
                clicked.append(f"You have clicked {text}.")
            else:
                lines.append(f"  [button] {text} [button_]")
        return "\n".join([*reversed(clicked), *lines, ""])


def _plain(text: str) -> Node:
    """Return a text node as an HTML parser produces it.

    Text of only white space becomes one space, or empty if it contains a line break.
    """
    if text and not text.strip(_HTML_SPACE):
        text = "" if "\n" in text else " "
    return Node("text", text)


def _start(page: Page) -> list[Node]:
    return [
        Node("text", "WebShop"),
        Node("text", "Instruction: "),
        _plain(page.goal.instruction_text),
        Node("button", "Search"),
    ]


def _head(page: Page) -> list[Node]:
    return [Node("text", "Instruction:"), _plain(page.goal.instruction_text)]


def _results(page: Page) -> list[Node]:
    back, *turns = (Node("button", button) for button in page.buttons)
    nodes = [*_head(page), back, Node("text", f"Page {page.session.page} (Total results: {page.session.total})")]
    nodes += turns
    for product in page.results:
        nodes += (Node("link", product.asin), _plain(product.title), Node("text", product.price_tag))
    return nodes


def _item(page: Page) -> list[Node]:
    product = page.product
    assert product is not None
    buttons = [Node("button", button) for button in page.buttons]
    nodes = [*_head(page), *buttons[:2]]
    for name, values in product.options.items():
        nodes.append(_plain(name))
        nodes += [Node("label", value) for value in values]
    nodes += (_plain(product.title), Node("text", f"Price: {product.price_tag}"), Node("text", "Rating: N.A."))
    return nodes + buttons[2:]


def _sub(page: Page) -> list[Node]:
    product = page.product
    assert product is not None
    nodes = [*_head(page), *(Node("button", button) for button in page.buttons)]
    if page.session.sub == "Description":
        nodes.append(_plain(product.description))
    elif page.session.sub == "Features":
        nodes += [_plain(f" {bullet}") for bullet in product.bullets]
    elif page.session.sub == "Attributes":
        nodes += [_plain(f" {attribute}") for attribute in product.attributes]
        nodes += [_plain(product.category), _plain(product.query), _plain(product.product_category)]
    return nodes


def _done(page: Page) -> list[Node]:
    """Return the score page, on which the original's text environment leaves most values as `None`."""
    product = page.product
    assert product is not None
    lines = f"""Thank you for shopping with us!
Your code:{" "}
None
 (Paste it in your MTurk interface.)
Purchased
asin
{product.asin}
options
{to_json(dict(page.session.options))}
attrs
None
category
None
query
None
product category
None
Target
asin
options
attrs
price upper
instuction text
category
product category
query
Goal{" "}
None
Reward
Your score (min 0.0, max 1.0)
{page.session.reward}
Reward Details{" "}
None"""
    return [Node("text", line) for line in lines.split("\n")]


_BUILDERS: dict[str, Callable[[Page], list[Node]]] = {
    "start": _start,
    "results": _results,
    "item": _item,
    "sub": _sub,
    "done": _done,
}
