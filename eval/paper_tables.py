"""Tables of a suite in the layout of a paper: columns of data sets and averages, and rows that were published.

    tables:
      - title: Search
        measure: exact match in %
        columns:
          - {name: NQ, entry: NQ, tasks: 3610}
          - {name: TriviaQA, entry: TriviaQA, tasks: 11313}
          - {name: Average, macro: [NQ, TriviaQA]}
        published:
          - {method: GRPO, model: Qwen2.5-3B, source: "arXiv:0000.00000, table 1", values: {NQ: 40.1, Average: 43}}

Every agent of a run is a row. The keys are the fields of `PaperTable`, `TableColumn` and `PublishedRow`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from ..envs.checks import at_least
from ..envs.errors import ConfigurationError, DataError, unknown_name
from .yaml_files import convert_mapping

T = TypeVar("T")
Metric = Literal["success", "score"]


class _Entry(Protocol):
    """Attributes of a suite's entry that columns refer to; see `Entry`."""

    @property
    def name(self) -> str: ...
    @property
    def group_by(self) -> str | None: ...
    @property
    def groups(self) -> tuple[str, ...]: ...
    @property
    def score(self) -> str | None: ...


@dataclass(frozen=True)
class TableColumn:
    """One column: results of an entry or of a group of its tasks, or an average of other columns.

    Attributes:
        name: Heading, unique in the table.
        entry: Name of the entry; absent for an average.
        group: Value of the entry's `group_by` key; None for all tasks of the entry.
        metric: "success" for the success rate in percent, or "score" for the mean of the entry's `score` key times
            100.
        tasks: Number of tasks behind the published rows. A run on another number is marked. None if unknown.
        note: Difference between the entry's tasks and those of the published rows; the column is then marked. ""
            for none.
        macro: Names of columns whose values are averaged with equal weights.
        micro: Names of columns whose values are averaged with their numbers of episodes as weights.
        measure: Quantity and limits of this column, for a transposed table of several quantities.
        hidden: Leave the column out; it is there for averages.
    """

    name: str
    entry: str | None = None
    group: str | None = None
    metric: Metric = "success"
    tasks: int | None = None
    note: str = ""
    macro: tuple[str, ...] = ()
    micro: tuple[str, ...] = ()
    measure: str = ""
    hidden: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the columns that an average is computed from; empty for an entry's column."""
        return self.macro or self.micro


@dataclass(frozen=True)
class PublishedRow:
    """Results that a paper reports.

    Attributes:
        method: Name of the method or agent.
        source: Publication, with its table or section.
        values: Reported values in percent, by the names of columns; columns without a value are left empty.
        model: Language model with its size; "" if it is unknown, which the table says.
    """

    method: str
    source: str
    values: Mapping[str, float]
    model: str = ""


