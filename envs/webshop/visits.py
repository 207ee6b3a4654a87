"""Visits of the web server's customers, as numbered pages.

A page is an immutable state. Every page that a customer opens gets a number, which is part of its address, so the
back button, a second tab and a reload of the browser all show the same page again.
"""

from __future__ import annotations

import random
import secrets
from collections import OrderedDict
from threading import Lock
from typing import NamedTuple

from .reward import Purchase
from .session import Session
from .shop import Shop


class Stop(NamedTuple):
    """Page that a customer has opened.

    Attributes:
        session: State of the page.
        purchase: The purchase on a score page, else None.
    """

    session: Session
    purchase: Purchase | None = None


class Visits:
    """Thread-safe store of the visits of all customers.

    Args:
        shop: Shop of the visits.
        customers: Maximum number of customers; the one that has been idle longest is dropped first.
        pages: Maximum number of pages per customer; the oldest is dropped first.
    """

    def __init__(self, shop: Shop, customers: int = 10_000, pages: int = 500) -> None:
        self.shop = shop
        self._customers = customers
        self._pages = pages
        self._visits: OrderedDict[str, OrderedDict[int, Stop]] = OrderedDict()
        self._lock = Lock()
        self._cumulative = shop.goals.cumulative[1:]
        self._rng = random.SystemRandom()

    def enter(self, goal: int | None = None) -> str:
        """Register a new customer.

        Args:
            goal: Index of the customer's goal; None draws one by weight.

        Returns:
            The customer's key, 192 random bits.
        """
        if goal is None:
            goal = self._rng.choices(range(len(self._cumulative)), cum_weights=self._cumulative)[0]
        key = secrets.token_urlsafe(24)
        # The id appears in addresses of the text environment, so it must not be the key.
        first = Stop(Session(f"web_{goal}", goal))
        with self._lock:
            self._visits[key] = OrderedDict({0: first})
            while len(self._visits) > self._customers:
                self._visits.popitem(last=False)
        return key

    def latest(self, key: str) -> int | None:
        """Return the number of the page that a customer opened last, or None for an unknown key."""
        with self._lock:
            visit = self._visits.get(key)
            return None if visit is None else next(reversed(visit))

    def stop(self, key: str, number: int) -> Stop | None:
        """Return a page of a customer, or None if the key or the number is unknown."""
        with self._lock:
            visit = self._visits.get(key)
            if visit is None:
                return None
            self._visits.move_to_end(key)
            return visit.get(number)

    def add(self, key: str, stop: Stop) -> int | None:
        """Add a page to the visit of a customer, and return its number; None for an unknown key."""
        with self._lock:
            visit = self._visits.get(key)
            if visit is None:
                return None
            number: int = next(reversed(visit)) + 1
            visit[number] = stop
            while len(visit) > self._pages:
                visit.popitem(last=False)
            return number
