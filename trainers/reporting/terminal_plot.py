"""Curves in a terminal: braille dots, axes with labels, a legend. Pure: numbers in, text out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from rich.text import Text

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character, by row from the top and column."""
_BLANK = 0x2800


@dataclass(frozen=True)
class Series:
    """One curve.

    Attributes:
        label: in the legend; none without one.
        points: (x, y), by rising x; what is not finite is left out.
        style: colour, as rich names it.
        kind: a line through the points, the points alone as dots, or a line with a mark at each point.
    """

    label: str
    points: Sequence[tuple[float, float]]
    style: str
    kind: Literal["line", "dots", "marks"] = "line"


def plot(
    series: Sequence[Series],
    *,
    end: float,
    width: int = 80,
    height: int = 15,
    form: Callable[[float], str] = lambda value: f"{value:g}",
    top: float | None = None,
    across: str = "update",
) -> Text:
    """Draw curves over a common x-axis from 0 to `end` and a y-axis from 0 to a round number above all.

    Args:
        series: the curves; where two meet, the later one's colour and marks are seen.
        end: the right end of the x-axis.
        width: of the whole, in columns.
        height: of the whole, in lines, legend and x-axis included.
        form: writes a number beside the y-axis.
        top: the y-axis reaches no higher than this; None for no bound.
        across: what x is.
    """
    kept = [[(x, y) for x, y in one.points if math.isfinite(y) and 0 <= x <= end] for one in series]
    highest = max((y for points in kept for _, y in points), default=0.0)
    if highest <= 0:
        highest = top or 1.0
    step = round_step(highest, 5)
    ceiling = step * max(1, math.ceil(highest / step - 1e-9))
    if top is not None:
        ceiling = min(ceiling, top)
    ticks = [step * i for i in range(math.floor(ceiling / step + 1e-9) + 1)]
    labels = [form(tick) for tick in ticks]
    left = max(map(len, labels)) + 2  # a space and the axis
    columns, rows = max(width - left - 1, 8), max(height - 3, 3)
    canvas = _Canvas(columns, rows, end, ceiling)
    for one, points in zip(series, kept, strict=True):
        canvas.draw(points, one.style, one.kind)
    text = Text(no_wrap=True)
    text.append(" " * left)
    text.append_text(_legend(series))
    beside = {canvas.row(tick): label for tick, label in zip(ticks, labels, strict=True)}
    for row in range(rows):
        text.append(f"\n{beside.get(row, ''):>{left - 2}} {'┤' if row in beside else '│'}", style="dim")
        for column in range(columns):
            character, style = canvas.cell(column, row)
            text.append(character, style=style)
    marks = _x_labels(end, columns, across)
    axis = "".join("┴" if column in marks else "─" for column in range(columns))
    text.append(f"\n{' ' * (left - 1)}└{axis}", style="dim")
    line = [" "] * columns
    for column, label in reversed(marks.items()):  # the last one tells what x is
        start = min(max(column - len(label) // 2, 0), columns - len(label))
        if all(character == " " for character in line[max(start - 1, 0) : start + len(label) + 1]):
            line[start : start + len(label)] = label
    text.append(f"\n{' ' * left}{''.join(line).rstrip()}", style="dim")
    return text


def running_mean(points: Sequence[tuple[float, float]], width: int) -> list[tuple[float, float]]:
    """Each point's mean with those before it, `width` in all (fewer at the beginning)."""
    return [
        (x, sum(y for _, y in points[max(0, i + 1 - width) : i + 1]) / min(width, i + 1))
        for i, (x, _) in enumerate(points)
    ]


class _Canvas:
    """A grid of braille characters, 2 × 4 dots each, with one colour and perhaps a mark a character."""

    def __init__(self, columns: int, rows: int, end: float, ceiling: float) -> None:
        self._columns, self._rows = columns, rows
        self._end, self._ceiling = max(end, 1e-9), ceiling
        self._bits: dict[tuple[int, int], int] = {}
        self._styles: dict[tuple[int, int], str] = {}
        self._marks: dict[tuple[int, int], str] = {}

    def _dot(self, x: float, y: float) -> tuple[int, int]:
        across, down = 2 * self._columns - 1, 4 * self._rows - 1
        share = min(max(y / self._ceiling, 0.0), 1.0)
        return round(x / self._end * across), round((1 - share) * down)

    def row(self, y: float) -> int:
        """The line of characters at a height."""
        return self._dot(0.0, y)[1] // 4

    def draw(self, points: Sequence[tuple[float, float]], style: str, kind: str) -> None:
        dots = [self._dot(x, y) for x, y in points]
        for dot in dots:
            self._set(dot, style)
        if kind != "dots":
            for (x, y), (to_x, to_y) in pairwise(dots):
                steps = max(abs(to_x - x), abs(to_y - y), 1)
                for i in range(1, steps):
                    self._set((x + round((to_x - x) * i / steps), y + round((to_y - y) * i / steps)), style)
        if kind == "marks":
            for x, y in dots:
                self._marks[x // 2, y // 4] = style

    def _set(self, dot: tuple[int, int], style: str) -> None:
        x, y = dot
        cell = (x // 2, y // 4)
        self._bits[cell] = self._bits.get(cell, 0) | _DOTS[y % 4][x % 2]
        self._styles[cell] = style

    def cell(self, column: int, row: int) -> tuple[str, str]:
        """A character and its colour."""
        place = (column, row)
        if place in self._marks:
            return "●", self._marks[place]
        if place not in self._bits:
            return " ", ""
        return chr(_BLANK + self._bits[place]), self._styles[place]


def _legend(series: Sequence[Series]) -> Text:
    text = Text()
    samples = {"line": "⠒⠒", "dots": "⠂⠂", "marks": "⠒●⠒"}
    for one in reversed(series):
        if one.label:
            text.append("   " if len(text) else "")
            text.append(samples[one.kind], style=one.style)
            text.append(f" {one.label}")
    return text


def round_step(span: float, most: int) -> float:
    """The smallest of 1, 2, 2.5, 5 × 10ⁿ that divides a span into at most so many parts."""
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(power * f for f in (1, 2, 2.5, 5, 10) if power * f * most >= span * (1 - 1e-9))


def _x_labels(end: float, columns: int, across: str) -> dict[int, str]:
    """Column -> label; whole numbers, the last one with what x is."""
    step = max(1, round(round_step(end, max(columns // 10, 1))))
    found = {}
    for value in range(0, math.floor(end) + 1, step):
        found[round(value / max(end, 1e-9) * (columns - 1))] = f"{value}"
    last = max(found)
    found[last] = f"{across} {found[last]}"
    return found
