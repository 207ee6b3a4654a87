"""Tables of results and benchmark measurements for an 80-column terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.box import SIMPLE
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ..envs.terminal import Terminal, fit_parts
from .bench.row import Row
from .paper_text import table_text
from .report import number, percent
from .statistics.repeats import Repeats
from .summary import Line, Summary

TABLE_WIDTH = 72
"""Columns that the table of results needs, with room for names; a narrower one would cut numbers."""


def results_table(summary: Summary, space: int = 1) -> Table:
    """Return the table of a summary's lines, with 95 % intervals of success rates.

    If an agent searched, the table has the tokens per episode instead of the refused actions.

    Args:
        summary: The results.
        space: Additional spaces between columns.
    """
    with_score = any(line.score is not None for line in summary.lines)
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, space, 0, 0), show_edge=False)
    # "env", because rich folds a longer heading if names of agents are long.
    table.add_column("env", overflow="fold")
    table.add_column("agent", overflow="fold")
    table.add_column("success %", justify="right", no_wrap=True)
    if with_score:
        table.add_column("score", justify="right", no_wrap=True)
    with_cost = _has_cost(summary)
    refused = "refused %" if space else "refused\n%"  # else the longest heading by far
    for name in ("return", "steps", "tokens" if with_cost else refused, "n"):
        table.add_column(name, justify="right", no_wrap=True)
    previous: tuple[str, str | None] | None = None
    for line in summary.lines:
        current = (line.entry, line.group)
        if previous is not None and current != previous and line.group is None:
            table.add_section()
        name = "" if current == previous else line.entry if line.group is None else f"  {line.group}"
        previous = current
        cells = [Text(name), Text(line.agent), _format_success(line)]
        if with_score:
            cells.append(Text(number(line.score.value, 1) if line.score else "–"))
        cells += [
            Text(number(line.mean_return.value)),
            Text(_format_steps(line)),
            Text(_format_tokens(line) if with_cost else percent(line.invalid)),
            Text(_format_count(line)),
        ]
        table.add_row(*cells)
    return table


def fit_results(summary: Summary, width: int) -> Table | Text:
    """Return the tables of the suite, or else that of all results, each line of it as two where it is too wide.

    Args:
        summary: The results.
        width: Width of the terminal in columns.
    """
    if summary.tables:
        tables = [table_text(table, width) for table in summary.tables]
        remark = Text("Returns, steps and refused actions of every entry are in the report.\n")
        return Text("\n").join([*tables, remark])
    for space in (1, 0):
        table = results_table(summary, space)
        if _fits(table, width):
            return table
    text = Text(overflow="fold")
    previous = None
    for line in summary.lines:
        name = line.entry if line.group is None else f"{line.entry}, {line.group}"
        if name != previous:
            text.append(f"\n{name}\n", style="bold")
        previous = name
        success = "–" if math.isnan(line.success.value) else _format_success(line).plain.strip()
        success = f"success {success.replace('– ', '–').replace('  ', ' ')} %"
        parts = [success] if line.score is None else [success, f"score {number(line.score.value, 1)}"]
        text.append(f"{fit_parts(parts, width, head=f'{line.agent}:')}\n")
        last = f"{_format_tokens(line)} tokens" if _has_cost(summary) else f"{percent(line.invalid)} % refused"
        parts = [f"return {number(line.mean_return.value)}", f"{_format_steps(line)} steps", last]
        parts.append(f"n {_format_count(line)}")
        text.append(f"{fit_parts(parts, width, indent='    ')}\n", style="dim")
    return text


def _fits(table: Table, width: int) -> bool:
    """Return True if a terminal of a width shows a table without folding a name."""
    unlimited = Terminal(width=1000)
    return width >= TABLE_WIDTH and Measurement.get(unlimited, unlimited.options, table).maximum <= width


class RepeatsRow(NamedTuple):
    """Row of the table of repeats."""

    entry: str
    agent: str
    repeats: Repeats


def repeats_rows(summary: Summary) -> list[RepeatsRow]:
    """Return the lines of a summary that have repeats, without those of groups of tasks."""
    return [
        RepeatsRow(line.entry, line.agent, line.repeats)
        for line in summary.lines
        if line.repeats is not None and line.group is None
    ]


def attempts_shown(rows: Sequence[RepeatsRow], most: int = 2) -> list[int]:
    """Return the numbers of attempts k that a table of repeats has columns for: the smallest and the largest.

    Args:
        rows: The rows.
        most: Maximum number of columns; from 2 on.
    """
    found = sorted({k for row in rows for k in row.repeats.pass_at_k})
    return found if len(found) <= most else [*found[: most - 1], found[-1]]


def fit_repeats(rows: Sequence[RepeatsRow], width: int) -> Table | Text:
    """Return the table of pass@k, pass^k and flips in percent, or short lines in a narrow terminal.

    Args:
        rows: The rows.
        width: Width of the terminal in columns.
    """
    attempts = attempts_shown(rows)
    names = [*(f"pass@{k}" for k in attempts), *(f"pass^{k}" for k in attempts), "flips"]
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("env", no_wrap=True)
    table.add_column("agent", no_wrap=True)
    for name in names:
        table.add_column(f"{name} %", justify="right", no_wrap=True)
    previous = None
    for row in rows:
        name = "" if row.entry == previous else row.entry
        previous = row.entry
        table.add_row(Text(name), Text(row.agent), *_repeat_cells(row, attempts))
    if _fits(table, width):
        return table
    text = Text("repeats of a task, %\n", overflow="fold")
    for row in rows:
        cells = [f"{name} {cell}" for name, cell in zip(names, _repeat_cells(row, attempts), strict=True)]
        text.append(f"{fit_parts([row.entry, row.agent], width, indent='')}\n")
        text.append(f"{fit_parts(cells, width)}\n")
    return text


def _repeat_cells(row: RepeatsRow, attempts: Sequence[int]) -> list[str]:
    columns = [(values, k) for values in (row.repeats.pass_at_k, row.repeats.pass_all_k) for k in attempts]
    return [
        *(percent(values[k].value) if k in values else "–" for values, k in columns),
        percent(row.repeats.flips.value),
    ]


def _has_cost(summary: Summary) -> bool:
    """Return True if an agent searched, so that results are to be compared at their cost."""
    return any(line.simulated_steps is not None for line in summary.lines)


def _format_tokens(line: Line) -> str:
    return "–" if line.tokens is None else f"{line.tokens:,.0f}"


def _format_steps(line: Line) -> str:
    """Format the steps of an episode; those of a search in branches follow a plus sign."""
    simulated = "" if line.simulated_steps is None else f"+{line.simulated_steps:,.0f}"
    return f"{number(line.steps, 1)}{simulated}"


def _format_count(line: Line) -> str:
    return f"{line.episodes}" if line.episodes == line.expected else f"{line.episodes}/{line.expected}"


def _format_success(line: Line) -> Text:
    """Format a success rate with its interval, in aligned columns."""
    if math.isnan(line.success.value):
        return Text("–")
    text = Text(f"{100 * line.success.value:5.1f}", style="bold")
    text.append(f" {100 * line.success.low:5.1f} to {100 * line.success.high:5.1f}", style="dim not bold")
    return text


def bench_table(rows: Sequence[Row], width: int = 80) -> Table:
    """Return the table of benchmark measurements with their targets; missed ones are marked in words.

    Args:
        rows: The measurements.
        width: Width of the terminal in columns; from 110 on, the table includes details.
    """
    with_details = width >= 110
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("measurement", overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("target", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, style="red")
    if with_details:
        table.add_column("details", overflow="fold", style="dim")
    for row in rows:
        if math.isnan(row.value):
            continue
        style = {True: "green", False: "red", None: ""}[row.reached]
        relation = "≥" if row.higher_is_better else "≤"
        target = "" if row.target is None else f"{relation} {_format_amount(row.target, row.unit)}"
        mark = "missed" if row.reached is False else ""
        cells: list[str | Text] = [row.what, Text(_format_amount(row.value, row.unit), style=style), target, mark]
        table.add_row(*cells, *([row.details] if with_details else []))
    return table


def _format_amount(value: float, unit: str) -> str:
    digits = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits} x" if unit == "x" else f"{digits} {unit}" if not unit.startswith("/") else f"{digits}{unit}"
