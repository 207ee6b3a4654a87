"""A table of a study: its rows, for the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ...eval.statistics import Interval
from .results import Gain, Row
from .trials import TUNED

_NAMES = ("level", "other")
"""Columns of names."""
_TABLE_WIDTH = 80
"""Columns of a terminal that a table needs."""
LEAST_WIDTH = 12
"""Characters that the first column of a terminal's table may have for the name of an environment."""
Cells = Mapping[str, str]
"""Cells of a row by column; columns without a cell in any row are left out."""


@dataclass(frozen=True)
class StudyTable:
    """Table of a study.

    Attributes:
        title: Title.
        notes: Sentences that explain the columns.
        columns: Headings by column, in order.
        rows: Row of the study and its cells, in order.
        wide: Columns that a terminal has no room for.
        narrow: Columns that stand for them in a terminal.
    """

    title: str
    notes: Sequence[str]
    columns: Mapping[str, str]
    rows: Sequence[tuple[Row, Cells]]
    wide: Sequence[str] = ()
    narrow: Sequence[str] = ()

    def used(self, *, terminal: bool) -> list[str]:
        """Return the columns of a terminal, or of a wide page, that have at least one cell."""
        left_out = self.wide if terminal else self.narrow
        return [
            column
            for column in self.columns
            if column not in left_out and any(cells.get(column) for _, cells in self.rows)
        ]


def format_policy(row: Row) -> str:
    """Return the name of a row's policy for a narrow column."""
    return f"tuned, T={row.details['temperature']:g}" if row.policy == TUNED else row.policy


def policy_cells(row: Row) -> Cells:
    """Return the first cells of a policy's row."""
    return {"policy": format_policy(row), "runs": str(row.runs or "")}


def format_rate(interval: Interval) -> str:
    """Return a rate in percent with its interval."""
    return f"{100 * interval.value:.0f}% [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"


def format_gain(gain: Gain | None) -> str:
    """Return a difference in whole points; empty without one."""
    if gain is None:
        return ""
    return f"{round(100 * gain.result.difference.value):+d}{'*' if gain.is_significant else ''}"


def format_difference(gain: Gain) -> str:
    """Return a difference with its interval, in points."""
    value, low, high = (100 * number for number in gain.result.difference[:3])
    return f"{value:+.1f}{'*' if gain.is_significant else ''} [{low:+.1f}, {high:+.1f}]"


def render_table(table: StudyTable, width: int) -> Table | Text:
    """Return a table for a terminal, or in one of fewer than 80 columns the cells of each row below its policy.

    Args:
        table: The table.
        width: Width of the terminal in columns.
    """
    if width < _TABLE_WIDTH:
        return _list_cells(table)
    rendered = Table(
        title=table.title,
        caption="\n".join(table.notes),
        caption_justify="left",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    columns = table.used(terminal=True)
    # The name of an environment, above its policies, wraps where it is longer than theirs.
    widths = [len(format_policy(row)) + 1 for row, _ in table.rows]
    rendered.add_column(table.columns["policy"], max_width=max(LEAST_WIDTH, *widths), overflow="fold")
    for column in columns[1:]:
        rendered.add_column(table.columns[column], justify="left" if column in _NAMES else "right", no_wrap=True)
    before: Row | None = None
    for row, cells in table.rows:
        if before is None or row.env != before.env:
            if before is not None:
                rendered.add_section()
            rendered.add_row(row.env, style="bold")
        policy, *values = [cells.get(column, "") for column in columns]
        style = "green" if row.is_improvement else "" if row.greedy is not None else "dim"
        rendered.add_row("" if row is before else f" {policy}", *values, style=style)
        before = row
    return rendered


def _list_cells(table: StudyTable) -> Text:
    columns = table.used(terminal=True)[1:]
    text = Text.assemble((f"{table.title}\n", "italic"), overflow="fold")
    before: Row | None = None
    for row, cells in table.rows:
        if before is None or row.env != before.env:
            text.append(f"{row.env}\n", style="bold")
        if row is not before:
            text.append(f"  {cells.get('policy', '')}\n")
        values = [f"{table.columns[column]} {cells[column]}" for column in columns if cells.get(column)]
        text.append(f"    {', '.join(values)}\n", style="dim")
        before = row
    return text.append("\n".join(table.notes), style="italic dim")


def to_markdown(table: StudyTable) -> str:
    """Return a table as Markdown, with all columns."""
    columns = table.used(terminal=False)
    notes = "; ".join(table.notes)
    lines = [
        f"**{table.title}**: {notes}.",
        "",
        "| env | " + " | ".join(table.columns[column] for column in columns) + " |",
        "|" + "---|" * (1 + len(columns)),
    ]
    lines += [
        f"| {row.env} | " + " | ".join(cells.get(column, "") for column in columns) + " |"
        for row, cells in table.rows
    ]
    return "\n".join(lines) + "\n"