@dataclass(frozen=True)
class PaperTable:
    """Table of a suite's results in the layout of a paper.

    Attributes:
        title: Heading of the table.
        columns: The columns, in their order.
        measure: Quantity and unit of the values, such as "exact match in %"; it follows the title.
        published: Rows that were published.
        transposed: Show a row for each of `columns`, and agents and published rows side by side.
    """

    title: str
    columns: tuple[TableColumn, ...]
    measure: str = "success in %"
    published: tuple[PublishedRow, ...] = ()
    transposed: bool = False

    def rename_entries(self, names: Mapping[str, str]) -> PaperTable:
        """Return the table with other names of entries.

        Args:
            names: New names by the old ones.
        """
        columns = tuple(
            dataclasses.replace(column, entry=None if column.entry is None else names[column.entry])
            for column in self.columns
        )
        return dataclasses.replace(self, columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain data, without fields that have their default value."""
        plain: dict[str, Any] = {"title": self.title, "measure": self.measure}
        if self.transposed:
            plain["transposed"] = True
        plain["columns"] = [_plain(column) for column in self.columns]
        if self.published:
            plain["published"] = [_plain(row) for row in self.published]
        return plain


def _plain(owner: TableColumn | PublishedRow) -> dict[str, Any]:
    plain = {}
    for one in dataclasses.fields(owner):
        value = getattr(owner, one.name)
        if value != one.default:
            plain[one.name] = dict(value) if isinstance(value, Mapping) else value
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def read_tables(data: object, entries: Sequence[_Entry], source: str) -> tuple[PaperTable, ...]:
    """Read the tables of a suite from plain data.

    Args:
        data: Value of the suite's key `tables`; None for no tables.
        entries: Entries of the suite.
        source: Path of the suite's file, for messages.

    Raises:
        DataError: The data does not describe tables, or refers to something that the suite does not have.
    """
    if data is None:
        return ()
    return tuple(_numbered(data, source, "tables", lambda item, where: _read_table(item, entries, where)))


def _numbered(data: object, where: str, key: str, read: Callable[[Any, str], T]) -> list[T]:
    """Read the items of a non-empty list of mappings, with their place for messages."""
    if not isinstance(data, list) or not data or not all(isinstance(item, dict) for item in data):
        raise DataError(where, f"`{key}` must be a non-empty list of mappings.")
    singular = {"tables": "table", "columns": "column", "published": "published row"}[key]
    return [read(item, f"{where}, {singular} {number}") for number, item in enumerate(data, 1)]


def _read_table(item: Mapping[str, Any], entries: Sequence[_Entry], where: str) -> PaperTable:
    table = convert_mapping({**item, "columns": [], "published": []}, PaperTable, {}, where)
    columns = _numbered(item.get("columns"), where, "columns", _read_column)
    names = [column.name for column in columns]
    for number, column in enumerate(columns, 1):
        place = f"{where}, column {number}"
        if names.count(column.name) > 1:
            raise DataError(place, f"two columns have the name {column.name!r}; names must differ.")
        _check_column(column, entries, [one.name for one in columns if one.entry is not None], place)
    if all(column.hidden for column in columns):
        raise DataError(where, "all columns are hidden; show at least one.")
    published = []
    if item.get("published") is not None:
        published = _numbered(
            item["published"], where, "published", lambda row, place: _read_row(row, names, place)
        )
    return dataclasses.replace(table, columns=tuple(columns), published=tuple(published))


def _read_column(item: Mapping[str, Any], where: str) -> TableColumn:
    texts = {key: str(item[key]) for key in ("name", "group") if isinstance(item.get(key), int | float)}
    column = convert_mapping({**item, **texts}, TableColumn, {}, where)
    try:
        at_least("`tasks`", column.tasks, 1)
    except ConfigurationError as error:
        raise DataError(where, str(error)) from None
    return column


def _check_column(column: TableColumn, entries: Sequence[_Entry], parts: Sequence[str], where: str) -> None:
    """Raise `DataError` unless the column refers to what the suite has."""
    given = [name for name in ("entry", "macro", "micro") if getattr(column, name)]
    if len(given) != 1:
        raise DataError(
            where, f"needs exactly one of `entry`, `macro` and `micro`, not {' and '.join(given) or 'none'}."
        )
    if column.entry is None:
        if len(set(column.parts)) < len(column.parts):
            raise DataError(where, "names a column twice; name each column of an average once.")
        for name in column.parts:
            if name not in parts:
                raise DataError(where, str(unknown_name("column of an entry", name, parts)))
        for key in ("group", "tasks"):
            if getattr(column, key) is not None:
                raise DataError(where, f"is an average, which has no `{key}`; omit it.")
        return
    found = {entry.name: entry for entry in entries}
    if column.entry not in found:
        raise DataError(where, str(unknown_name("entry", column.entry, found)))
    entry = found[column.entry]
    if column.group is not None and entry.group_by is None:
        raise DataError(
            where, f"has a group, but entry {entry.name!r} has no `group_by`; add it, or omit `group`."
        )
    if column.group is not None and entry.groups and column.group not in entry.groups:
        raise DataError(where, str(unknown_name("group", column.group, entry.groups)))
    if column.metric == "score" and entry.score is None:
        raise DataError(where, f"has the metric score, but entry {entry.name!r} has no `score`; add it there.")


def _read_row(item: Mapping[str, Any], columns: Sequence[str], where: str) -> PublishedRow:
    row = convert_mapping(item, PublishedRow, {}, where)
    if not row.source.strip():
        raise DataError(where, "`source` is empty; name the publication and its table.")
    if not row.values:
        raise DataError(where, "`values` is empty; give at least one value, or remove the row.")
    for name, value in row.values.items():
        if name not in columns:
            raise DataError(where, str(unknown_name("column", name, columns)))
        if not 0 <= value <= 100:
            raise DataError(where, f"the value of {name!r} must be between 0 and 100 (percent), not {value:g}.")
    return row


__all__ = ["Metric", "PaperTable", "PublishedRow", "TableColumn", "read_tables"]
