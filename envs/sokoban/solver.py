"""An exact Sokoban solver: A* over pushes on bit boards.

A node is an arrangement of boxes and the player's cell just after a push; one flood of the player's region in
layers gives the length of the walk to every possible push at once. Two objectives:

* `"moves"`: the fewest moves (walks and pushes), what a player is charged for;
* `"pushes"`: the fewest pushes, walks kept short as a second criterion. Positions in one region of the player
  count as one node, which makes the search several times smaller.

The bound is the cheapest assignment of boxes to targets by push distance on the empty board. It never exceeds the
true number of pushes and falls by at most one with each, so the first solution found is optimal. Branches end at
squares from which no target can be reached, at arrangements that no assignment serves, and at boxes that have
frozen off target (Junghanns and Schaeffer, "Sokoban: Enhancing general single-agent search methods using domain
knowledge", Artificial Intelligence 129, 2001).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from .rules import Masks, cells

Objective = Literal["moves", "pushes"]

NODE_BUDGET = 200_000
"""Nodes expanded before the solver gives up; see `solve`."""

_EXACT_ASSIGNMENT = 8
"""With more boxes than this the bound lets every box take its nearest target, which others may have taken."""

_UNREACHABLE = 1 << 20
_NEVER = 1 << 60
_PUSH_WEIGHT = 1 << 12
"""With the objective "pushes" a push outweighs any walk; walks only break ties."""


class _Node(NamedTuple):
    boxes: int
    player: int


def solve(masks: Masks, objective: Objective = "moves", budget: int = NODE_BUDGET) -> list[str] | None:
    """An optimal plan.

    Args:
        masks: the board; its outermost cells must be walls.
        objective: what is minimised.
        budget: the most nodes to expand. A node of four boxes takes some 40 µs, so the default bounds a
            call to seconds; nearly all Boxoban levels take less than one.

    Returns:
        Action names from the board to a solved one (empty if it is solved already); None if there is no
        solution or the budget ran out.
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
    # Ties go to the node nearest to its goal, then to the latest: depth first among equals.
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
            return None
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
    """Walls and targets, and everything that follows from them alone."""

    def __init__(self, stride: int, floor: int, targets: int) -> None:
        self.stride = stride
        self.floor = floor
        self.targets = targets
        distances = [_pull_distances(stride, floor, target) for target in cells(targets)]
        self.live = 0
        """Cells from which a box can reach some target."""
        self._distances: dict[int, tuple[int, ...]] = {}
        """For a live cell (as a bit) the push distance to every target."""
        for cell in cells(floor):
            row = tuple(table.get(cell, _UNREACHABLE) for table in distances)
            if min(row, default=_UNREACHABLE) < _UNREACHABLE:
                self.live |= cell
                self._distances[cell] = row
        self._bounds: dict[int, int] = {}
        self._takings = _takings(len(distances)) if len(distances) <= _EXACT_ASSIGNMENT else ()

    def bound(self, boxes: int) -> int:
        """The least total push distance of any assignment of boxes to targets; `_UNREACHABLE` if none serves."""
        known = self._bounds.get(boxes)
        if known is None:
            known = self._bounds[boxes] = self._assign(boxes)
        return known

    def _assign(self, boxes: int) -> int:
        if boxes & ~self.live or self._frozen(boxes):
            return _UNREACHABLE
        rows = [self._distances[box] for box in cells(boxes)]
        if not self._takings:
            return sum(map(min, rows))
        best = [0] + [_UNREACHABLE] * ((1 << len(rows)) - 1)
        for row, takings in zip(rows, self._takings, strict=True):
            for taken, target, grown in takings:
                total = best[taken] + row[target]
                if total < best[grown]:
                    best[grown] = total
        return best[-1]

    def _frozen(self, boxes: int) -> bool:
        """Whether some box off target can never move again.

        All boxes are assumed frozen, and those that could move along a line free of frozen boxes are thawed until
        nothing changes. A box cannot be pushed along a line if one of its neighbours there is blocked for good,
        or if both are squares from which no target can be reached.
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
        """All cells the player can walk to."""
        stride, free, at = self.stride, self.floor & ~node.boxes, node.player
        while True:
            wider = (at | at << 1 | at >> 1 | at << stride | at >> stride) & free
            if wider == at:
                return at
            at = wider

    def pushes(self, node: _Node) -> Iterator[tuple[int, int, int, int]]:
        """Every push that leaves its box on a live cell.

        Yields:
            (length of the walk, where the player pushes from, shift of the push, boxes afterwards).
        """
        stride, boxes, player = self.stride, node.boxes, node.player
        free = self.floor & ~boxes
        onto = free & self.live
        stands = [
            (1, free & boxes >> 1 & onto >> 2),
            (-1, free & boxes << 1 & onto << 2),
            (stride, free & boxes >> stride & onto >> 2 * stride),
            (-stride, free & boxes << stride & onto << 2 * stride),
        ]
        stands = [stand for stand in stands if stand[1]]
        wanted = 0
        for _, mask in stands:
            wanted |= mask
        reached = layer = player
        walk = 0
        while layer:
            if layer & wanted:
                for shift, mask in stands:
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
                wanted &= ~layer
                if not wanted:
                    return
            layer = (layer << 1 | layer >> 1 | layer << stride | layer >> stride) & free & ~reached
            reached |= layer
            walk += 1

    def walk(self, boxes: int, start: int, end: int) -> list[str]:
        """A shortest walk of the player from `start` to `end` around the boxes."""
        stride, free = self.stride, self.floor & ~boxes
        trail = [end]
        while not trail[-1] & start:
            at = trail[-1]
            wider = (at | at << 1 | at >> 1 | at << stride | at >> stride) & free
            if wider == at:
                raise AssertionError("a walk of the plan is blocked")
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
def _takings(n: int) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """How n boxes can take n targets one after the other.

    Returns:
        For each box: every (set of targets taken before, target it takes, set taken then), sets as bit masks.
    """
    return tuple(
        tuple(
            (taken, target, taken | 1 << target)
            for taken in range(1 << n)
            if taken.bit_count() == box
            for target in range(n)
            if not taken >> target & 1
        )
        for box in range(n)
    )


@lru_cache(maxsize=8)  # each holds the bounds worked out so far
def _maze(stride: int, floor: int, targets: int) -> _Maze:
    return _Maze(stride, floor, targets)


def _pull_distances(stride: int, floor: int, target: int) -> dict[int, int]:
    """The fewest pushes that bring a lone box from each cell to the target, the player free to stand anywhere."""
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
