"""Drawings that the boards of several environments share: the agent, and the assembly of tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .canvas import Canvas, Color, Picture, hex_color, mix, paste

TILE = 48
"""Side of a tile in pixels."""

AGENT = hex_color("#2563b8")
_WHITE: Color = (255, 255, 255)


def assemble(rows: Sequence[Sequence[str]], tile: Callable[[str], Picture]) -> Picture:
    """Return the picture of a board, whose tiles are named row by row.

    Args:
        rows: Names of the tiles; all rows are equally long.
        tile: Function from a name to its tile, [TILE, TILE, 3].
    """
    picture = np.empty((len(rows) * TILE, len(rows[0]) * TILE, 3), np.uint8)
    for row, names in enumerate(rows):
        for column, name in enumerate(names):
            paste(picture, tile(name), row * TILE, column * TILE)
    return picture


def draw_agent(canvas: Canvas, color: Color = AGENT) -> None:
    """Draw the agent in the middle of a tile: a round head with two eyes."""
    middle = TILE / 2
    canvas.ellipse(middle, TILE * 0.83, TILE * 0.25, TILE * 0.06, mix(color, (120, 120, 120), 0.55))
    canvas.ellipse(middle, TILE * 0.49, TILE * 0.32, TILE * 0.32, mix(color, (0, 0, 0), 0.3))
    canvas.ellipse(middle, TILE * 0.475, TILE * 0.29, TILE * 0.29, color)
    for side in (-1, 1):
        eye = middle + side * TILE * 0.105
        canvas.ellipse(eye, TILE * 0.42, TILE * 0.075, TILE * 0.09, _WHITE)
        canvas.ellipse(eye, TILE * 0.435, TILE * 0.035, TILE * 0.045, mix(color, (0, 0, 0), 0.7))
