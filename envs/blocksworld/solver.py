"""Optimal plans by a minimum set of detours, not by search through states.

Write M for the blocks that must move: those whose support is not the one their goal asks for, those in the way of
a block that the goal wants placed there or wants clear, and everything above a block of M. Some shortest plan
moves only blocks of M, each straight to its goal support (for good) or, once, to the table before that: take any
shortest plan, drop the moves of other blocks, and send every move that is not a block's last onto its goal support
to the table; no precondition is lost and no move is added. A shortest plan is therefore settled by the set D of
blocks that make the detour over the table, and its length is 2 (|M| + |D|).

D must break every circular wait. Let a block leave (L) and arrive (A), these being one event unless it is in D:

* a block leaves before the block under it does, and before anything else arrives there;
* a block arrives after its goal support has arrived.

A circle of waits can be cut only at a block that it enters by the arrival and leaves by the departure, so each
circle asks D for one of a few blocks; deepening over |D| and branching on the blocks of one uncut circle is exact.
This is the hitting-set view of Slaney and Thiébaux, "Blocks World revisited" (Artificial Intelligence 125, 2001),
extended here to goals that leave some supports open. The work grows exponentially only in |D|: PlanBench's 15
blocks take about a millisecond, towers of 30 about ten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from .rules import NOTHING, PICK_UP, PUT_DOWN, STACK, TABLE, UNSTACK, Action, Arrangement, Goal, held, reached
from .rules import successor as successor_of

_LEAVE, _ARRIVE = 0, 1
_Event = tuple[int, int]  # (block, _LEAVE or _ARRIVE)
_Edge = tuple[_Event, _Event]  # the first happens before the second


def optimal_plan(state: Arrangement, goal: Goal) -> list[Action] | None:
    """A shortest sequence of actions to the goal from any arrangement, a block in the hand included.

    Args:
        state: where to start.
        goal: atoms to reach.

    Returns:
        The plan (empty where the goal already holds), or None where the goal contradicts itself.
    """
    if contradiction(goal) is not None:
        return None
    if reached(goal, state):
        return []
    block = held(state)
    if block == NOTHING:
        return _from_empty_hand(state, goal)
    # The held block's next place is its goal support, if that is clear, or the table; never anywhere else.
    best: list[Action] | None = None
    supports = dict(goal.on)
    for drop in (Action(PUT_DOWN, block), Action(STACK, block, supports.get(block, NOTHING))):
        if drop.verb == STACK and (drop.other == NOTHING or drop.other in state):
            continue
        after = successor_of(drop, state)
        rest = [] if reached(goal, after) else _from_empty_hand(after, goal)
        if best is None or len(rest) + 1 < len(best):
            best = [drop, *rest]
    return best


def contradiction(goal: Goal, names: Sequence[str] | None = None) -> str | None:
    """Why no arrangement can satisfy a goal, in a few words with the blocks' names, or None where one can."""
    below: dict[int, int] = {}
    above: dict[int, int] = {}

    def name(block: int) -> str:
        return f"block {names[block] if names else block}"

    for block, other in goal.on:
        if block in below:
            return f"{name(block)} cannot be on two blocks"
        if other in above:
            return f"two blocks cannot be on {name(other)}"
        below[block], above[other] = other, block
    for block in goal.table:
        if block in below:
            return f"{name(block)} cannot be on a block and on the table"
    for block in goal.clear:
        if block in above:
            return f"{name(block)} cannot be clear with a block on it"
    for block in below:
        other = below[block]
        while other != block and other in below:
            other = below[other]
            if other == below[block]:
                break  # a circle further down, reported for its own members
        if other == block:
            return f"{name(block)} cannot be above itself"
    return None


def _from_empty_hand(state: Arrangement, goal: Goal) -> list[Action]:
    wanted = dict(goal.on)  # goal support, blocks only
    above = {support: block for block, support in enumerate(state) if support >= 0}
    moving = _must_move(state, goal, above)
    waits = _Waits(state, wanted, above, moving)
    detours = waits.fewest_detours()
    last = _may_stay_in_hand(goal, above, moving)
    plan: list[Action] = []
    for block, event in waits.order(detours, last):
        support, target = state[block], wanted.get(block, NOTHING)
        if event == _LEAVE:
            plan.append(_grasp(block, support))
            if block != last:
                plan.append(Action(PUT_DOWN, block))
        else:
            plan.append(_grasp(block, TABLE if block in detours else support))
            plan.append(Action(STACK, block, target))
    return plan


def _grasp(block: int, support: int) -> Action:
    return Action(PICK_UP, block) if support == TABLE else Action(UNSTACK, block, support)


def _must_move(state: Arrangement, goal: Goal, above: dict[int, int]) -> set[int]:
    """The blocks that every plan moves."""
    bad = [block for block, support in goal.on if state[block] != support]
    bad += [block for block in goal.table if state[block] != TABLE]
    bad += [above[support] for block, support in goal.on if above.get(support, block) != block]
    bad += [above[block] for block in goal.clear if block in above]
    moving: set[int] = set()
    for start in bad:
        block: int | None = start
        while block is not None and block not in moving:
            moving.add(block)
            block = above.get(block)
    return moving


