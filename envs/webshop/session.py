"""A customer's session: which page is open and how it was reached. An immutable value."""

from __future__ import annotations

import json
from typing import Literal, NamedTuple

PageKind = Literal["start", "results", "item", "sub", "done"]

BASE_URL = "http://127.0.0.1:3000"


class Session(NamedTuple):
    """A whole session.

    Attributes:
        id: the session's name; part of every url.
        goal: index of the goal.
        kind: the page that is open.
        keywords: the words of the last search, or None before it.
        page: the number of the results page last open, or None.
        product: number of the open product, or None.
        options: (name, value) pairs chosen for it, in the order in which names were first chosen.
        sub: which sub-page is open: "Description", "Features", "Reviews" or "Attributes"; else empty.
        results: numbers of the products on the results page.
        total: how many products the search found in all.
        visited: numbers of the products looked at since the start page.
        actions: how often what was done since the start page, by the original's names.
        reward: what the last purchase was worth.
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

    def counted(self, action: str) -> tuple[tuple[str, int], ...]:
        """`actions` with one more of this."""
        counts = dict(self.actions)
        counts[action] = counts.get(action, 0) + 1
        return tuple(counts.items())

    def chosen(self, name: str, value: str) -> tuple[tuple[str, str], ...]:
        """`options` with this value for this name."""
        options = dict(self.options)
        options[name] = value
        return tuple(options.items())

    def url(self, asin: str) -> str:
        """The address of the open page, as the original writes it (nothing is quoted).

        Args:
            asin: of the open product, if there is one.
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
