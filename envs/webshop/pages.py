"""What a page shows, as a list of text nodes, and the observations made of it. No HTML is made or parsed here."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from .goals import Goal
from .product import Product
from .session import Session

SUB_PAGES = ("Description", "Features", "Reviews", "Attributes")
PRODUCTS_PER_PAGE = 10

_HTML_SPACE = " \n\t\f\r"
_TOJSON = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&'"})


class Node(NamedTuple):
    """A piece of visible text, and what it is: plain text, a button, an option's label, or a link to a product."""

    kind: Literal["text", "button", "label", "link"]
    text: str


class Clickable(NamedTuple):
    """What a click on a name reaches: a button, the link to a product (by number), or a value of an option."""

    kind: Literal["button", "link", "option"]
    product: int = -1
    option: str = ""


def to_json(value: object) -> str:
    """JSON as Flask's `tojson` filter writes it: sorted keys, safe inside HTML."""
    return json.dumps(value, sort_keys=True).translate(_TOJSON)


class Page(NamedTuple):
    """A session's open page with what it shows.

    Attributes:
        product: the open product, or None.
        results: asin and product of each result on the page.
        show_attrs: whether item pages have an "Attributes" button.
    """

    session: Session
    goal: Goal
    product: Product | None
    results: Sequence[Product]
    show_attrs: bool

    @property
    def url(self) -> str:
        return self.session.url(self.product.asin if self.product else "")

    @property
    def buttons(self) -> list[str]:
        """The buttons in page order."""
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
        """Everything that can be clicked, by its name in lower case.

        Of things with one name the last counts, at the first one's place: an option's value hides a button.
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
        return self.session.kind == "start"

    # ------------------------------------------------------------------ text

    def nodes(self) -> list[Node]:
        """The page's visible text in order."""
        return [node for node in _BUILDERS[self.session.kind](self) if node.text]

    def text(self) -> str:
        """The `text` observation: stripped nodes joined by `[SEP]`."""
        return " [SEP] ".join([node.text.strip() for node in self.nodes()])

    def text_rich(self) -> str:
        """The `text_rich` observation: a node a line, with marks around what can be and what was clicked."""
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
            elif f'"{text}"' in url:  # so the original tells; a value may be hit by another's name
                lines.append(f"  [clicked button] {text} [clicked button_]")
                clicked.append(f"You have clicked {text}.")
            else:
                lines.append(f"  [button] {text} [button_]")
        return "\n".join([*reversed(clicked), *lines, ""])


def _plain(text: str) -> Node:
    """A text node as an HTML parser leaves it: only white space shrinks to one space, or to nothing if it has a
    line break."""
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
    """The original's text environment fills in no more than this; the rest of its score page reads `None`."""
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