def _may_stay_in_hand(goal: Goal, above: dict[int, int], moving: set[int]) -> int:
    """A block with which a plan may end in hand, saving the put-down, or `NOTHING`.

    Only lifting the last obstacle off a block that must be clear can complete a goal with a block in hand; the
    goal must not mention that block nor the hand, and nothing may wait for its arrival.
    """
    if goal.hand_empty:
        return NOTHING
    mentioned = {block for pair in goal.on for block in pair} | set(goal.table) | set(goal.clear)
    for block in goal.clear:
        obstacle = above.get(block, NOTHING)
        if obstacle != NOTHING and block not in moving and obstacle not in mentioned:
            return obstacle
    return NOTHING


class _Waits:
    """The graph of what must happen before what, for the blocks that must move."""

    def __init__(
        self, state: Arrangement, wanted: dict[int, int], above: dict[int, int], moving: set[int]
    ) -> None:
        self.blocks = sorted(moving)
        # A block whose goal support is open or the table leaves for the table and is done: it has no arrival.
        self.arriving = {block for block in moving if block in wanted}
        self.after: dict[_Event, list[_Event]] = {}
        for block in self.blocks:
            support = state[block]
            if support in moving:
                self._wait((block, _LEAVE), (support, _LEAVE))
        for block in sorted(self.arriving):
            target = wanted[block]
            obstacle = above.get(target, block)
            if obstacle != block:
                self._wait((obstacle, _LEAVE), (block, _ARRIVE))
            if target in moving:
                self._wait((target, _ARRIVE if target in self.arriving else _LEAVE), (block, _ARRIVE))

    def _wait(self, first: _Event, then: _Event) -> None:
        self.after.setdefault(first, []).append(then)

    def _nodes(self, block: int, detours: frozenset[int]) -> tuple[_Event, ...]:
        """The nodes a block has: one for both events (named by the last), or two with a detour."""
        if block not in self.arriving:
            return ((block, _LEAVE),)
        return ((block, _LEAVE), (block, _ARRIVE)) if block in detours else ((block, _ARRIVE),)

    def _node(self, event: _Event, detours: frozenset[int]) -> _Event:
        block, _ = event
        return event if block in detours or block not in self.arriving else (block, _ARRIVE)

    def _edges(self, node: _Event, detours: frozenset[int]) -> Iterator[_Edge]:
        block, event = node
        merged = block in self.arriving and block not in detours
        for first in ((block, _LEAVE), (block, _ARRIVE)) if merged else (node,):
            for then in self.after.get(first, ()):
                yield first, then
        if block in detours and event == _LEAVE:
            yield node, (block, _ARRIVE)

    def fewest_detours(self) -> frozenset[int]:
        """A smallest set of blocks whose detours leave no circular wait."""
        for size in count():
            found = self._search(frozenset(), size, set())
            if found is not None:
                return found
        raise AssertionError("unreachable: when every block detours there is no circle")

    def _search(self, detours: frozenset[int], left: int, seen: set[frozenset[int]]) -> frozenset[int] | None:
        if detours in seen:
            return None
        seen.add(detours)
        circle = self._circle(detours)
        if circle is None:
            return detours
        if left < self._disjoint_circles(detours, circle):
            return None
        for block in self._cuts(circle):
            found = self._search(detours | {block}, left - 1, seen)
            if found is not None:
                return found
        return None

    def _disjoint_circles(self, detours: frozenset[int], circle: list[_Edge]) -> int:
        """A lower bound on further detours: circles with no cut in common, counted greedily."""
        number = 0
        found: list[_Edge] | None = circle
        while found is not None:
            number += 1
            detours = detours | set(self._cuts(found))
            found = self._circle(detours)
        return number

    @staticmethod
    def _cuts(circle: list[_Edge]) -> list[int]:
        """The blocks at which a detour cuts a circle: entered by the arrival, left by the departure."""
        return [
            entered[0]
            for (_, entered), (left, _) in zip(circle, [*circle[1:], circle[0]], strict=True)
            if entered[1] == _ARRIVE and left[1] == _LEAVE
        ]

    def _circle(self, detours: frozenset[int]) -> list[_Edge] | None:
        """A circular wait as a list of edges, or None."""
        done: set[_Event] = set()
        for root in (node for block in self.blocks for node in self._nodes(block, detours)):
            if root in done:
                continue
            path, place = [root], {root: 0}
            edges: list[_Edge] = []
            branches = [self._edges(root, detours)]
            while path:
                for edge in branches[-1]:
                    node = self._node(edge[1], detours)
                    if node in place:
                        return [*edges[place[node] :], edge]
                    if node not in done:
                        place[node] = len(path)
                        path.append(node)
                        edges.append(edge)
                        branches.append(self._edges(node, detours))
                        break
                else:
                    branches.pop()
                    finished = path.pop()
                    del place[finished]
                    done.add(finished)
                    if edges:
                        edges.pop()
        return None

    def order(self, detours: frozenset[int], last: int) -> list[_Event]:
        """The events in an order that respects every wait, with the departure of `last` at the end."""
        nodes = [node for block in self.blocks for node in self._nodes(block, detours)]
        waiting = dict.fromkeys(nodes, 0)
        for node in nodes:
            for _, then in self._edges(node, detours):
                waiting[self._node(then, detours)] += 1
        ready = [node for node in nodes if not waiting[node]]
        ordered: list[_Event] = []
        while ready:
            node = ready.pop(0)
            ordered.append(node)
            for _, event in self._edges(node, detours):
                then = self._node(event, detours)
                waiting[then] -= 1
                if not waiting[then]:
                    ready.append(then)
        if last != NOTHING:
            ordered.remove((last, _LEAVE))
            ordered.append((last, _LEAVE))
        return ordered
