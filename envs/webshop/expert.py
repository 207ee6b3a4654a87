"""The expert: the shortest way to the goal's product and options that a customer could take."""

from __future__ import annotations

import random
from collections.abc import Iterator

from .pages import PRODUCTS_PER_PAGE
from .session import Session
from .shop import Shop, parse_action

_NO_LUCK = random.Random(0)


def plan(shop: Shop, session: Session) -> list[str] | None:
    """Actions from a session's page to the purchase of the goal's product with the options asked for.

    Every plan is tried out before it is given: the original tells pages apart by words in their address, so that
    an unlucky search can lead astray. None if no plan gets there, or the purchase is made.
    """
    if session.kind == "done":
        return None
    target = shop.catalogue.number(shop.goal(session.goal).asin)
    if target is None:
        return None
    for way in _ways(shop, session, target):
        actions = _follow(shop, session, way, target)
        if actions is not None:
            return actions
    return None


def _ways(shop: Shop, session: Session, target: int) -> Iterator[list[str]]:
    """Ways to the target's page, the most promising first."""
    asin = shop.catalogue.product(target).asin.lower()
    if session.product == target:
        yield ["click[< prev]"] if session.kind == "sub" else []
    if session.kind == "results" and target in session.results:
        yield [f"click[{asin}]"]
    opening = [] if session.kind == "start" else ["click[back to search]"]
    for turns, search in sorted(_searches(shop, session, target), key=lambda found: found[0]):
        yield [*opening, search, *["click[next >]"] * turns, f"click[{asin}]"]


def _searches(shop: Shop, session: Session, target: int) -> Iterator[tuple[int, str]]:
    """Searches that find the target, and how many pages on."""
    goal = shop.goal(session.goal)
    for query in (goal.words, goal.name, f"{goal.query} {goal.name}", f"<q> {goal.query}", f"<c> {goal.category}"):
        action = f"search[{' '.join(query.replace('[', ' ').replace(']', ' ').split())}]"
        _, words = parse_action(action)
        found = list(shop.find(tuple((words or "").split(" ")), _NO_LUCK))
        if target in found:
            yield found.index(target) // PRODUCTS_PER_PAGE, action


def _follow(shop: Shop, session: Session, way: list[str], target: int) -> list[str] | None:
    """The way with the options' clicks and the purchase at its end; None if it does not lead there."""
    actions = []
    for action in way:
        session, valid, _ = shop.act(session, action, _NO_LUCK)
        if not valid:
            return None
        actions.append(action)
    if session.kind != "item" or session.product != target:
        return None
    options = shop.goal(session.goal).goal_options
    for value in options.values() if isinstance(options, dict) else options:
        if value in dict(session.options).values():
            continue
        after, valid, _ = shop.act(session, f"click[{value}]", _NO_LUCK)
        if valid and after.kind == "item":
            session = after
            actions.append(f"click[{value}]")
    _, _, purchase = shop.act(session, "click[buy now]", _NO_LUCK)
    return [*actions, "click[buy now]"] if purchase else None
