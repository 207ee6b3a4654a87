"""Levels by exact reverse play on bit boards.

A room is carved, targets are laid, and the game is played backwards from the solved board. For one or two boxes
the backward search goes through *every* state, in layers of equal distance: a layer maps each arrangement of boxes
to the bit board of all player cells at that distance, so that one shift moves all of them at once. A start drawn
from layer `d` therefore has an optimal solution of exactly `d` moves: difficulty is set, not estimated. With three
boxes or more the state space is too large for that, and a beam of arrangements is followed instead.

What a level may share with no other split is its room: walls and targets, up to the eight symmetries of the
square. The room's hash is known before the search starts, so passing over rooms of other splits is cheap.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from random import Random
from typing import NamedTuple

from ..seeding import stable_seed
from ..tasks import belongs
from .rules import STANDARD, cells

EXACT_BOXES = 2
"""Up to this many boxes the search is exhaustive and the difficulty exact."""

BEAM_WIDTH = 12
"""Arrangements kept in each layer of the search for three boxes or more."""


class Spec(NamedTuple):
    """What kind of level to make.

    Attributes:
        size: cells along each side, the outer walls included.
        boxes: how many boxes (and targets).
        shortest: the least difficulty: moves of an optimal solution with one or two boxes, pushes of the
            solution by construction with more.
        longest: the greatest difficulty, in the same unit.
    """

    size: int
    boxes: int
    shortest: int
    longest: int


class Room(NamedTuple):
    """Walls and targets, as bit boards of stride `size`."""

    size: int
    floor: int
    targets: int

    def identity(self) -> str:
        """The room's name: equal for rooms that differ by a rotation or a reflection only, and only for those."""
        n = self.size
        text = f"{self.floor:0{n * n}b}"
        for target in cells(self.targets):
            at = n * n - target.bit_length()
            text = f"{text[:at]}2{text[at + 1 :]}"
        mirrored = "".join([text[row : row + n] for row in range(n * n - n, -1, -n)])
        views = [text, mirrored, *("".join([view[i::n] for i in range(n)]) for view in (text, mirrored))]
        return max(max(view, view[::-1]) for view in views)


@lru_cache(maxsize=4096)
def generate(spec: Spec, task: str) -> str:
    """The level of a task: a pure function of its arguments, the same in any process.

    Kept for the most recent tasks, so that the members of a group share one generated level.

    Args:
        spec: the kind of level.
        task: a name `<split>/<index>` (see `envs.tasks`).

    Returns:
        The board in the standard vocabulary, in the given split, not solved, and solvable within `spec`'s bounds.
    """
    rng = Random(stable_seed("sokoban", *spec, task))
    split = task.partition("/")[0]
    search = _exact_start if spec.boxes <= EXACT_BOXES else _beam_start
    while True:
        room = _room(rng, spec)
        if not belongs(room.identity(), split):
            continue
        start = search(rng, spec, room)
        if start is not None:
            return _draw(room, *start)


# ---------------------------------------------------------------------- rooms


@lru_cache(maxsize=64)
def _brushes(size: int) -> tuple[tuple[int, ...], ...]:
    """For every cell the shapes that may be carved around it: bit boards within the outer walls."""
    interior = sum(1 << (r * size + c) for r in range(1, size - 1) for c in range(1, size - 1))
    shapes = (  # offsets (rows, columns) from the cell
        ((0, 0), (0, 1), (0, -1)),
        ((0, 0), (1, 0), (-1, 0)),
        ((0, 0), (0, 1), (1, 0), (1, 1)),
        ((0, 0), (0, -1), (1, 0)),
        ((0, 0), (0, 1), (-1, 0)),
        ((0, 0),),
    )
    brushes = []
    for cell in range(size * size):
        row, column = divmod(cell, size)
        masks = []
        for shape in shapes:
            spots = [(row + r, column + c) for r, c in shape]
            spots = [(r, c) for r, c in spots if 0 <= r < size and 0 <= c < size]
            masks.append(sum(1 << (r * size + c) for r, c in spots) & interior)
        brushes.append(tuple(masks))
    return tuple(brushes)


def _room(rng: Random, spec: Spec) -> Room:
    """A connected room with targets that a box can be pulled away from."""
    size, boxes = spec.size, spec.boxes
    random = rng.random
    brushes = _brushes(size)
    shapes = len(brushes[0])
    inside = (size - 2) ** 2
    least = 0.25 + 1.2 / (size - 2)  # small rooms need a larger share of floor to be different from each other
    directions = (1, -1, size, -size)
    while True:
        wanted = max(boxes + 5, int(inside * (least + 0.25 * random())))
        cell = (1 + int(random() * (size - 2))) * size + 1 + int(random() * (size - 2))
        step = directions[int(random() * 4)]
        floor = brushes[cell][int(random() * shapes)]
        # A walk that meets the outer wall turns; each cell it visits is widened by a brush.
        while floor.bit_count() < wanted:
            ahead = cell + step
            if random() < 0.35 or not brushes[ahead][0] >> ahead & 1:
                step = directions[int(random() * 4)]
                continue
            cell = ahead
            floor |= brushes[cell][int(random() * shapes)]
        pullable = floor & (
            (floor >> 1 & floor >> 2)
            | (floor << 1 & floor << 2)
            | (floor >> size & floor >> 2 * size)
            | (floor << size & floor << 2 * size)
        )
        if pullable.bit_count() > boxes:
            spots = list(cells(pullable))
            targets = 0
            while targets.bit_count() < boxes:
                targets |= spots[int(random() * len(spots))]
            return Room(size, floor, targets)


