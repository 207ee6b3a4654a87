"""Pictures of frozen lakes, of 48 x 48 pixels a cell."""

from __future__ import annotations

from functools import lru_cache

from ..pictures.canvas import Canvas, Picture, hex_color, mix
from ..pictures.tiles import AGENT, TILE, assemble, draw_agent
from .lake import Lake

_ICE, _SEAM, _GLINT = hex_color("#dcebf3"), hex_color("#c3d9e6"), hex_color("#f4fafd")
_WATER, _RIM = hex_color("#1f5475"), hex_color("#a5c6d8")
_FLAG, _WON = hex_color("#c8572c"), hex_color("#2f8a50")
_POLE = hex_color("#4a4238")
_DROWNED = mix(AGENT, _WATER, 0.45)


def lake_picture(lake: Lake, cell: int) -> Picture:
    """Return the picture of a lake with the agent on `cell`.

    The start is a ring on the ice, the goal a flag, and a hole dark water.

    Returns:
        Pixels, [48 x rows, 48 x columns, 3].
    """
    names = [letter for row in lake.desc for letter in row]
    names[cell] += "P"
    columns = lake.columns
    return assemble([names[place : place + columns] for place in range(0, len(names), columns)], _tile)


@lru_cache(maxsize=16)
def _tile(name: str) -> Picture:
    """Return the tile of a cell: a letter of the map, followed by P where the agent is."""
    letter, has_agent = name[0], name.endswith("P")
    canvas = Canvas(TILE, TILE, _SEAM)
    canvas.box(0, 0, TILE - 1, TILE - 1, _ICE)
    middle = TILE / 2
    if letter == "H":
        canvas.ellipse(middle, middle, TILE * 0.43, TILE * 0.39, _RIM)
        canvas.ellipse(middle, middle + 1, TILE * 0.37, TILE * 0.33, _WATER)
        if not has_agent:
            canvas.line([(middle - 8, middle - 2), (middle, middle - 2)], 2, mix(_WATER, _GLINT, 0.35))
            canvas.line([(middle, middle + 6), (middle + 9, middle + 6)], 2, mix(_WATER, _GLINT, 0.25))
    else:
        canvas.line([(9, 15), (17, 8)], 2, _GLINT)
        canvas.line([(29, 40), (40, 30)], 2, _GLINT)
    if letter == "S":
        canvas.ring(middle, middle, TILE * 0.36, 2, mix(_SEAM, AGENT, 0.35))
    if letter == "G":
        _draw_flag(canvas, has_agent)
    if has_agent:
        draw_agent(canvas, _DROWNED if letter == "H" else AGENT)
    if letter == "H" and has_agent:
        canvas.ring(middle, middle, TILE * 0.42, 4, _FLAG)
    return canvas.picture


def _draw_flag(canvas: Canvas, is_reached: bool) -> None:
    """Draw the goal; behind the agent, a green ring stands for it."""
    if is_reached:
        canvas.ring(TILE / 2, TILE / 2, TILE * 0.42, 4, _WON)
        return
    canvas.ellipse(TILE * 0.4, TILE * 0.84, TILE * 0.18, TILE * 0.05, _SEAM)
    canvas.line([(TILE * 0.36, TILE * 0.16), (TILE * 0.36, TILE * 0.84)], 3.5, _POLE)
    canvas.triangle([(TILE * 0.4, TILE * 0.16), (TILE * 0.8, TILE * 0.31), (TILE * 0.4, TILE * 0.47)], _FLAG)
