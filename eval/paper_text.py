"""Tables in the layout of a paper as texts: cells, marks and legends, and their form in the terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.text import Text

from .paper_results import OTHER_NUMBER, Cell, ColumnFacts, FilledTable, TableRow

GENERATED, OTHER = "*", "+"
"""Marks of columns on generated data, and of columns that otherwise have other tasks than the published rows."""
_GAP = 2


class GridRow(NamedTuple):
    """Row of a table as texts.

    Attributes:
        label: First cell.
        values: Further cells.
        bounds: Intervals below the values; "" without one. Empty for a row without intervals.
        published: True for a row that was published.
    """

    label: str
    values: list[str]
    bounds: list[str]
    published: bool


class Grid(NamedTuple):
    """Table as texts.

    Attributes:
        title: Heading, with the quantity of the values.
        heads: Headings of the columns after the first.
        rows: The rows.
        legend: Explanations of the marks, and sources.
    """

    title: str
    heads: list[str]
    rows: list[GridRow]
    legend: list[str]


def make_grid(table: FilledTable) -> Grid:
    """Return a table as texts, transposed if the table says so."""
    sources = list(dict.fromkeys(_source(row) for row in table.rows if row.published))
    labels = [
        f"{row.label} [{sources.index(_source(row)) + 1}]" if row.published else row.label for row in table.rows
    ]
    names = [column.name + _mark(column) for column in table.columns]
    counts = [
        str(max((cell.episodes for row in table.rows if (cell := row.cells[n]) is not None), default=0))
        for n in range(len(names))
    ]
    values = [
        [format_value(cell, column, row.published) for cell, column in zip(row.cells, table.columns, strict=True)]
        for row in table.rows
    ]
    bounds = [[format_bounds(cell) for cell in row.cells] for row in table.rows]
    title = f"{table.title}: {table.measure}" if table.measure else table.title
    legend = list(_legend(table, sources))
    if not table.transposed:
        rows = [GridRow("episodes", counts, [], False)]
        for row, label, cells, own in zip(table.rows, labels, values, bounds, strict=True):
            rows.append(GridRow(label, cells, [] if row.published else own, row.published))
        return Grid(title, names, rows, legend)
    measures = [column.measure for column in table.columns]
    rows = [
        GridRow(name, [measure, count, *(row[n] for row in values)], ["", "", *(row[n] for row in bounds)], False)
        for n, (name, measure, count) in enumerate(zip(names, measures, counts, strict=True))
    ]
    return Grid(title, ["measure", "episodes", *labels], rows, legend)


def _mark(column: ColumnFacts) -> str:
    """Return the mark of a column's heading and values; "" for a column that is comparable."""
    return "" if column.comparable else GENERATED if column.generated is not None else OTHER


def _source(row: TableRow) -> str:
    return f"{row.source}; model: {row.model or 'not recorded'}"


def format_value(cell: Cell | None, column: ColumnFacts, published: bool) -> str:
    """Return a cell's value: with the column's mark, or in parentheses if it is published and not comparable."""
    if cell is None:
        return "–"
    if published:  # With the digits of the publication
        return f"{cell.value:g}" if column.comparable else f"({cell.value:g})"
    return f"{cell.value:.1f}".replace("-", "\N{MINUS SIGN}") + _mark(column)


def format_bounds(cell: Cell | None) -> str:
    """Return the interval of a cell in whole percent; "" without one."""
    if cell is None or not math.isfinite(cell.low) or not math.isfinite(cell.high):
        return ""
    low, high = (f"{round(bound) + 0:d}".replace("-", "\N{MINUS SIGN}") for bound in (cell.low, cell.high))
    return f"{low} to {high}" if cell.low <= -0.5 else f"{low}–{high}"


def _legend(table: FilledTable, sources: Sequence[str]) -> Iterator[str]:
    """Yield the explanations of a table's marks, and the sources of its published rows."""
    marks: dict[tuple[str, str], list[str]] = {}
    for column in table.columns:
        for reason in column.differences:
            name = column.name
            if reason == OTHER_NUMBER:
                name += f" {column.tasks:,g} instead of {column.published_tasks:,}"
            marks.setdefault((_mark(column), reason), []).append(name)
    for (mark, reason), names in marks.items():
        yield f"{mark} {reason}: {', '.join(names)}"
    cells = [
        (cell, column)
        for row in table.rows
        if row.published
        for cell, column in zip(row.cells, table.columns, strict=True)
    ]
    if any(cell is not None and not column.comparable for cell, column in cells):
        yield "( ) published for other tasks than this run's: not comparable with the run's values"
    for number, source in enumerate(sources, 1):
        yield f"[{number}] published: {source}"


def table_text(table: FilledTable, width: int) -> Text:
    """Return a table with its legend.

    A table that is wider than the terminal is divided into parts, each with some of the columns.

    Args:
        table: The table.
        width: Width of the terminal in columns.
    """
    grid = make_grid(table)
    text = Text(textwrap.fill(grid.title, width) + "\n", style="bold")
    widths = [
        max(len(cells[n]) for cells in (grid.heads, *(part for row in grid.rows for part in row[1:3] if part)))
        for n in range(len(grid.heads))
    ]
    label_width = min(max(len(row.label) for row in grid.rows), max(8, width - _GAP - max(widths)))
    gap = 1 if sum(widths) + len(widths) <= width - label_width < sum(widths) + _GAP * len(widths) else _GAP
    for part in _divide([gap + one for one in widths], width - label_width):

        def line(label: str, cells: Sequence[str], style: str, part: Sequence[int] = part) -> None:
            first, *rest = textwrap.wrap(label, label_width) or [""]
            row = first.ljust(label_width) + "".join(cells[n].rjust(gap + widths[n]) for n in part)
            text.append("\n".join([row.rstrip(), *rest]) + "\n", style=style)

        line("", grid.heads, "not bold underline")
        for row in grid.rows:
            if not row.published or any(row.values[n] != "–" for n in part):
                line(row.label, row.values, "not bold italic" if row.published else "not bold")
            if row.bounds and any(row.bounds[n] for n in part):
                line("", row.bounds, "not bold dim")
    for sentence in grid.legend:
        text.append(textwrap.fill(sentence, width, subsequent_indent="  ") + "\n", style="not bold dim")
    return text


def _divide(widths: Sequence[int], available: int) -> Iterator[list[int]]:
    """Yield groups of consecutive columns that fit the available width, at least one in each.

    Args:
        widths: Widths of the columns with the gap before each.
        available: Width for all of them.
    """
    part: list[int] = []
    used = 0
    for n, width in enumerate(widths):
        if part and used + width > available:
            yield part
            part, used = [], 0
        part.append(n)
        used += width
    yield part
