"""Queries on the index of a run: pages, counts, and streams that hold few results at a time."""

from __future__ import annotations

import json
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .episode_filter import ALL_EPISODES, SORT_KEYS, EpisodeFilter, order_by
from .episode_lines import EpisodeKey, Result, parse_head
from .index_connection import is_damage

EPISODES_FILE = "episodes.jsonl"

HEAD = (
    "cell, task, repeat, seed, success, total_reward, steps, turns, invalid, truncated, seconds, error, details,"
    " position"
)
"""Columns of `episodes` that make a result."""

BATCH = 256
"""Number of rows that a stream reads at once. No lock is held in between."""

_LAST_REPEAT = 2**63 - 1
"""Index of a repeat that no later one follows."""

_OF_CELL = "cell = (SELECT cell FROM cells WHERE agent = CAST(? AS TEXT) AND entry = CAST(? AS TEXT))"


class Cell(NamedTuple):
    """Numbers of episodes of an agent on an entry.

    Attributes:
        agent: Name of the agent.
        entry: Name of the entry.
        episodes: Number of episodes, those that broke off included.
        solved: Number of solved episodes.
        failed: Number of episodes that broke off with an error.
    """

    agent: str
    entry: str
    episodes: int
    solved: int
    failed: int


class TaskOutcomes(NamedTuple):
    """Complete episodes of an agent on a task.

    Attributes:
        task: Name of the task.
        episodes: Number of complete episodes.
        solved: Number of solved ones.
        first: Number that orders the tasks of a run by the end of their first episode.
        retried: True if one of them has earlier attempts in its record.
    """

    task: str
    episodes: int
    solved: int
    first: int
    retried: bool


