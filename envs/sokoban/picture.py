"""Pictures of Sokoban boards, of 48 x 48 pixels a cell."""

from __future__ import annotations

from functools import lru_cache

from ..pictures.canvas import Canvas, Picture, hex_color, mix
from ..pictures.tiles import TILE, assemble, draw_agent
from .rules import STANDARD, Vocabulary, translate

_WALL, _MORTAR, _TOP = hex_color("#5d6b62"), hex_color("#465249"), hex_color("#7b8a80")
_FLOOR, _SEAM = hex_color("#f1ecdf"), hex_color("#e4dccb")
_TARGET = hex_color("#c8572c")
_WOOD, _DONE = hex_color("#b97f45"), hex_color("#3b8a58")
_WHITE = (255, 255, 255)


def board_picture(board: str, vocabulary: Vocabulary) -> Picture:
    """Return the picture of a board.

    Args:
        board: Text of the board: equally long rows of symbols.
        vocabulary: Symbols of the board.

    Returns:
        Pixels, [48 x rows, 48 x columns, 3].
    """
    return assemble(translate(board, vocabulary, STANDARD).split("\n"), _tile)


@lru_cache(maxsize=16)
def _tile(symbol: str) -> Picture:
    """Return the tile of a symbol of the standard vocabulary, with seams at its right and lower edge."""
    wall, _, target, box_on_target, box, figure, figure_on_target = STANDARD
    if symbol == wall:
        return _draw_wall()
    canvas = Canvas(TILE, TILE, _SEAM)
    canvas.box(0, 0, TILE - 1, TILE - 1, _FLOOR)
    if symbol in (target, figure_on_target):
        canvas.ring(TILE / 2, TILE / 2, TILE * (0.25 if symbol == target else 0.4), 4, _TARGET)
        canvas.ellipse(TILE / 2, TILE / 2, TILE * 0.09, TILE * 0.09, _TARGET)
    if symbol in (box, box_on_target):
        _draw_box(canvas, symbol == box_on_target)
    if symbol in (figure, figure_on_target):
        draw_agent(canvas)
    return canvas.picture


def _draw_wall() -> Picture:
    canvas = Canvas(TILE, TILE, _MORTAR)
    half = TILE / 2
    for x, y, width in ((1, 1, half - 2), (half + 1, 1, half - 2), (-half / 2, half + 1, half - 1),
                        (half / 2 + 1, half + 1, half - 2), (half * 1.5 + 1, half + 1, half)):  # fmt: skip
        canvas.box(x, y, width, half - 2, _TOP, 3)
        canvas.box(x, y + 2, width, half - 4, _WALL, 3)
    return canvas.picture


def _draw_box(canvas: Canvas, is_done: bool) -> None:
    color = _DONE if is_done else _WOOD
    edge = mix(color, (0, 0, 0), 0.35)
    canvas.box(5, 5, TILE - 10, TILE - 9, edge, 5)
    canvas.box(8, 8, TILE - 16, TILE - 16, color, 3)
    low, high = TILE * 0.28, TILE * 0.72
    if is_done:
        canvas.line([(low, TILE * 0.52), (TILE * 0.44, TILE * 0.67), (high, TILE * 0.34)], 5, _WHITE)
    else:
        canvas.line([(low, low), (high, high)], 3, edge)
        canvas.line([(low, high), (high, low)], 3, edge)
