"""Exact Sokoban solver: A* over pushes on bit boards.

A node is an arrangement of boxes and the player's cell just after a push. One breadth-first flood from the player
gives the length of the walk to every possible push. The solver has two objectives:

* `"moves"`: the fewest moves (walking and pushing), which the rewards charge for.
* `"pushes"`: the fewest pushes, with short walks as a second criterion. Positions of the player in one connected
  region count as one node, which makes the search several times smaller.

The heuristic is the cheapest assignment of boxes to targets by push distance on the empty board. It never exceeds
the true number of pushes and decreases by at most one with each push (it is admissible and consistent), so the
first solution found is optimal. The search prunes squares from which no target can be reached, arrangements
without a feasible assignment, and boxes frozen off target (Junghanns and Schaeffer, "Sokoban: Enhancing general
single-agent search methods using domain knowledge", Artificial Intelligence 129, 2001).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from .rules import Masks, cells

Objective = Literal["moves", "pushes"]

NODE_BUDGET = 200_000
"""Default maximum number of expanded nodes; see `solve`."""

_EXACT_ASSIGNMENT = 8
"""Maximum number of boxes for an exact assignment. With more, the heuristic assigns every box to its nearest
target, even if several boxes share one."""

_UNREACHABLE = 1 << 20
_NEVER = 1 << 60
_PUSH_WEIGHT = 1 << 20
"""Cost of a push under the objective "pushes". It exceeds the length of all walks of a plan together, so walks
only break ties."""


class _Node(NamedTuple):
    boxes: int
    player: int


class OutOfBudget(Exception):
    """The search reached its maximum number of nodes; whether the board can be solved is unknown."""


def solve(masks: Masks, objective: Objective = "moves", budget: int = NODE_BUDGET) -> list[str] | None:
    """Return an optimal plan, or None if there is no solution or the budget is exhausted; see `find_plan`."""
    try:
        return find_plan(masks, objective, budget)
    except OutOfBudget:
        return None


def find_plan(masks: Masks, objective: Objective = "moves", budget: int = NODE_BUDGET) -> list[str] | None:
    """Return an optimal plan.

    Args:
        masks: Board, whose outermost cells must be walls.
        objective: Quantity to minimize.
        budget: Maximum number of nodes to expand. A node with four boxes takes about 40 µs, so the default limits
            a call to several seconds; nearly all Boxoban levels take less than one.

    Returns:
        Action names that solve the board (empty if it is already solved), or None if there is no solution.

    Raises:
        OutOfBudget: The budget is exhausted.
    """
    maze = _maze(masks.stride, masks.floor, masks.targets)
    by_pushes = objective == "pushes"
    weight = _PUSH_WEIGHT if by_pushes else 1
    root = _Node(masks.boxes, masks.player)
    bound = maze.bound(root.boxes)
    if bound >= _UNREACHABLE:
        return None
    came_from: dict[_Node, tuple[_Node, int]] = {}
    best = {root: 0}
    closed: set[tuple[int, int]] = set()
    # Ties are broken by the lower heuristic, then by the later insertion: depth first among equals.
    frontier = [(weight * bound, bound, 0, 0, root)]
    order = 0
    while frontier:
        _, bound, _, cost, node = heapq.heappop(frontier)
        if bound == 0:
            return _plan(maze, root, node, came_from)
        if cost > best[node]:
            continue
        if by_pushes:
            region = node.boxes, maze.region(node)
            if region in closed:
                continue
            closed.add(region)
        budget -= 1
        if budget < 0:
            raise OutOfBudget
        for walk, pusher, shift, boxes in maze.pushes(node):
            child = _Node(boxes, pusher << shift if shift > 0 else pusher >> -shift)
            reached = cost + walk + weight
            if reached >= best.get(child, _NEVER):
                continue
            bound = maze.bound(boxes)
            if bound >= _UNREACHABLE:
                continue
            best[child] = reached
            came_from[child] = node, pusher
            order -= 1
            heapq.heappush(frontier, (reached + weight * bound, bound, order, reached, child))
    return None


class _Maze:
    """Walls and targets of a level, with the distances and cached heuristic values that depend only on them."""

    def __init__(self, stride: int, floor: int, targets: int) -> None:
        self.stride = stride
        self.floor = floor
        self.targets = targets
        distances = [_pull_distances(stride, floor, target) for target in cells(targets)]
        self.live = 0
        """Cells from which a box can reach some target."""
        self._distances: dict[int, tuple[int, ...]] = {}
        """From a live cell (as a one-bit board) to its push distance to every target."""
        for cell in cells(floor):
            row = tuple(table.get(cell, _UNREACHABLE) for table in distances)
            if min(row, default=_UNREACHABLE) < _UNREACHABLE:
                self.live |= cell
                self._distances[cell] = row
        self._bounds: dict[int, int] = {}
        self._transitions = _assignment_transitions(len(distances)) if len(distances) <= _EXACT_ASSIGNMENT else ()

    def bound(self, boxes: int) -> int:
        """Return the least total push distance of an assignment of boxes to targets, or `_UNREACHABLE`."""
        cached = self._bounds.get(boxes)
        if cached is None:
            cached = self._bounds[boxes] = self._assignment_cost(boxes)
        return cached

    def _assignment_cost(self, boxes: int) -> int:
        if boxes & ~self.live or self._frozen(boxes):
            return _UNREACHABLE
        rows = [self._distances[box] for box in cells(boxes)]
        if not self._transitions:
            return sum(map(min, rows))
        # Dynamic program over the set of assigned targets.
        best = [0] + [_UNREACHABLE] * ((1 << len(rows)) - 1)
        for row, transitions in zip(rows, self._transitions, strict=True):
            for before, target, after in transitions:
                total = best[before] + row[target]
                if total < best[after]:
                    best[after] = total
        return best[-1]

    def _frozen(self, boxes: int) -> bool:
        """Return True if some box off target can never move again.

        The computation starts with all boxes frozen and removes those that could move along an axis without frozen
        boxes, until nothing changes. A box cannot be pushed along an axis if one of its two neighbors there is a
        wall or a frozen box, or if both are squares from which no target can be reached.
        """
        stride, walls, dead = self.stride, ~self.floor, ~self.live
        across = walls << 1 | walls >> 1 | (dead << 1 & dead >> 1)
        along = walls << stride | walls >> stride | (dead << stride & dead >> stride)
        frozen = boxes
        while frozen:
            still = frozen & (across | frozen << 1 | frozen >> 1) & (along | frozen << stride | frozen >> stride)
            if still == frozen:
                return bool(frozen & ~self.targets)
            frozen = still
        return False

    def region(self, node: _Node) -> int:
        """Return the cells that the player can walk to."""
        stride, free, at = self.stride, self.floor & ~node.boxes, node.player
        while True:
            wider = (at | at << 1 | at >> 1 | at << stride | at >> stride) & free
            if wider == at:
                return at
            at = wider

    def pushes(self, node: _Node) -> Iterator[tuple[int, int, int, int]]:
        """Yield every push that leaves its box on a live cell.

        Yields:
            Length of the walk to the push, cell from which the player pushes, shift of the push, boxes after it.
        """
        stride, boxes, player = self.stride, node.boxes, node.player
        free = self.floor & ~boxes
        onto = free & self.live
        push_cells = [
            (1, free & boxes >> 1 & onto >> 2),
            (-1, free & boxes << 1 & onto << 2),
            (stride, free & boxes >> stride & onto >> 2 * stride),
            (-stride, free & boxes << stride & onto << 2 * stride),
        ]
        push_cells = [entry for entry in push_cells if entry[1]]
        remaining = 0
        for _, mask in push_cells:
            remaining |= mask
        reached = layer = player
        walk = 0
        while layer:
            if layer & remaining:
                for shift, mask in push_cells:
                    pushers = layer & mask
                    while pushers:
                        pusher = pushers & -pushers
                        pushers ^= pusher
                        if shift > 0:
                            box = pusher << shift
                            yield walk, pusher, shift, boxes ^ box ^ box << shift
                        else:
                            box = pusher >> -shift
                            yield walk, pusher, shift, boxes ^ box ^ box >> -shift
                remaining &= ~layer
                if not remaining:
                    return
            layer = (layer << 1 | layer >> 1 | layer << stride | layer >> stride) & free & ~reached
            reached |= layer
            walk += 1

    def walk(self, boxes: int, start: int, end: int) -> list[str]:
        """Return a shortest walk of the player from `start` to `end` around the boxes, as action names."""
        stride, free = self.stride, self.floor & ~boxes
        trail = [end]
        while not trail[-1] & start:
            at = trail[-1]
            wider = (at | at << 1 | at >> 1 | at << stride | at >> stride) & free
            if wider == at:
                raise AssertionError("unreachable: a walk of the plan is blocked")
            trail.append(wider)
        actions = []
        at = start
        for area in reversed(trail[:-1]):
            for action, shifted in (
                ("Up", at >> stride),
                ("Down", at << stride),
                ("Left", at >> 1),
                ("Right", at << 1),
            ):
                if shifted & area:
                    actions.append(action)
                    at = shifted
                    break
        return actions


@lru_cache(maxsize=_EXACT_ASSIGNMENT)
def _assignment_transitions(n: int) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """Return the transitions of the dynamic program that assigns n boxes to n targets, one box after the other.

    Returns:
        For each box, every triple (targets assigned before, target of the box, targets assigned after); the sets
        are bit masks.
    """
    return tuple(
        tuple(
            (assigned, target, assigned | 1 << target)
            for assigned in range(1 << n)
            if assigned.bit_count() == box
            for target in range(n)
            if not assigned >> target & 1
        )
        for box in range(n)
    )


@lru_cache(maxsize=8)  # few, because every maze caches its heuristic values
def _maze(stride: int, floor: int, targets: int) -> _Maze:
    return _Maze(stride, floor, targets)


def _pull_distances(stride: int, floor: int, target: int) -> dict[int, int]:
    """Return the fewest pushes of a lone box from each cell to the target, for a player who can reach any cell."""
    distances = {target: 0}
    queue = [target]
    for box in queue:
        for pulled, player in (
            (box << 1, box << 2),
            (box >> 1, box >> 2),
            (box << stride, box << 2 * stride),
            (box >> stride, box >> 2 * stride),
        ):
            if pulled & floor and player & floor and pulled not in distances:
                distances[pulled] = distances[box] + 1
                queue.append(pulled)
    return distances


def _plan(maze: _Maze, root: _Node, last: _Node, came_from: dict[_Node, tuple[_Node, int]]) -> list[str]:
    """Return the action names along the path from `root` to `last`."""
    pushes = []
    node = last
    while node != root:
        before, pusher = came_from[node]
        pushes.append((before, pusher, node.player))
        node = before
    plan = []
    for before, pusher, after in reversed(pushes):
        plan += maze.walk(before.boxes, before.player, pusher)
        shift = after.bit_length() - pusher.bit_length()
        plan.append("Right" if shift == 1 else "Left" if shift == -1 else "Down" if shift == maze.stride else "Up")
    return plan
