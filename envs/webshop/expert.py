"""Expert planner: a short sequence of actions that ends in the best purchase for a goal."""

from __future__ import annotations

from collections.abc import Iterator

from .pages import PRODUCTS_PER_PAGE
from .session import Session
from .shop import UNUSED_RNG, Shop, parse_action


def plan(shop: Shop, session: Session) -> list[str] | None:
    """Return actions from a session's page to the purchase of the goal's product with the wanted options.

    Every plan is simulated before it is returned: the original identifies pages by words in their address, so some
    searches lead to unexpected pages.

    Returns:
        The plan, or None if the session has ended or no candidate reaches the product.
    """
    if session.kind == "done":
        return None
    target = shop.catalog.number(shop.goal(session.goal).asin)
    if target is None:
        return None
    for path in _candidate_paths(shop, session, target):
        actions = _complete_path(shop, session, path, target)
        if actions is not None:
            return actions
    return None


def _candidate_paths(shop: Shop, session: Session, target: int) -> Iterator[list[str]]:
    """Yield candidate action sequences to the target's item page, shortest first."""
    asin = shop.catalog.product(target).asin.lower()
    if session.product == target:
        yield ["click[< prev]"] if session.kind == "sub" else []
    if session.kind == "results" and target in session.results:
        yield [f"click[{asin}]"]
    opening = [] if session.kind == "start" else ["click[back to search]"]
    for pages, search in sorted(_searches(shop, session, target), key=lambda found: found[0]):
        yield [*opening, search, *["click[next >]"] * pages, f"click[{asin}]"]


def _searches(shop: Shop, session: Session, target: int) -> Iterator[tuple[int, str]]:
    """Yield searches that find the target, each with the number of result pages to skip."""
    goal = shop.goal(session.goal)
    for query in (goal.words, goal.name, f"{goal.query} {goal.name}", f"<q> {goal.query}", f"<c> {goal.category}"):
        action = f"search[{' '.join(query.replace('[', ' ').replace(']', ' ').split())}]"
        _, words = parse_action(action)
        found = list(shop.find(tuple((words or "").split(" ")), UNUSED_RNG))
        if target in found:
            yield found.index(target) // PRODUCTS_PER_PAGE, action


def _complete_path(shop: Shop, session: Session, path: list[str], target: int) -> list[str] | None:
    """Return a path extended by the clicks on options and the purchase, or None if it misses the target."""
    actions = []
    for action in path:
        session, valid, _ = shop.act(session, action, UNUSED_RNG)
        if not valid:
            return None
        actions.append(action)
    if session.kind != "item" or session.product != target:
        return None
    options = shop.goal(session.goal).goal_options
    for value in options.values() if isinstance(options, dict) else options:
        if value in dict(session.options).values():
            continue
        after, valid, _ = shop.act(session, f"click[{value}]", UNUSED_RNG)
        if valid and after.kind == "item":
            session = after
            actions.append(f"click[{value}]")
    _, _, purchase = shop.act(session, "click[buy now]", UNUSED_RNG)
    return [*actions, "click[buy now]"] if purchase else None
