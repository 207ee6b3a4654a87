"""Level generator: exact backward search on bit boards.

The generator carves a room, places the targets, and searches backward from the solved board. For one or two boxes
the search visits *every* state, in layers of equal distance: a layer maps each arrangement of boxes to the bit
board of all player cells at that distance, so that one shift moves all players at once. A start drawn from layer
`d` has an optimal solution of exactly `d` moves, so the difficulty is exact. For three boxes or more the state
space is too large, and a beam search over arrangements replaces the exhaustive one.

The identity that no two splits share is the room: walls and targets, up to the eight symmetries of the square. Its
hash is known before the search starts, so rejecting the rooms of other splits is cheap.
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
"""Maximum number of boxes for which the search is exhaustive and the difficulty exact."""

BEAM_WIDTH = 12
"""Number of arrangements kept per layer of the beam search for three boxes or more."""


class Spec(NamedTuple):
    """Kind of level to generate.

    Attributes:
        size: Number of cells along each side, outer walls included.
        boxes: Number of boxes, and of targets.
        shortest: Minimum difficulty. For one or two boxes it is the number of moves of an optimal solution; for
            more, the number of pushes of the constructed solution.
        longest: Maximum difficulty, in the same unit.
    """

    size: int
    boxes: int
    shortest: int
    longest: int


class Room(NamedTuple):
    """Walls and targets of a level.

    Attributes:
        size: Number of cells along each side; the stride of the bit boards.
        floor: Bit board of the cells that are not walls.
        targets: Bit board of the targets.
    """

    size: int
    floor: int
    targets: int

    def identity(self) -> str:
        """Return a string that two rooms share exactly if a rotation or reflection maps one to the other."""
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
    """Generate the level of a task, a pure function of the arguments that gives the same board in every process.

    The most recent levels are cached, so that the members of a group share one.

    Args:
        spec: Kind of level.
        task: Task name `<split>/<index>` (see `envs.tasks`).

    Returns:
        An unsolved board in the standard vocabulary that belongs to the task's split and whose difficulty is
        within the bounds of `spec`.
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
            return _board_text(room, *start)


# ---------------------------------------------------------------------- rooms


@lru_cache(maxsize=64)
def _brushes(size: int) -> tuple[tuple[int, ...], ...]:
    """Return for every cell the shapes that may be carved around it, as bit boards within the outer walls."""
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
    """Draw a connected room whose targets are cells from which a box can be pulled away."""
    size, boxes = spec.size, spec.boxes
    random = rng.random
    brushes = _brushes(size)
    shapes = len(brushes[0])
    interior = (size - 2) ** 2
    min_share = 0.25 + 1.2 / (size - 2)  # small rooms need a larger share of floor to differ from each other
    directions = (1, -1, size, -size)
    while True:
        floor_cells = max(boxes + 5, int(interior * (min_share + 0.25 * random())))
        cell = (1 + int(random() * (size - 2))) * size + 1 + int(random() * (size - 2))
        step = directions[int(random() * 4)]
        floor = brushes[cell][int(random() * shapes)]
        # The random walk turns at the outer wall and carves a shape around each cell that it visits.
        while floor.bit_count() < floor_cells:
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


# ---------------------------------------------------------------------- backward search


