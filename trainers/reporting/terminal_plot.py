"""Line plots in a terminal: braille dots, labeled axes and a legend. Pure functions from numbers to text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from rich.text import Text

_BRAILLE_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of the 2 × 4 dots of a braille character, indexed `[row from the top][column]`."""
_BRAILLE_BLANK = 0x2800
_ROW_COST = 8
"""Columns to the left that a letter is moved rather than into the next row."""
_LEGEND_SAMPLES = {"line": "⠒⠒", "dots": "⠂⠂", "marks": "⠒●⠒"}


@dataclass(frozen=True)
class Series:
    """Data series of a plot.

    Attributes:
        label: Label in the legend; an empty string leaves the series out of the legend.
        points: Points (x, y) in ascending order of x; points with NaN or infinite y are skipped.
        style: Color or other style, in the notation of rich.
        kind: "line" connects the points, "dots" draws the points only, "marks" connects them and marks each one.
        letter: Letter at the last point and in the legend, which tells series apart without colors.
    """

    label: str
    points: Sequence[tuple[float, float]]
    style: str
    kind: Literal["line", "dots", "marks"] = "line"
    letter: str = ""


def plot(
    series: Sequence[Series],
    *,
    x_max: float,
    y_max: float | None = None,
    width: int = 80,
    height: int = 15,
    format_value: Callable[[float], str] = lambda value: f"{value:g}",
    x_label: str = "update",
) -> Text:
    """Draw data series over a common x-axis from 0 to `x_max` and a y-axis from 0 to a round number.

    Args:
        series: Data series; where two overlap, the later one determines color and mark.
        x_max: Right end of the x-axis.
        y_max: Upper limit of the y-axis' range; None for no limit.
        width: Total width in columns.
        height: Total height in lines, legend and x-axis included.
        format_value: Formats the tick labels of the y-axis.
        x_label: Name of the x-axis, beside its last tick label.
    """
    visible = [[(x, y) for x, y in one.points if math.isfinite(y) and 0 <= x <= x_max] for one in series]
    highest = max((y for points in visible for _, y in points), default=0.0)
    if highest <= 0:
        highest = y_max or 1.0
    step = round_step(highest, 5)
    ceiling = step * max(1, math.ceil(highest / step - 1e-9))
    if y_max is not None:
        ceiling = min(ceiling, y_max)
    ticks = [step * i for i in range(math.floor(ceiling / step + 1e-9) + 1)]
    labels = [format_value(tick) for tick in ticks]
    left = max(map(len, labels)) + 2  # a space and the axis
    legend = _legend(series, width - left)
    columns, rows = max(width - left - 1, 8), max(height - 2 - len(legend), 3)
    canvas = _Canvas(columns, rows, x_max, ceiling)
    for one, points in zip(series, visible, strict=True):
        canvas.draw(points, one.style, one.kind)
    for one, points in zip(series, visible, strict=True):
        if one.letter and points:
            canvas.put(points[-1], one.letter, one.style)
    text = Text("\n", no_wrap=True).join(Text(" " * left).append_text(line) for line in legend)
    label_by_row = {canvas.row(tick): label for tick, label in zip(ticks, labels, strict=True)}
    for row in range(rows):
        label, axis = label_by_row.get(row, ""), "┤" if row in label_by_row else "│"
        text.append(f"\n{label:>{left - 2}} {axis}", style="dim")
        for column in range(columns):
            character, style = canvas.character(column, row)
            text.append(character, style=style)
    text.append_text(_x_axis(x_max, columns, left, x_label))
    return text


def running_mean(points: Sequence[tuple[float, float]], width: int) -> list[tuple[float, float]]:
    """Return the mean of each point and its predecessors, `width` points in all (fewer at the beginning)."""
    return [
        (x, sum(y for _, y in points[max(0, i + 1 - width) : i + 1]) / min(width, i + 1))
        for i, (x, _) in enumerate(points)
    ]


def round_step(span: float, max_parts: int) -> float:
    """Return the smallest of 1, 2, 2.5, 5 × 10ⁿ that divides a span into at most `max_parts` parts."""
    power = 10.0 ** math.floor(math.log10(span / max_parts))
    return next(power * f for f in (1, 2, 2.5, 5, 10) if power * f * max_parts >= span * (1 - 1e-9))


