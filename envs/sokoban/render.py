"""What the player reads: the grid, the coordinates of its pieces, or both, and the legend that explains them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

from .rules import Vocabulary

ObservationFormat = Literal["grid", "coord", "grid_coord"]
OBSERVATION_FORMATS = ("grid", "coord", "grid_coord")

Renderer = Callable[[str, int], str]
"""From a board and the player's index in it to an observation."""

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
    """Rows and columns of a board's text."""
    columns = board.index("\n")
    return (len(board) + 1) // (columns + 1), columns


def renderer(board: str, vocabulary: Vocabulary, observation_format: ObservationFormat) -> Renderer | None:
    """The function from a level's boards to observations, or None where they are the same (the grid).

    Coordinates are (row, column), counted from 0 at the top left. The coordinates beside a grid leave the walls to
    the grid; alone, they list the walls within the outermost cells, so that nothing is hidden.
    """
    if observation_format == "grid":
        return None
    rows, columns = board_size(board)
    names = _names(rows, columns)
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
    standing = {vocabulary.player: "\nPlayer: ", vocabulary.player_on_target: "\nPlayer on target: "}
    alone = observation_format == "coord"

    def render(board: str, player: int) -> str:
        text = head
        for label, symbol in lines:
            at = board.find(symbol)
            if at >= 0:
                text += label + names[at]
                while (at := board.find(symbol, at + 1)) >= 0:
                    text += ", " + names[at]
        if alone:
            return f"{text}{standing[board[player]]}{names[player]}{tail}"
        return f"{text}{standing[board[player]]}{names[player]}\nGrid Map:\n{board}"

    return render


@lru_cache(maxsize=64)
def _names(rows: int, columns: int) -> list[str]:
    """The coordinates of every index of a board's text."""
    return [f"({i // (columns + 1)}, {i % (columns + 1)})" for i in range(rows * (columns + 1))]


def explain(size: tuple[int, int] | None, vocabulary: Vocabulary, observation_format: ObservationFormat) -> str:
    """The instructions of a world that shows boards like this.

    Args:
        size: rows and columns, where known.
        vocabulary: the symbols in use.
        observation_format: the format in use.
    """
    parts = [
        "You are solving a Sokoban puzzle: push every box onto a target. Each action moves you one cell. If a box"
        " stands there, you push it one cell further, provided that the cell beyond is neither a wall nor another"
        " box. You cannot pull a box or walk through one, so take care not to push a box into a corner."
    ]
    if observation_format != "grid":
        place = ""
        if size is not None:
            place = f", up to ({size[0] - 1}, {size[1] - 1}) at the bottom right"
        parts.append(
            f"Positions are given as (row, column), counted from (0, 0) at the top left{place}. The outermost"
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
