"""Observations of a lake (the grid, its coordinates, or both) and the instructions that explain them."""

from __future__ import annotations

from functools import lru_cache

from .lake import ACTIONS, Lake

FORMATS = ("grid", "grid_coord", "coord")
"""Formats of observations."""

LEGEND = {"P": "you", "_": "ice", "O": "a hole", "G": "the goal", "X": "you in a hole", "√": "you on the goal"}
"""Symbols of the board and their meanings."""

_SYMBOLS = str.maketrans("SFH", "__O")
"""Letters of a map as symbols of the board."""


def render(lake: Lake, cell: int, observation_format: str) -> str:
    """Return the observation of a lake with the agent on `cell`."""
    if observation_format == "grid":
        return _grid(lake, cell)
    if observation_format == "coord":
        return _coordinates(lake, cell)
    return f"{_coordinates(lake, cell)}\n{_grid(lake, cell)}"


def _grid(lake: Lake, cell: int) -> str:
    board = _constant_texts(lake)[0]
    place = cell + cell // lake.columns  # with the ends of the rows before it
    symbol = "√" if cell == lake.goal else "X" if lake.terminal[cell] else "P"
    return f"{board[:place]}{symbol}{board[place + 1 :]}"


def _coordinates(lake: Lake, cell: int) -> str:
    _, before, after = _constant_texts(lake)
    player = "Player on goal" if cell == lake.goal else "Player in hole" if lake.terminal[cell] else "Player"
    return f"{before}\n{player}: {_positions(lake.rows, lake.columns)[cell]}{after}"


@lru_cache(maxsize=1024)
def _constant_texts(lake: Lake) -> tuple[str, str, str]:
    """Return the board without the player, and the lines of coordinates before and after the player's."""
    positions = _positions(lake.rows, lake.columns)
    before = (
        f"Board: {lake.rows} rows, {lake.columns} columns; positions are (row, column), counted from 0\n"
        f"Start: {positions[lake.start]}\n"
        f"Goal: {positions[lake.goal]}"
    )
    holes = ", ".join([positions[hole] for hole in lake.holes])
    return "\n".join(lake.desc).translate(_SYMBOLS), before, f"\nHoles: {holes}" if holes else ""


@lru_cache(maxsize=64)
def _positions(rows: int, columns: int) -> tuple[str, ...]:
    return tuple(f"({row}, {column})" for row in range(rows) for column in range(columns))


def explain(success_rate: float, observation_format: str) -> str:
    """Return the instructions of an environment.

    Args:
        success_rate: Probability that a step goes in the chosen direction.
        observation_format: "grid", "grid_coord" or "coord".
    """
    side = (1.0 - success_rate) / 2.0
    slip = (
        "The ice is not slippery: every step goes where you choose."
        if success_rate == 1.0
        else f"The ice is slippery: a step goes where you choose with probability {success_rate:.3g} and"
        f" to either side of that, at right angles, with probability {side:.3g} each."
    )
    shown = (
        "Positions are given as (row, column), counted from zero at the top left."
        if observation_format == "coord"
        else f"On the board, {', '.join(f'{symbol} is {meaning}' for symbol, meaning in LEGEND.items())}."
    )
    return (
        "You are on a frozen lake. Walk to the goal and do not step into a hole. A step off the board leaves"
        f" you where you are. {slip} {shown} Each action is one of {', '.join(ACTIONS)}."
    )
