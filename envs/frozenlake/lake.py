"""Lakes: maps, their transitions by Gymnasium's rules, and random maps with a way across."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import lru_cache

from ..errors import ConfigurationError
from ..seeding import stable_seed
from ..tasks import belongs

Map = tuple[str, ...]
"""Rows of `S` (start), `F` (frozen), `H` (hole) and `G` (goal), as in Gymnasium's `desc`."""

ACTIONS = ("Left", "Down", "Right", "Up")
"""In Gymnasium's order: action a slips to (a - 1) mod 4 or (a + 1) mod 4."""

CORNERS = "corners"
ANYWHERE = "random"
_STEPS = ((0, -1), (1, 0), (0, 1), (-1, 0))
_ATTEMPTS = 100
_SPLIT_ATTEMPTS = 1000


class Lake:
    """A map with its transitions.

    Attributes:
        desc: the map.
        rows, columns: its size.
        start, goal: cell numbers, counted row by row.
        holes: cell numbers.
        terminal: for each cell, whether the episode ends there.
        moves: `moves[cell][action]` is the cell that the step leads to if the ice does not interfere; at the edge
            the same cell, and from a terminal cell always that cell.
    """

    def __init__(self, desc: Map) -> None:
        self.desc = desc
        self.rows, self.columns = len(desc), len(desc[0])
        cells = "".join(desc)
        self.start, self.goal = cells.index("S"), cells.index("G")
        self.holes = tuple(cell for cell, letter in enumerate(cells) if letter == "H")
        self.terminal = tuple(letter in "GH" for letter in cells)
        self.moves = tuple(
            [
                (cell,) * 4 if ends else around
                for cell, (ends, around) in enumerate(
                    zip(self.terminal, _neighbours(self.rows, self.columns), strict=True)
                )
            ]
        )

    def outcomes(self, cell: int, action: int, success_rate: float) -> dict[int, float]:
        """The distribution of the next cell: next cell to probability."""
        if self.terminal[cell]:
            return {cell: 1.0}
        side = (1.0 - success_rate) / 2.0
        distribution: dict[int, float] = {}
        for turn, probability in ((-1, side), (0, success_rate), (1, side)):
            if probability > 0.0:
                after = self.moves[cell][(action + turn) % 4]
                distribution[after] = distribution.get(after, 0.0) + probability
        return distribution


@lru_cache(maxsize=64)
def _neighbours(rows: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """For every cell where each action leads, staying on the board."""

    def after(cell: int, down: int, right: int) -> int:
        row = min(max(cell // columns + down, 0), rows - 1)
        column = min(max(cell % columns + right, 0), columns - 1)
        return row * columns + column

    return tuple(tuple(after(cell, *step) for step in _STEPS) for cell in range(rows * columns))


def checked_map(desc: Sequence[str]) -> Map:
    """A map given by hand, as tuple.

    Raises:
        ConfigurationError: it is not a rectangle of S, F, H and G with one start, one goal and a way between.
    """
    if isinstance(desc, str) or not all(isinstance(row, str) for row in desc):
        raise ConfigurationError("map must be a list of rows such as ['SFF', 'FHF', 'FFG'].")
    rows = tuple(desc)
    if not rows or not rows[0]:
        raise ConfigurationError("map has no cells; give rows such as ['SFF', 'FHF', 'FFG'].")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise ConfigurationError(f"map row {number} has {len(row)} cells, row 1 has {len(rows[0])}.")
        strange = sorted(set(row) - set("SFHG"))
        if strange:
            raise ConfigurationError(f"map row {number} has {strange[0]!r}; cells are S, F, H and G.")
    for letter, meaning in (("S", "start"), ("G", "goal")):
        count = "".join(rows).count(letter)
        if count != 1:
            raise ConfigurationError(f"map needs exactly one {meaning} ({letter}), this has {count}.")
    if not has_path(rows):
        raise ConfigurationError("map has no way from start to goal around its holes.")
    return rows


def has_path(desc: Map) -> bool:
    """Whether the goal can be reached without a hole, on ice that does not interfere."""
    width = len(desc[0]) + 1
    # One row of holes above and below and one cell at the end of each row save all tests for the edge.
    cells = list("H" * width + "".join(f"{row}H" for row in desc) + "H" * width)
    frontier = [cells.index("S")]
    while frontier:
        cell = frontier.pop()
        if cells[cell] == "G":
            return True
        if cells[cell] != "H":
            cells[cell] = "H"
            frontier += (cell - 1, cell + 1, cell - width, cell + width)
    return False


@lru_cache(maxsize=1024)
def generated_lake(size: int, p_frozen: float, start_goal: str, task: str) -> Lake:
    """The lake of a generated task, the same everywhere; members of a group share it.

    Args:
        size: rows and columns.
        p_frozen: probability that a cell other than start and goal is frozen.
        start_goal: "corners" (top left, bottom right) or "random" (two distinct cells).
        task: `<split>/<index>`.

    Raises:
        ConfigurationError: the split has no map of this kind (too few exist to share them out).
    """
    split = task.rpartition("/")[0]
    rng = random.Random(stable_seed("frozenlake", size, p_frozen, start_goal, task))
    for _ in range(_SPLIT_ATTEMPTS):
        desc = random_map(size, p_frozen, start_goal, rng)
        if belongs(desc, split):
            return Lake(desc)
    raise ConfigurationError(
        f"split {split!r} has no map of size {size} with p_frozen {p_frozen} and {start_goal} start and goal;"
        " choose a larger size."
    )


def random_map(size: int, p_frozen: float, start_goal: str, rng: random.Random) -> Map:
    """A random map, drawn again (start and goal included) until there is a way across.

    Where holes are so many that 100 draws have none, a random shortest way is frozen in the last one.
    """
    cells: list[str] = []
    start = goal = 0
    for _ in range(_ATTEMPTS):
        start, goal = (0, size * size - 1) if start_goal == CORNERS else rng.sample(range(size * size), 2)
        cells = ["F" if rng.random() < p_frozen else "H" for _ in range(size * size)]
        cells[start], cells[goal] = "S", "G"
        desc = _rows(cells, size)
        if has_path(desc):
            return desc
    for cell in _random_way(start, goal, size, rng):
        cells[cell] = "F"
    cells[start], cells[goal] = "S", "G"
    return _rows(cells, size)


def _rows(cells: Sequence[str], size: int) -> Map:
    return tuple("".join(cells[place : place + size]) for place in range(0, size * size, size))


def _random_way(start: int, goal: int, size: int, rng: random.Random) -> Iterable[int]:
    (row, column), (last_row, last_column) = divmod(start, size), divmod(goal, size)
    legs = ["row"] * abs(last_row - row) + ["column"] * abs(last_column - column)
    rng.shuffle(legs)
    for leg in legs:
        if leg == "row":
            row += 1 if last_row > row else -1
        else:
            column += 1 if last_column > column else -1
        yield row * size + column
