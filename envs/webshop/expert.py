"""Expert planner: a short sequence of actions that ends in the best purchase for a goal."""

from __future__ import annotations

from collections.abc import Iterator

from .pages import PRODUCTS_PER_PAGE
from .session import Session
from .shop import UNUSED_RNG, Shop, Turn, Unanswerable, parse_action

MAX_CLICKS = 3
"""Maximum number of actions that `best_purchase` tries: back to the results, to a product, and the purchase."""
_TURNS = ("< prev", "next >")


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


def _act(shop: Shop, session: Session, action: str) -> Turn:
    """Return the result of an action; one whose result is random, or that the shop cannot answer, is invalid."""
    try:
        return shop.act(session, action, UNUSED_RNG)
    except Unanswerable:
        return Turn(session, False)


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
        try:
            found = list(shop.find(tuple((words or "").split(" ")), UNUSED_RNG))
        except Unanswerable:  # For example `<c>` where the category has no name.
            continue
        if target in found:
            yield found.index(target) // PRODUCTS_PER_PAGE, action


def _complete_path(shop: Shop, session: Session, path: list[str], target: int) -> list[str] | None:
    """Return a path extended by the clicks on options and the purchase, or None if it misses the target."""
    actions = []
    for action in path:
        session, valid, _ = _act(shop, session, action)
        if not valid:
            return None
        actions.append(action)
    if session.kind != "item" or session.product != target:
        return None
    options = shop.goal(session.goal).goal_options
    for value in options.values() if isinstance(options, dict) else options:
        if value in dict(session.options).values():
            continue
        after, valid, _ = _act(shop, session, f"click[{value}]")
        if valid and after.kind == "item":
            session = after
            actions.append(f"click[{value}]")
    _, _, purchase = _act(shop, session, "click[buy now]")
    return [*actions, "click[buy now]"] if purchase else None


def best_plan(shop: Shop, session: Session, steps: float) -> tuple[float, list[str]]:
    """Return the best score that a known plan reaches within some steps, and the shortest such plan.

    Known are the expert's plan, with the options that there is time to choose, and if that is not the full score,
    the purchases within a few clicks (see `best_purchase`).

    Args:
        shop: The shop.
        session: Session with the open page.
        steps: Number of actions that are left; may be infinite.

    Returns:
        The score and the plan; (0.0, []) if no known plan that fits buys anything of a positive score.
    """
    actions = plan(shop, session) or []
    actions = [*actions[: int(min(len(actions), steps)) - 1], *actions[-1:]]
    score = _score(shop, session, actions)
    if score < 1.0:
        near = best_purchase(shop, session, int(min(steps, MAX_CLICKS)))
        score, actions = max((score, actions), near, key=lambda one: (one[0], -len(one[1])))
    return (score, actions) if score else (0.0, [])


def _score(shop: Shop, session: Session, actions: list[str]) -> float:
    """Return the score of the purchase with which actions end; 0 if they end otherwise."""
    purchase = None
    for action in actions:
        session, _, purchase = _act(shop, session, action)
    return purchase.reward if purchase else 0.0


def best_purchase(shop: Shop, session: Session, steps: int) -> tuple[float, list[str]]:
    """Return the best score of a purchase with few clicks, without a search.

    All sequences of clicks on products, on pages of results, on "< prev" and on "buy now" are tried, and each
    single option of the open product.

    Args:
        shop: The shop.
        session: Session with the open page.
        steps: Number of actions that are left; at most `MAX_CLICKS` of them are tried.

    Returns:
        The score, and the fewest actions to it; (0.0, []) if no purchase with a positive score is found.
    """
    found = _purchases(shop, session, min(steps, MAX_CLICKS))
    score, actions = max(found, key=lambda one: (one[0], -len(one[1])), default=(0.0, ()))
    return score, list(actions)


def _purchases(
    shop: Shop, session: Session, steps: int, taken: tuple[str, ...] = ()
) -> Iterator[tuple[float, tuple[str, ...]]]:
    """Yield the positive scores of purchases within some steps, each with its actions."""
    for name, target in shop.page(session).clickables().items():
        buys = name == "buy now"
        leads_on = target.kind == "link" or name in _TURNS or (target.kind == "option" and not taken)
        if steps < (1 if buys else 2) or not (buys or leads_on):
            continue
        action = f"click[{name}]"
        after, valid, purchase = _act(shop, session, action)
        if purchase is not None and purchase.reward > 0.0:
            yield purchase.reward, (*taken, action)
        elif purchase is None and valid:
            yield from _purchases(shop, after, steps - 1, (*taken, action))
