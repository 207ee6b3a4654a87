"""Results and measurements as tables for an 80-column terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from .bench.row import Row
from .report import number, percent
from .summary import Line, Summary


def results_table(summary: Summary) -> Table:
    """The summary's lines; intervals are 95 %."""
    with_score = any(line.score is not None for line in summary.lines)
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("world", overflow="fold", max_width=22)
    table.add_column("player", overflow="fold", max_width=24)
    table.add_column("success %", justify="right", no_wrap=True)
    if with_score:
        table.add_column("score", justify="right", no_wrap=True)
    for name in ("return", "steps", "refused %", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    before: tuple[str, str | None] | None = None
    for line in summary.lines:
        place = (line.entry, line.group)
        if before is not None and place != before and line.group is None:
            table.add_section()
        name = "" if place == before else line.entry if line.group is None else f"  {line.group}"
        before = place
        cells = [Text(name), Text(line.agent), _success(line)]
        if with_score:
            cells.append(Text(number(line.score.value, 1) if line.score else "–"))
        n = f"{line.episodes}" if line.episodes == line.expected else f"{line.episodes}/{line.expected}"
        cells += [
            Text(number(line.mean_return.value)),
            Text(number(line.steps, 1)),
            Text(percent(line.invalid)),
            Text(n),
        ]
        table.add_row(*cells)
    return table


def _success(line: Line) -> Text:
    if math.isnan(line.success.value):
        return Text("–")
    text = Text(f"{100 * line.success.value:5.1f}", style="bold")
    text.append(f" {100 * line.success.low:5.1f}–{100 * line.success.high:5.1f}", style="dim not bold")
    return text


def bench_table(rows: Sequence[Row], width: int = 80) -> Table:
    """Measurements and the bars they should reach; what they were measured against, where there is room."""
    with_beside = width >= 110
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("what", overflow="fold")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("bar", justify="right", no_wrap=True)
    if with_beside:
        table.add_column("beside", overflow="fold", style="dim")
    for row in rows:
        style = {True: "green", False: "red", None: ""}[row.reached]
        bar = "" if row.bar is None else f"{'≥' if row.higher_is_better else '≤'} {_amount(row.bar, row.unit)}"
        cells: list[str | Text] = [row.what, Text(_amount(row.value, row.unit), style=style), bar]
        table.add_row(*cells, *([row.beside] if with_beside else []))
    return table


def _amount(value: float, unit: str) -> str:
    digits = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits} x" if unit == "x" else f"{digits} {unit}" if not unit.startswith("/") else f"{digits}{unit}"
