"""Pictures of blocks: the hand above the table, the towers, and the goal below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..pictures.canvas import Canvas, Color, Picture, hex_color, ink_on, mix, text_width
from .rules import TABLE, Arrangement, Goal, held

WIDTH, HEIGHT, GAP = 92, 40, 8
"""Width and height of a block, and the gap between towers, in pixels."""
GOAL_WIDTH, GOAL_HEIGHT, GOAL_GAP = 56, 24, 6
"""The same of the blocks of the goal."""

_WALL, _LOWER, _TABLE = hex_color("#f4f1e8"), hex_color("#e7eae2"), hex_color("#8a6f52")
_HAND, _LABEL = hex_color("#4b5750"), hex_color("#5c6b60")
_MARGIN, _LEG = 12, 8

_COLORS: Mapping[str, Color] = {
    "red": hex_color("#cf4436"),
    "blue": hex_color("#2f6fc4"),
    "orange": hex_color("#e58a2b"),
    "yellow": hex_color("#efd045"),
    "white": hex_color("#fdfdfb"),
    "magenta": hex_color("#c4449b"),
    "black": hex_color("#2e3330"),
    "cyan": hex_color("#4fc0cc"),
    "green": hex_color("#3f9958"),
    "violet": hex_color("#7d58b8"),
    "silver": hex_color("#bcc2c4"),
    "gold": hex_color("#c9a227"),
}
_OTHERS = tuple(map(hex_color, ("#7d8f4e", "#a9745a", "#5f7f93", "#b58aa5", "#6d6a8f", "#93a8a0")))


def blocks_picture(words: Sequence[str], blocks: Arrangement, goal: Goal) -> Picture:
    """Return the picture of an arrangement and, below it, of the towers that the goal asks for.

    A block keeps its column as long as it is at the bottom of a tower. Conditions of the goal other than "on" and
    "on the table" are not drawn.

    Args:
        words: Names of the blocks, which are their labels; names of colors are also their colors.
        blocks: Support of each block.
        goal: The goal.

    Returns:
        Pixels, [height, width, 3]; the size depends on the number of blocks and the goal only.
    """
    count = len(words)
    towers = {block: _tower(block, blocks) for block in range(count) if blocks[block] == TABLE}
    wanted = _wanted_towers(goal)
    floor = _MARGIN + 2 * HEIGHT + count * HEIGHT
    upper = floor + _LEG + _MARGIN
    goal_floor = upper + 30 + max((len(tower) for tower in wanted), default=1) * GOAL_HEIGHT
    width = 2 * _MARGIN + count * (WIDTH + GAP) - GAP
    canvas = Canvas(goal_floor + _MARGIN, width, _LOWER)  # The towers of the goal are narrower.
    canvas.box(0, 0, width, upper, _WALL)
    canvas.box(_MARGIN / 2, floor, width - _MARGIN, _LEG, _TABLE, 3)
    _draw_hand(canvas, words, held(blocks), width / 2)
    for block, tower in towers.items():
        for level, member in enumerate(tower, 1):
            x = _MARGIN + block * (WIDTH + GAP)
            _draw_block(canvas, x, floor - level * HEIGHT, WIDTH, HEIGHT, words[member], 2)
    canvas.text(_MARGIN + text_width("GOAL", 2) / 2, upper + 14, "GOAL", _LABEL, 2)
    x = _MARGIN
    for tower in wanted:
        for level, member in enumerate(tower, 1):
            top = goal_floor - level * GOAL_HEIGHT
            _draw_block(canvas, x, top, GOAL_WIDTH, GOAL_HEIGHT, words[member], 1)
        if tower[0] in goal.table:
            canvas.box(x - 2, goal_floor, GOAL_WIDTH + 4, 4, _TABLE, 2)
        x += GOAL_WIDTH + GOAL_GAP
    return canvas.picture


def _tower(base: int, supports: Sequence[int]) -> list[int]:
    """Return the blocks of the tower on `base`, from bottom to top."""
    tower = [base]
    while tower[-1] in supports:
        tower.append(supports.index(tower[-1]))
    return tower


def _wanted_towers(goal: Goal) -> list[list[int]]:
    """Return the towers that a goal mentions, each from bottom to top."""
    above = {below: block for block, below in goal.on}
    named = {block for pair in goal.on for block in pair} | set(goal.table)
    towers = []
    for base in sorted(named - set(above.values())):
        tower = [base]
        while tower[-1] in above:
            tower.append(above[tower[-1]])
        towers.append(tower)
    return towers


def _color_of(word: str) -> Color:
    return _COLORS.get(word) or _OTHERS[sum(word.encode()) % len(_OTHERS)]


def _draw_block(canvas: Canvas, x: float, y: float, width: int, height: int, word: str, scale: int) -> None:
    color = _color_of(word)
    label = word if text_width(word, scale) <= width - 8 else word[: (width - 8) // (6 * scale)]
    canvas.box(x, y, width, height, mix(color, (0, 0, 0), 0.4), 5)
    canvas.box(x + 2, y + 2, width - 4, height - 4, color, 4)
    canvas.text(x + width / 2, y + height / 2, label, ink_on(color), scale)


def _draw_hand(canvas: Canvas, words: Sequence[str], block: int, x: float) -> None:
    """Draw the hand at the top, closed around a block or open."""
    reach = WIDTH / 2 + 4 if block >= 0 else WIDTH / 2 + 14
    canvas.box(x - 5, 0, 10, _MARGIN + 8, _HAND)
    canvas.box(x - reach, _MARGIN + 4, 2 * reach, 8, _HAND, 4)
    for side in (-1, 1):
        canvas.box(x + side * reach - 4, _MARGIN + 4, 8, HEIGHT - 4, _HAND, 4)
    if block >= 0:
        _draw_block(canvas, x - WIDTH / 2, _MARGIN + 16, WIDTH, HEIGHT, words[block], 2)