class _Canvas:
    """Grid of braille characters, 2 × 4 dots each; every character has one style and at most one mark.

    Args:
        columns: Width in characters.
        rows: Height in characters.
        x_max: Value at the right edge; the left edge is 0.
        y_max: Value at the upper edge; the lower edge is 0.
    """

    def __init__(self, columns: int, rows: int, x_max: float, y_max: float) -> None:
        self._columns, self._rows = columns, rows
        self._x_max, self._y_max = max(x_max, 1e-9), y_max
        self._bits: dict[tuple[int, int], int] = {}
        self._styles: dict[tuple[int, int], str] = {}
        self._marks: dict[tuple[int, int], tuple[str, str]] = {}

    def _to_dot(self, x: float, y: float) -> tuple[int, int]:
        """Return the dot (column, row from the top) of a point."""
        last_column, last_row = 2 * self._columns - 1, 4 * self._rows - 1
        height = min(max(y / self._y_max, 0.0), 1.0)
        return round(x / self._x_max * last_column), round((1 - height) * last_row)

    def row(self, y: float) -> int:
        """Return the row of characters that contains a value of y."""
        return self._to_dot(0.0, y)[1] // 4

    def draw(self, points: Sequence[tuple[float, float]], style: str, kind: str) -> None:
        """Draw a data series; see `Series`."""
        dots = [self._to_dot(x, y) for x, y in points]
        for dot in dots:
            self._set_dot(dot, style)
        if kind != "dots":
            for (x, y), (to_x, to_y) in pairwise(dots):
                steps = max(abs(to_x - x), abs(to_y - y), 1)
                for i in range(1, steps):
                    dot = (x + round((to_x - x) * i / steps), y + round((to_y - y) * i / steps))
                    self._set_dot(dot, style)
        if kind == "marks":
            for x, y in dots:
                self._marks[x // 2, y // 4] = "●", style

    def put(self, point: tuple[float, float], letter: str, style: str) -> None:
        """Write a letter at a point, or where another letter or a mark is there, in the nearest free place.

        Places to the left in the same row are preferred, where the point's line usually is.
        """
        column, row = self._to_dot(*point)[0] // 2, self.row(point[1])
        free = ((x, y) for x in range(column + 1) for y in range(self._rows) if (x, y) not in self._marks)
        nearest = min(free, key=lambda at: column - at[0] + _ROW_COST * abs(at[1] - row), default=(column, row))
        self._marks[nearest] = letter, style

    def _set_dot(self, dot: tuple[int, int], style: str) -> None:
        x, y = dot
        position = (x // 2, y // 4)
        self._bits[position] = self._bits.get(position, 0) | _BRAILLE_BITS[y % 4][x % 2]
        self._styles[position] = style

    def character(self, column: int, row: int) -> tuple[str, str]:
        """Return a character of the grid and its style."""
        position = (column, row)
        if position in self._marks:
            return self._marks[position]
        if position not in self._bits:
            return " ", ""
        return chr(_BRAILLE_BLANK + self._bits[position]), self._styles[position]


def _legend(series: Sequence[Series], width: int) -> list[Text]:
    """Return the labels in lines of at most `width` columns, unless a label alone is longer."""
    lines = [Text()]
    for one in reversed(series):
        if one.label:
            sample = f"⠒{one.letter}⠒" if one.letter else _LEGEND_SAMPLES[one.kind]
            label = Text.assemble((sample, one.style), f" {one.label}")
            if lines[-1] and len(lines[-1]) + 3 + len(label) > width:
                lines.append(Text())
            lines[-1].append("   " if lines[-1] else "").append_text(label)
    return lines


def _x_axis(x_max: float, columns: int, left: int, name: str) -> Text:
    """Return the two lines of the x-axis: line with ticks, and tick labels."""
    labels = _x_labels(x_max, columns, name)
    axis = "".join("┴" if column in labels else "─" for column in range(columns))
    text = Text(f"\n{' ' * (left - 1)}└{axis}", style="dim")
    line = [" "] * columns
    for column, label in reversed(labels.items()):  # the last label has priority: it contains the axis' name
        start = min(max(column - len(label) // 2, 0), columns - len(label))
        if all(character == " " for character in line[max(start - 1, 0) : start + len(label) + 1]):
            line[start : start + len(label)] = label
    text.append(f"\n{' ' * left}{''.join(line).rstrip()}")
    return text


def _x_labels(x_max: float, columns: int, name: str) -> dict[int, str]:
    """Return the tick labels of the x-axis by column: whole numbers, the last one with the axis' name."""
    step = max(1, round(round_step(x_max, max(columns // 10, 1))))
    labels = {}
    for value in range(0, math.floor(x_max) + 1, step):
        labels[round(value / max(x_max, 1e-9) * (columns - 1))] = f"{value}"
    last = max(labels)
    labels[last] = f"{name} {labels[last]}"
    return labels
