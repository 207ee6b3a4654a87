"""Session of a customer: the open page and the path to it, as an immutable value."""

from __future__ import annotations

import json
from types import NoneType
from typing import Literal, NamedTuple, get_args

PageKind = Literal["start", "results", "item", "sub", "done"]

BASE_URL = "http://127.0.0.1:3000"
"""Address of the original's site in its recordings."""


class Session(NamedTuple):
    """State of a customer's visit.

    Attributes:
        id: Name of the session; part of every URL.
        goal: Index of the goal.
        kind: Kind of the open page.
        keywords: Words of the last search, or None before the first.
        page: Number of the last results page (the first is 1), or None before the first search.
        product: Number of the open product, or None.
        options: Chosen (name, value) pairs of that product, in the order in which names were first chosen.
        sub: Open sub-page: "Description", "Features", "Reviews" or "Attributes"; empty on other pages.
        results: Numbers of the products on the results page.
        total: Number of products that the search found.
        visited: Numbers of the products opened since the start page.
        actions: (name, count) pairs of the actions since the start page, under the original's names.
        reward: Reward of the purchase; 0 before.
    """

    id: str
    goal: int
    kind: PageKind = "start"
    keywords: tuple[str, ...] | None = None
    page: int | None = None
    product: int | None = None
    options: tuple[tuple[str, str], ...] = ()
    sub: str = ""
    results: tuple[int, ...] = ()
    total: int = 0
    visited: frozenset[int] = frozenset()
    actions: tuple[tuple[str, int], ...] = ()
    reward: float = 0.0

    def count_action(self, action: str) -> tuple[tuple[str, int], ...]:
        """Return `actions` with one more of `action`."""
        counts = dict(self.actions)
        counts[action] = counts.get(action, 0) + 1
        return tuple(counts.items())

    def choose_option(self, name: str, value: str) -> tuple[tuple[str, str], ...]:
        """Return `options` with a value chosen for a name."""
        options = dict(self.options)
        options[name] = value
        return tuple(options.items())

    def url(self, asin: str) -> str:
        """Return the address of the open page as the original writes it, without quoting.

        Args:
            asin: Amazon number of the open product; empty if there is none.
        """
        if self.kind == "start":
            return f"{BASE_URL}/{self.id}"
        options = dict(self.options)
        if self.kind == "done":
            return f"{BASE_URL}/done/{self.id}/{asin}/{options}"
        words = "+".join(self.keywords or ())
        if self.kind == "results":
            return f"{BASE_URL}/search_results/{self.id}/{words}/{self.page}"
        if self.kind == "item":
            return f"{BASE_URL}/item_page/{self.id}/{asin}/{words}/{self.page}/{json.dumps(options)}"
        return f"{BASE_URL}/item_sub_page/{self.id}/{asin}/{words}/{self.page}/{self.sub}/{options}"


_KINDS = frozenset(get_args(PageKind))
_FIELD_TYPES = frozenset(
    (str, int, str, *where, tuple, str, tuple, int, frozenset, tuple, float)
    for where in ((NoneType, NoneType, NoneType), (tuple, int, NoneType), (tuple, int, int))
)
"""Types of a session's fields on the start page, on a results page, and on the pages of a product."""


def has_field_types(session: Session) -> bool:
    """Return True if every field of a session, and every element of its sequences, has the declared type."""
    if tuple(map(type, session)) not in _FIELD_TYPES or session.kind not in _KINDS:
        return False
    numbers = {*map(type, session.results), *map(type, session.visited)}
    words = {*map(type, session.keywords or ())}
    for name, value in session.options:
        words |= {type(name), type(value)}
    for name, count in session.actions:
        words.add(type(name))
        numbers.add(type(count))
    return words <= {str} and numbers <= {int} and session.keywords != ()
