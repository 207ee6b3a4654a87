"""Observations of a board (the grid, its coordinates, or both) and the instructions that explain them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

from .rules import Vocabulary

ObservationFormat = Literal["grid", "coord", "grid_coord"]
OBSERVATION_FORMATS = ("grid", "coord", "grid_coord")

Renderer = Callable[[str, int], str]
"""Function from a board and the player's index in it to an observation."""

_LEGEND = {
    "wall": "wall",
    "floor": "empty floor",
    "target": "target",
    "box_on_target": "box on a target",
    "box": "box",
    "player": "you",
    "player_on_target": "you on a target",
}


def board_size(board: str) -> tuple[int, int]:
    """Return the number of rows and columns of a board's text."""
    columns = board.index("\n")
    return (len(board) + 1) // (columns + 1), columns


def renderer(board: str, vocabulary: Vocabulary, observation_format: ObservationFormat) -> Renderer | None:
    """Return the function from boards of a level to observations, or None for the grid, which is the board itself.

    Coordinates are (row, column), counted from 0 at the top left. Without the grid they also list the inner walls,
    so that the observation is complete; the outermost cells are always walls.

    Args:
        board: Any board of the level; its walls and size are fixed.
        vocabulary: Symbols of the board.
        observation_format: Format of the observations.
    """
    if observation_format == "grid":
        return None
    rows, columns = board_size(board)
    names = _cell_names(rows, columns)
    head = f"Coordinates:\nBoard: {rows} rows x {columns} columns, counted from 0"
    walls = [
        names[i]
        for i, symbol in enumerate(board)
        if symbol == vocabulary.wall and columns < i < len(board) - columns and 0 < i % (columns + 1) < columns - 1
    ]
    tail = "\nInner walls: " + ", ".join(walls) if walls else ""
    lines = (
        ("\nTargets: ", vocabulary.target),
        ("\nBoxes: ", vocabulary.box),
        ("\nBoxes on target: ", vocabulary.box_on_target),
    )
    player_labels = {vocabulary.player: "\nPlayer: ", vocabulary.player_on_target: "\nPlayer on target: "}
    coordinates_only = observation_format == "coord"

    def render(board: str, player: int) -> str:
        text = head
        for label, symbol in lines:
            at = board.find(symbol)
            if at >= 0:
                text += label + names[at]
                while (at := board.find(symbol, at + 1)) >= 0:
                    text += ", " + names[at]
        if coordinates_only:
            return f"{text}{player_labels[board[player]]}{names[player]}{tail}"
        return f"{text}{player_labels[board[player]]}{names[player]}\nGrid Map:\n{board}"

    return render


@lru_cache(maxsize=64)
def _cell_names(rows: int, columns: int) -> list[str]:
    """Return the coordinates of every index of a board's text, as strings."""
    return [f"({i // (columns + 1)}, {i % (columns + 1)})" for i in range(rows * (columns + 1))]


def explain(size: tuple[int, int] | None, vocabulary: Vocabulary, observation_format: ObservationFormat) -> str:
    """Return the instructions of an environment that shows boards in a given format.

    Args:
        size: Number of rows and columns, or None if levels differ in size.
        vocabulary: Symbols of the board.
        observation_format: Format of the observations.
    """
    parts = [
        "You are solving a Sokoban puzzle: push every box onto a target. Each action moves you one cell. If a box"
        " stands there, you push it one cell further, provided that the cell beyond is neither a wall nor another"
        " box. You cannot pull a box or walk through one, so take care not to push a box into a corner."
    ]
    if observation_format != "grid":
        last_cell = ""
        if size is not None:
            last_cell = f", up to ({size[0] - 1}, {size[1] - 1}) at the bottom right"
        parts.append(
            f"Positions are given as (row, column), counted from (0, 0) at the top left{last_cell}. The outermost"
            " cells are all walls."
        )
    if observation_format != "coord":
        symbols = ", ".join(f"{getattr(vocabulary, kind)} {name}" for kind, name in _LEGEND.items())
        measures = f"The board has {size[0]} rows and {size[1]} columns. " if size is not None else ""
        parts.append(f"{measures}The board's symbols: {symbols}.")
    parts.append(
        "The actions are Up, Down, Left and Right. Every action costs 0.1 points, a box pushed onto a target earns"
        " 1 point, a box pushed off a target costs 1 point, and solving the puzzle earns 10 points."
    )
    return "\n".join(parts)
