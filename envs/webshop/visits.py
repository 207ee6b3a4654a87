"""Who is in the shop, and where: customers of the web server and the pages they have been to.

A page is a state, and states are immutable: every page a customer opens gets a number, and its address names that
number. The browser's back button, a second tab and a reload therefore all show what they showed.
"""

from __future__ import annotations

import random
import secrets
from collections import OrderedDict
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

from .reward import Purchase
from .session import Session
from .shop import Shop


class Stop(NamedTuple):
    """One page a customer has been to; `purchase` on a score page."""

    session: Session
    purchase: Purchase | None = None


class Visits:
    """All visits of a server.

    Args:
        shop: the shop.
        customers: how many customers are remembered; the one idle longest is forgotten first.
        pages: how many pages of each are remembered.
    """

    def __init__(self, shop: Shop, customers: int = 10_000, pages: int = 500) -> None:
        self.shop = shop
        self._customers = customers
        self._pages = pages
        self._visits: OrderedDict[str, OrderedDict[int, Stop]] = OrderedDict()
        self._lock = Lock()
        self._weights = [high - low for low, high in pairwise(shop.goals.cumulative)]
        self._random = random.SystemRandom()

    def enter(self, goal: int | None = None) -> str:
        """A new customer, with this goal or one drawn by weight.

        Returns:
            The customer's key: 192 bits, not to be guessed.
        """
        if goal is None:
            goal = self._random.choices(range(len(self._weights)), self._weights)[0]
        key = secrets.token_urlsafe(24)
        # The session's own name shows in addresses of the text world; it is not the key.
        first = Stop(Session(f"web_{goal}", goal))
        with self._lock:
            self._visits[key] = OrderedDict({0: first})
            while len(self._visits) > self._customers:
                self._visits.popitem(last=False)
        return key

    def latest(self, key: str) -> int | None:
        """The number of the page a customer opened last; None for a stranger."""
        with self._lock:
            visit = self._visits.get(key)
            return None if visit is None else next(reversed(visit))

    def stop(self, key: str, number: int) -> Stop | None:
        """A page of a customer, or None."""
        with self._lock:
            visit = self._visits.get(key)
            if visit is None:
                return None
            self._visits.move_to_end(key)
            return visit.get(number)

    def add(self, key: str, stop: Stop) -> int:
        """Note a page that a known customer has gone to, and return its number."""
        with self._lock:
            visit = self._visits[key]
            number: int = next(reversed(visit)) + 1
            visit[number] = stop
            while len(visit) > self._pages:
                visit.popitem(last=False)
            return number