# ---------------------------------------------------------------------- backward play


def layers(stride: int, floor: int, targets: int) -> Iterator[dict[int, int]]:
    """All states from which the board can be solved, nearest first.

    Yields:
        For distance 0, 1, 2, … moves to the nearest solved state: arrangements of boxes (bit boards), each with
        the bit board of the player's cells. Every solvable state appears once, at its exact distance.
    """
    layer = {targets: floor & ~targets}
    seen = dict(layer)
    while layer:
        yield layer
        following: dict[int, int] = {}
        for boxes, players in layer.items():
            free = floor & ~boxes
            walked = (players << 1 | players >> 1 | players << stride | players >> stride) & free & ~seen[boxes]
            if walked:
                following[boxes] = following.get(boxes, 0) | walked
            # The player steps back from a box and draws it along.
            for shift in (1, stride):
                pullers = players & free >> shift & boxes << shift
                while pullers:
                    player = pullers & -pullers
                    pullers ^= player
                    pulled = boxes ^ player ^ player >> shift
                    player <<= shift
                    if not seen.get(pulled, 0) & player:
                        following[pulled] = following.get(pulled, 0) | player
                pullers = players & free << shift & boxes >> shift
                while pullers:
                    player = pullers & -pullers
                    pullers ^= player
                    pulled = boxes ^ player ^ player << shift
                    player >>= shift
                    if not seen.get(pulled, 0) & player:
                        following[pulled] = following.get(pulled, 0) | player
        for boxes, players in following.items():
            seen[boxes] = seen.get(boxes, 0) | players
        layer = following


def _exact_start(rng: Random, spec: Spec, room: Room) -> tuple[int, int] | None:
    """Boxes and player at an exact distance drawn from the spec's range, or None if the room has none."""
    size, floor, targets = room
    wanted = spec.shortest + int(rng.random() * (spec.longest - spec.shortest + 1))
    deepest: list[tuple[int, int]] = []
    for distance, layer in enumerate(layers(size, floor, targets)):
        if distance >= spec.shortest:
            # Every box starts off target: none of the work is done already.
            deepest = [item for item in layer.items() if not item[0] & targets] or deepest
            if distance == wanted:
                break
    if not deepest:
        return None
    pick = int(rng.random() * sum(players.bit_count() for _, players in deepest))
    for boxes, players in deepest:
        if pick < players.bit_count():
            return boxes, _nth(players, pick)
        pick -= players.bit_count()
    raise AssertionError("a pick lies within the layer")


def _beam_start(rng: Random, spec: Spec, room: Room) -> tuple[int, int] | None:
    """Boxes and player after many pulls, no arrangement seen twice; None if the room allows too few."""
    size, floor, targets = room
    wanted = spec.shortest + int(rng.random() * (spec.longest - spec.shortest + 1))
    beam = [(targets, region) for region in _regions(floor & ~targets, size)]
    seen = set(beam)
    start = None
    for pulls in range(1, wanted + 1):
        following: dict[tuple[int, int], float] = {}
        for boxes, region in beam:
            free = floor & ~boxes
            for shift in (1, size):
                for pullers, forward in (
                    (region & free >> shift & boxes << shift, True),
                    (region & free << shift & boxes >> shift, False),
                ):
                    for player in cells(pullers):
                        box = player >> shift if forward else player << shift
                        pulled = boxes ^ player ^ box
                        at = player << shift if forward else player >> shift
                        state = pulled, _flood(at, floor & ~pulled, size)
                        if state not in seen:
                            seen.add(state)
                            # Boxes off target first; ties and near-ties by chance, so that levels differ.
                            following[state] = (pulled & targets).bit_count() + 2.0 * rng.random()
        if not following:
            break
        beam = sorted(following, key=following.__getitem__)[:BEAM_WIDTH]
        if pulls >= spec.shortest:
            start = next((state for state in beam if not state[0] & targets), start)
    if start is None:
        return None
    boxes, region = start
    return boxes, _nth(region, int(rng.random() * region.bit_count()))


def _flood(at: int, free: int, stride: int) -> int:
    """The free cells that can be walked to from `at`."""
    while True:
        wider = (at | at << 1 | at >> 1 | at << stride | at >> stride) & free
        if wider == at:
            return at
        at = wider


def _regions(free: int, stride: int) -> Iterator[int]:
    """The connected parts of the free cells."""
    while free:
        region = _flood(free & -free, free, stride)
        yield region
        free &= ~region


def _nth(mask: int, index: int) -> int:
    for _ in range(index):
        mask &= mask - 1
    return mask & -mask


def _draw(room: Room, boxes: int, player: int) -> str:
    """The board's text in the standard vocabulary."""
    size, floor, targets = room
    wall, blank, target, box_on_target, box, person, person_on_target = STANDARD
    symbols = []
    for cell in range(size * size):
        bit = 1 << cell
        if not floor & bit:
            symbols.append(wall)
        elif boxes & bit:
            symbols.append(box_on_target if targets & bit else box)
        elif player & bit:
            symbols.append(person_on_target if targets & bit else person)
        else:
            symbols.append(target if targets & bit else blank)
    return "\n".join("".join(symbols[row : row + size]) for row in range(0, size * size, size))