class IndexReader(ABC):
    """Queries on the index of a run. Threads may share it.

    Args:
        folder: Folder of the run.
        connection: Connection to the tables.
    """

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self._folder, self._connection = folder, connection
        self._path = folder / EPISODES_FILE
        self._lock = threading.RLock()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def results(self) -> dict[EpisodeKey, Result]:
        """Return the latest result of every episode, in the order in which the episodes ended first."""
        return {result.key: result for result in self.page(limit=None)}

    def page(
        self,
        which: EpisodeFilter = ALL_EPISODES,
        *,
        sort: str = "order",
        descending: bool = False,
        offset: int = 0,
        limit: int | None = 50,
    ) -> list[Result]:
        """Return a page of results; `store.read_episode` reads the episode of one.

        Args:
            which: Results to choose from.
            sort: Name of the sort key, one of `SORT_KEYS`; ties are in the order of playing.
            descending: Reverse the order.
            offset: Number of results before the page.
            limit: Maximum number of results; None for all.
        """
        condition, values = which.sql()
        order = order_by(sort, descending)
        if limit is None:
            return self._read(f"episodes WHERE {condition} {order} LIMIT -1 OFFSET ?", [*values, offset])
        # Sorting identities first keeps the wide columns out of the sorter.
        return self._read(
            "(SELECT id AS chosen, row_number() OVER () AS place FROM (SELECT episodes.id FROM episodes WHERE"
            f" {condition} {order} LIMIT ? OFFSET ?)) JOIN episodes ON episodes.id = chosen ORDER BY place",
            [*values, limit, offset],
        )

    def at(self, offset: int) -> Result | None:
        """Return the result whose line begins at a byte of `episodes.jsonl`; None if none does."""
        try:
            with self._path.open("rb") as file:
                file.seek(offset)
                head = parse_head(file.readline(), offset)
        except (OSError, OverflowError, ValueError):  # There is no file, or it cannot be as long.
            return None
        if isinstance(head, str):
            return None
        found = (result for result in self.of_task(head.key.entry, head.key.task) if result.offset == offset)
        return next(found, None)

    def of_task(self, entry: str, task: str) -> list[Result]:
        """Return the results of a task, by agent and repeat."""
        return self._read(
            "episodes WHERE cell IN (SELECT cell FROM cells WHERE entry = CAST(? AS TEXT))"
            f" AND task = CAST(? AS TEXT) ORDER BY {SORT_KEYS['agent']}, repeat",
            [bind(entry), bind(task)],
        )

    def _read(self, source: str, values: Iterable[Any]) -> list[Result]:
        """Return the results of the rows that `source`, the end of a query from its tables on, selects."""
        rows = self._fetch(f"SELECT {HEAD} FROM {source}", values)
        cells = {cell: (agent, entry) for cell, agent, entry in self._fetch("SELECT * FROM cells")}
        return [_to_result(cells[row[0]], row) for row in rows]

    def count(self, which: EpisodeFilter = ALL_EPISODES) -> int:
        """Return the number of results that a filter selects."""
        condition, values = which.sql()
        ((number,),) = self._fetch(f"SELECT count(*) FROM episodes WHERE {condition}", values)
        return int(number)

    def cells(self, which: EpisodeFilter = ALL_EPISODES) -> list[Cell]:
        """Return the numbers of episodes that a filter selects, by agent and entry."""
        condition, values = which.sql()
        rows = self._fetch(
            "SELECT agent, entry, episodes, solved, failed FROM (SELECT cell, count(*) AS episodes,"
            f" sum(success) AS solved, sum(failed) AS failed FROM episodes WHERE {condition} GROUP BY cell)"
            " JOIN cells USING (cell) ORDER BY cell",
            values,
        )
        return [Cell(*row) for row in rows]

    def in_task_order(self, agent: str, entry: str) -> Iterator[Result]:
        """Yield the results of an agent on an entry by task, in order of code points, and repeat.

        The memory that it needs does not depend on their number. Episodes that end meanwhile may be left out.
        """
        task, repeat = "", -1
        while True:
            results = self._read(
                f"episodes WHERE {_OF_CELL} AND (task, repeat) > (CAST(? AS TEXT), ?)"
                " ORDER BY task, repeat LIMIT ?",
                [bind(agent), bind(entry), bind(task), repeat, BATCH],
            )
            yield from results
            if len(results) < BATCH:
                return
            task, repeat = results[-1].key[2:]

    def task_outcomes(self, agent: str, entry: str) -> Iterator[TaskOutcomes]:
        """Yield the outcomes of an agent on each task of an entry that it completed, in order of code points."""
        task, repeat = "", -1
        while True:
            rows = self._fetch(
                # Quotes in a text are escaped, so that this finds keys only.
                "SELECT task, count(*), sum(success), min(id), max(instr(details, '\"trial\": ') > 0)"
                f" FROM episodes WHERE {_OF_CELL} AND (task, repeat) > (CAST(? AS TEXT), ?) AND NOT failed"
                " GROUP BY task ORDER BY task LIMIT ?",
                [bind(agent), bind(entry), bind(task), repeat, BATCH],
            )
            for task, episodes, solved, first, retried in rows:
                yield TaskOutcomes(task, episodes, solved, first, bool(retried))
            if len(rows) < BATCH:
                return
            repeat = _LAST_REPEAT

    def sample(self, agent: str, entry: str, number: int) -> list[Result]:
        """Return at most `number` results of an agent on an entry, evenly spaced in their order."""
        ((total,),) = self._fetch(f"SELECT count(*) FROM episodes WHERE {_OF_CELL}", [bind(agent), bind(entry)])
        count = min(number, total)
        if not count:
            return []
        # The places of the sample are p * total / count, rounded down, for p from 0 to count - 1.
        return self._read(
            "(SELECT id AS chosen FROM (SELECT id, row_number() OVER (ORDER BY id) - 1 AS place FROM episodes"
            f" WHERE {_OF_CELL}) WHERE (place * ? + ? - 1) / ? * ? / ? = place LIMIT ?)"
            " JOIN episodes ON episodes.id = chosen ORDER BY chosen",
            # Python 3.14 refuses numbered placeholders with a sequence of values.
            [bind(agent), bind(entry), count, total, total, total, count, count],
        )

    def complete_of_tasks(
        self, agents: Sequence[str], entry: str, tasks: Sequence[str], limit: int = -1
    ) -> list[Result]:
        """Return complete results of agents on some tasks, in the order in which the episodes ended first.

        Args:
            agents: Names of the agents.
            entry: Name of the entry.
            tasks: Names of at most 900 tasks.
            limit: Maximum number of results; -1 for all.
        """
        return self._read(
            "episodes WHERE cell IN (SELECT cell FROM cells WHERE entry = CAST(? AS TEXT)"
            f" AND agent IN ({_marks(agents)})) AND task IN ({_marks(tasks)}) AND NOT failed ORDER BY id LIMIT ?",
            [bind(entry), *map(bind, agents), *map(bind, tasks), limit],
        )

    def find(self, key: EpisodeKey) -> Result | None:
        """Return the result of an episode; None if it has none."""
        found = self._read(
            f"episodes WHERE {_OF_CELL} AND task = CAST(? AS TEXT) AND repeat = ?",
            [bind(key.agent), bind(key.entry), bind(key.task), key.repeat],
        )
        return found[0] if found else None

    def finished(
        self, agent: str, entry: str, tasks: Sequence[str], repeats: range
    ) -> dict[tuple[str, int], bool]:
        """Return the success of each complete episode of an agent on some tasks, by task and repeat.

        Args:
            agent: Name of the agent.
            entry: Name of the entry.
            tasks: Names of at most 900 tasks.
            repeats: Indices of the repeats, without gaps.
        """
        rows = self._fetch(
            f"SELECT task, repeat, success FROM episodes WHERE {_OF_CELL} AND task IN ({_marks(tasks)})"
            " AND repeat >= ? AND repeat < ? AND NOT failed",
            [bind(agent), bind(entry), *map(bind, tasks), repeats.start, repeats.stop],
        )
        return {(task, repeat): bool(success) for task, repeat, success in rows}

    def _fetch(self, query: str, values: Iterable[Any] = ()) -> list[Any]:
        """Return the rows of a query; an index that turns out to be damaged is made anew."""
        values = list(values)
        with self._lock:
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.DatabaseError as error:
                if "decode" in str(error):  # A text with lone surrogates.
                    self._connection.text_factory = _decode
                    return self._connection.execute(query, values).fetchall()
                if not is_damage(error):
                    raise
            self._make_anew()
            return self._connection.execute(query, values).fetchall()

    @abstractmethod
    def _make_anew(self) -> None:
        """Replace the connection by one to an index that is made anew."""


def _to_result(cell: tuple[str, str], row: Sequence[Any]) -> Result:
    """Return the result of a row with the columns of `HEAD`, whose agent and entry are `cell`."""
    _, task, repeat, seed, success, total_reward, steps, turns, invalid, truncated, seconds, *rest = row
    error, details, position = rest
    return Result(
        EpisodeKey(*cell, task, repeat),
        seed,
        bool(success),
        total_reward,
        steps,
        turns,
        invalid,
        bool(truncated),
        seconds,
        error,
        json.loads(details) if details else {},
        position,
    )


def _marks(texts: Sequence[str]) -> str:
    """Return the placeholders of texts in a query."""
    return ", ".join(["CAST(? AS TEXT)"] * len(texts))


def bind(text: str | None) -> str | bytes | None:
    """Return a text as SQLite takes it: as bytes if it has lone surrogates."""
    if text is None or text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")