def layers(stride: int, floor: int, targets: int) -> Iterator[dict[int, int]]:
    """Yield all states from which the board can be solved, layer by layer, nearest first.

    Args:
        stride: Distance of vertical neighbors in the bit boards.
        floor: Bit board of the cells that are not walls.
        targets: Bit board of the targets.

    Yields:
        The states at distance 0, 1, 2, … moves from the nearest solved state: a mapping from each arrangement of
        boxes to the player's cells (bit boards). Every solvable state appears once, at its exact distance.
    """
    layer = {targets: floor & ~targets}
    seen = dict(layer)
    while layer:
        yield layer
        next_states: dict[int, int] = {}
        for boxes, players in layer.items():
            free = floor & ~boxes
            walked = (players << 1 | players >> 1 | players << stride | players >> stride) & free & ~seen[boxes]
            if walked:
                next_states[boxes] = next_states.get(boxes, 0) | walked
            # The player steps away from a box and pulls it along.
            for shift in (1, stride):
                pullers = players & free >> shift & boxes << shift
                while pullers:
                    player = pullers & -pullers
                    pullers ^= player
                    pulled = boxes ^ player ^ player >> shift
                    player <<= shift
                    if not seen.get(pulled, 0) & player:
                        next_states[pulled] = next_states.get(pulled, 0) | player
                pullers = players & free << shift & boxes >> shift
                while pullers:
                    player = pullers & -pullers
                    pullers ^= player
                    pulled = boxes ^ player ^ player << shift
                    player >>= shift
                    if not seen.get(pulled, 0) & player:
                        next_states[pulled] = next_states.get(pulled, 0) | player
        for boxes, players in next_states.items():
            seen[boxes] = seen.get(boxes, 0) | players
        layer = next_states


def _exact_start(rng: Random, spec: Spec, room: Room) -> tuple[int, int] | None:
    """Draw boxes and player of a start at a distance within the spec's range, or return None if there is none.

    The distance is drawn uniformly from the range. If no start has it, the farthest starts in the range are used.
    """
    size, floor, targets = room
    wanted = spec.shortest + int(rng.random() * (spec.longest - spec.shortest + 1))
    deepest: list[tuple[int, int]] = []
    for distance, layer in enumerate(layers(size, floor, targets)):
        if distance >= spec.shortest:
            # Every box must start off target.
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
    raise AssertionError("unreachable: the pick is less than the number of states in the layer")


def _beam_start(rng: Random, spec: Spec, room: Room) -> tuple[int, int] | None:
    """Draw boxes and player of a start by a beam search over pulls, or return None if the room allows too few."""
    size, floor, targets = room
    wanted = spec.shortest + int(rng.random() * (spec.longest - spec.shortest + 1))
    beam = [(targets, region) for region in _regions(floor & ~targets, size)]
    seen = set(beam)
    start = None
    for pulls in range(1, wanted + 1):
        next_states: dict[tuple[int, int], float] = {}
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
                            # Arrangements with few boxes on target come first; noise makes levels differ.
                            next_states[state] = (pulled & targets).bit_count() + 2.0 * rng.random()
        if not next_states:
            break
        beam = sorted(next_states, key=next_states.__getitem__)[:BEAM_WIDTH]
        if pulls >= spec.shortest:
            start = next((state for state in beam if not state[0] & targets), start)
    if start is None:
        return None
    boxes, region = start
    return boxes, _nth(region, int(rng.random() * region.bit_count()))


def _flood(at: int, free: int, stride: int) -> int:
    """Return the free cells that are connected to the cells `at`."""
    while True:
        wider = (at | at << 1 | at >> 1 | at << stride | at >> stride) & free
        if wider == at:
            return at
        at = wider


def _regions(free: int, stride: int) -> Iterator[int]:
    """Yield the connected regions of the free cells."""
    while free:
        region = _flood(free & -free, free, stride)
        yield region
        free &= ~region


def _nth(mask: int, index: int) -> int:
    """Return the set bit number `index` of a bit board, counted from the lowest, as a one-bit board."""
    for _ in range(index):
        mask &= mask - 1
    return mask & -mask


def _board_text(room: Room, boxes: int, player: int) -> str:
    """Return the board's text in the standard vocabulary."""
    size, floor, targets = room
    wall, blank, target, box_on_target, box, player_symbol, player_on_target = STANDARD
    symbols = []
    for cell in range(size * size):
        bit = 1 << cell
        if not floor & bit:
            symbols.append(wall)
        elif boxes & bit:
            symbols.append(box_on_target if targets & bit else box)
        elif player & bit:
            symbols.append(player_on_target if targets & bit else player_symbol)
        else:
            symbols.append(target if targets & bit else blank)
    return "\n".join("".join(symbols[row : row + size]) for row in range(0, size * size, size))
