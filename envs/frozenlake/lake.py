"""Maps of frozen lakes, their transitions by Gymnasium's rules, and a generator of solvable maps."""

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
"""Actions in Gymnasium's order: action a slips to (a - 1) mod 4 or (a + 1) mod 4."""

CORNERS = "corners"
ANYWHERE = "random"
_DIRECTIONS = ((0, -1), (1, 0), (0, 1), (-1, 0))
_MAX_DRAWS = 100
_MAX_SPLIT_DRAWS = 1000


class Lake:
    """Map with its transitions. Cells are numbered row by row.

    Attributes:
        desc: Map.
        rows: Number of rows.
        columns: Number of columns.
        start: Start cell.
        goal: Goal cell.
        holes: Cells with holes.
        terminal: For each cell, True if the episode ends there.
        moves: `moves[cell][action]` is the next cell if the step does not slip: the same cell at the edge of the
            board and in a terminal cell.
    """

    def __init__(self, desc: Map) -> None:
        self.desc = desc
        self.rows, self.columns = len(desc), len(desc[0])
        cells = "".join(desc)
        self.start, self.goal = cells.index("S"), cells.index("G")
        self.holes = tuple([cell for cell, letter in enumerate(cells) if letter == "H"])
        terminal = [False] * len(cells)
        moves = [*_neighbors(self.rows, self.columns)]
        for cell in (*self.holes, self.goal):
            terminal[cell] = True
            moves[cell] = (cell,) * 4
        self.terminal, self.moves = tuple(terminal), tuple(moves)

    def outcomes(self, cell: int, action: int, success_rate: float) -> dict[int, float]:
        """Return the distribution of the next cell, as a mapping from cell to probability.

        Args:
            cell: Current cell.
            action: Index into `ACTIONS`.
            success_rate: Probability of the chosen direction.
        """
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
def _neighbors(rows: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """Return for every cell the cell that each action leads to, which is the same cell for steps off the board."""

    def after(cell: int, down: int, right: int) -> int:
        row = min(max(cell // columns + down, 0), rows - 1)
        column = min(max(cell % columns + right, 0), columns - 1)
        return row * columns + column

    return tuple(tuple(after(cell, *step) for step in _DIRECTIONS) for cell in range(rows * columns))


def validate_map(desc: Sequence[str]) -> Map:
    """Return a user's map as a tuple after validating it.

    Raises:
        ConfigurationError: The map is not a rectangle of S, F, H and G with one start, one goal and a path.
    """
    if isinstance(desc, str) or not isinstance(desc, Iterable) or not all(isinstance(row, str) for row in desc):
        raise ConfigurationError("map must be a list of rows such as ['SFF', 'FHF', 'FFG'].")
    rows = tuple(desc)
    if not rows or not rows[0]:
        raise ConfigurationError("map has no cells; expected rows such as ['SFF', 'FHF', 'FFG'].")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise ConfigurationError(f"map row {number} has {len(row)} cells, but row 1 has {len(rows[0])}.")
        unknown = sorted(set(row) - set("SFHG"))
        if unknown:
            raise ConfigurationError(f"map row {number} has {unknown[0]!r}; expected S, F, H or G.")
    for letter, meaning in (("S", "start"), ("G", "goal")):
        count = "".join(rows).count(letter)
        if count != 1:
            raise ConfigurationError(f"map must have exactly one {meaning} ({letter}), not {count}.")
    if not has_path(rows):
        raise ConfigurationError("map has no path from start to goal around its holes; remove some holes.")
    return rows


@lru_cache(maxsize=64)
def lake_of_map(desc: Map) -> Lake:
    """Return the lake of a valid map; cached, so that all environments with the map share it."""
    return Lake(desc)


def has_path(desc: Map) -> bool:
    """Return True if a path without holes connects start and goal."""
    width = len(desc[0]) + 1
    # Holes above, below and at the end of each row make tests for the edge unnecessary.
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
    """Return the lake of a generated task, the same in every process; cached, so that members of a group share it.

    Args:
        size: Number of rows and of columns.
        p_frozen: Probability that a cell other than start and goal is frozen.
        start_goal: "corners" (top left and bottom right) or "random" (two distinct cells).
        task: Task name `<split>/<index>`.

    Raises:
        ConfigurationError: So few maps of this kind exist that none belongs to the split.
    """
    split = task.rpartition("/")[0]
    rng = random.Random(stable_seed("frozenlake", size, p_frozen, start_goal, task))
    for _ in range(_MAX_SPLIT_DRAWS):
        desc = random_map(size, p_frozen, start_goal, rng)
        if belongs(desc, split):
            return Lake(desc)
    raise ConfigurationError(
        f"split {split!r} has no map of size {size} with p_frozen {p_frozen} and {start_goal} start and goal;"
        " choose a larger size."
    )


def random_map(size: int, p_frozen: float, start_goal: str, rng: random.Random) -> Map:
    """Draw maps, start and goal included, until one has a path from start to goal.

    If none of 100 draws has a path, a random shortest path is frozen in the last one.
    """
    cells: list[str] = []
    start = goal = 0
    for _ in range(_MAX_DRAWS):
        start, goal = (0, size * size - 1) if start_goal == CORNERS else rng.sample(range(size * size), 2)
        cells = ["F" if rng.random() < p_frozen else "H" for _ in range(size * size)]
        cells[start], cells[goal] = "S", "G"
        desc = _rows(cells, size)
        if has_path(desc):
            return desc
    for cell in _random_path(start, goal, size, rng):
        cells[cell] = "F"
    cells[start], cells[goal] = "S", "G"
    return _rows(cells, size)


def _rows(cells: Sequence[str], size: int) -> Map:
    return tuple("".join(cells[place : place + size]) for place in range(0, size * size, size))


def _random_path(start: int, goal: int, size: int, rng: random.Random) -> Iterable[int]:
    """Yield the cells of a random shortest path from start (excluded) to goal."""
    (row, column), (last_row, last_column) = divmod(start, size), divmod(goal, size)
    legs = ["row"] * abs(last_row - row) + ["column"] * abs(last_column - column)
    rng.shuffle(legs)
    for leg in legs:
        if leg == "row":
            row += 1 if last_row > row else -1
        else:
            column += 1 if last_column > column else -1
        yield row * size + column
