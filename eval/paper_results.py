"""Results of a run in its suite's paper tables: values with intervals, averages, and marks of other tasks.

A column is *comparable* with the published rows only if the run played the same tasks. It is not if the data is
generated, if the entry was replaced because files are missing, if the column has a note, or if the number of
tasks differs. The average of columns of which some are generated and some are not has no value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from .paper_tables import PaperTable, TableColumn
from .statistics import Interval, weighted_mean


class _Line(Protocol):
    """Attributes of a line of the summary that cells are made of; see `Line`."""

    @property
    def entry(self) -> str: ...
    @property
    def group(self) -> str | None: ...
    @property
    def agent(self) -> str: ...
    @property
    def episodes(self) -> int: ...
    @property
    def success(self) -> Interval: ...
    @property
    def score(self) -> Interval | None: ...


class Cell(NamedTuple):
    """Value of an agent in a column, in percent.

    Attributes:
        value: The value.
        low: Lower bound of its 95 % interval; NaN for a published value.
        high: Upper bound.
        episodes: Number of episodes; 0 for a published value.
    """

    value: float
    low: float
    high: float
    episodes: int


@dataclass(frozen=True)
class ColumnFacts:
    """Origin of a column's results.

    Attributes:
        name: Heading.
        generated: Name of the generated data that replaces the benchmark's files; None for none.
        comparable: True if the published values of the column are of the same tasks.
        differences: Reasons why they are not, as phrases.
        tasks: Number of tasks that were played; None for an average.
        published_tasks: Number of tasks behind the published values; None if unknown.
        measure: Quantity and limits of the column; "" for those of the table.
    """

    name: str
    generated: str | None
    comparable: bool
    differences: list[str]
    tasks: float | None = None
    published_tasks: int | None = None
    measure: str = ""


@dataclass(frozen=True)
class TableRow:
    """Row of a table.

    Attributes:
        label: Agent, or published method.
        published: True for a row that was published.
        source: Publication of such a row; "" for an agent.
        model: Language model of such a row; "" if it is unknown.
        cells: One cell per column; None without a value.
    """

    label: str
    published: bool
    source: str
    model: str
    cells: list[Cell | None]


@dataclass(frozen=True)
class FilledTable:
    """Table of a suite with the results of a run.

    Attributes:
        title: Heading.
        measure: Quantity and unit of the values.
        columns: Origin of each column's results.
        rows: Agents, then published rows.
        transposed: Show a row for each column, and the rows side by side.
    """

    title: str
    measure: str
    columns: list[ColumnFacts]
    rows: list[TableRow]
    transposed: bool = False


OTHER_NUMBER = "another number of tasks than in the paper"
"""Difference of a column whose numbers `tasks` and `published_tasks` differ."""
OTHER_TASKS = "other tasks, because files are missing"
"""Difference of a column whose entry was replaced without a note."""


def fill_tables(
    tables: Sequence[PaperTable],
    lines: Sequence[_Line],
    agents: Sequence[str],
    repeats: Mapping[str, int],
    manifest: Mapping[str, Any],
) -> list[FilledTable]:
    """Return the tables with the results of a run.

    Args:
        tables: Tables of the run's suite.
        lines: Lines of the run's summary.
        agents: Names of the agents, in the order of the rows.
        repeats: Episodes per task, by entry.
        manifest: Content of `run.json`.
    """
    generated = {f"{data}: {entry}": data for entry, data in manifest.get("data", {}).items()}
    entries = manifest.get("entries", {})
    replaced = {entry: facts["replaced"] for entry, facts in entries.items() if "replaced" in facts}
    by_place = {(line.entry, line.group, line.agent): line for line in lines}
    filled = []
    for table in tables:
        facts: dict[str, ColumnFacts] = {}
        for column in table.columns:
            if column.entry is None:
                continue
            episodes = max(
                (by_place[place].episodes for agent in agents if (place := _place(column, agent)) in by_place),
                default=0,
            )
            tasks = episodes / repeats.get(column.entry, 1)
            facts[column.name] = _entry_facts(
                column, generated.get(column.entry), replaced.get(column.entry), tasks
            )
        for column in table.columns:
            if column.entry is None:
                facts[column.name] = _average_facts(column, [facts[name] for name in column.parts])
        shown = [column.name for column in table.columns if not column.hidden]
        columns = [facts[name] for name in shown]
        rows = []
        for agent in agents:
            own = _agent_cells(table, by_place, agent, facts)
            rows.append(TableRow(agent, False, "", "", [own[name] for name in shown]))
        for row in table.published:
            values = [row.values.get(name) for name in shown]
            cells = [None if value is None else Cell(float(value), math.nan, math.nan, 0) for value in values]
            rows.append(TableRow(row.method, True, row.source, row.model, cells))
        filled.append(FilledTable(table.title, table.measure, columns, rows, table.transposed))
    return filled


def _place(column: TableColumn, agent: str) -> tuple[str, str | None, str]:
    assert column.entry is not None
    return column.entry, column.group, agent


def _entry_facts(column: TableColumn, generated: str | None, replaced: str | None, tasks: float) -> ColumnFacts:
    differences = [f"{generated} in place of the benchmark's files"] if generated is not None else []
    if generated is None and replaced == "":
        differences = [OTHER_TASKS]
    differences += [text for text in (replaced, column.note) if text]
    if generated is None and column.tasks is not None and tasks != column.tasks:
        differences.append(OTHER_NUMBER)
    return ColumnFacts(column.name, generated, not differences, differences, tasks, column.tasks, column.measure)


def _average_facts(column: TableColumn, parts: Sequence[ColumnFacts]) -> ColumnFacts:
    data = {part.generated for part in parts}
    if None in data and len(data) > 1:
        reason = "no average: only some of its columns are on generated data"
        return ColumnFacts(column.name, None, False, [reason], measure=column.measure)
    generated = ", ".join(sorted(filter(None, data))) or None
    differences = [column.note] if column.note else []
    if not differences and not all(part.comparable for part in parts):
        differences.append("average of columns that are marked")
    return ColumnFacts(column.name, generated, not differences, differences, measure=column.measure)


def _agent_cells(
    table: PaperTable,
    lines: Mapping[tuple[str, str | None, str], _Line],
    agent: str,
    facts: Mapping[str, ColumnFacts],
) -> dict[str, Cell | None]:
    """Return the agent's cells by the names of the columns."""
    cells: dict[str, Cell | None] = {}
    for column in table.columns:
        if column.entry is not None:
            line = lines.get(_place(column, agent))
            cells[column.name] = None if line is None else _cell(line, column)
    for column in table.columns:
        if column.entry is None:
            parts = [cells[name] for name in column.parts]
            mixed = len({facts[name].generated is None for name in column.parts}) > 1
            cells[column.name] = None if mixed else average(parts, pooled=bool(column.micro))
    return cells


def _cell(line: _Line, column: TableColumn) -> Cell | None:
    """Return the value of a line in percent; scores are percentages already."""
    if column.metric == "score":
        found, factor = line.score, 1.0
    else:
        found, factor = line.success, 100.0
    if found is None or not line.episodes or math.isnan(found.value):
        return None
    return Cell(factor * found.value, factor * found.low, factor * found.high, line.episodes)


def average(parts: Sequence[Cell | None], *, pooled: bool) -> Cell | None:
    """Return the average of independent estimates, with an interval from theirs; see `weighted_mean`.

    Args:
        parts: Cells of the columns; None for a column without a result, which leaves the average without one.
        pooled: Weight by the numbers of episodes (micro average) instead of equally (macro average).
    """
    found = [part for part in parts if part is not None]
    if len(found) < len(parts) or not found:
        return None
    weights = [part.episodes if pooled else 1 for part in found]
    mean = weighted_mean([Interval(part.value, part.low, part.high) for part in found], weights)
    return Cell(*mean, sum(part.episodes for part in found))


__all__ = ["Cell", "ColumnFacts", "FilledTable", "TableRow", "average", "fill_tables"]
