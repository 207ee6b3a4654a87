"""Index of a run: heads of its episodes and the offsets of their lines in SQLite, made from `episodes.jsonl`.

`episodes.jsonl` is the truth, and `index.sqlite` beside it can be deleted at any time. An index is current if the
size and the time of `episodes.jsonl` are those that it has recorded. It is extended where lines were appended:
what precedes them is compared by a checksum. In all other cases it is made anew, as it is where it is damaged, of
another version, or of other settings of the run. Where it cannot be written (read-only folders, full disks,
network file systems without locks), an index in memory takes its place, which costs reading `episodes.jsonl` once.

Several processes may use an index at the same time, also while one of them writes episodes: SQLite's transactions
order their extensions.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ..envs.errors import DataError
from ..envs.seeding import stable_seed
from .episode_lines import LINE_END, Result, parse_head, read_lines
from .index_connection import is_damage, open_memory, open_read_only, open_stored, transaction
from .index_reader import EPISODES_FILE, HEAD, Cell, IndexReader, bind
from .manifest import MANIFEST_FILE, read_manifest
from .suite import Suite, read_suite
from .texts import describe_lost_texts, referred_texts

INDEX_FILE = "index.sqlite"

CHUNK = 10_000
"""Number of lines that one transaction adds; other processes can use the index in between."""

TAIL = 1 << 16
"""Bytes before the end of the indexed part that are compared when the file has grown."""

_DIGITS = re.compile(r"[0-9]+")
_UPDATED = (
    "seed success failed total_reward steps turns invalid truncated seconds error details position task_order"
)
_INSERT = (
    f"INSERT INTO episodes ({HEAD}, failed, task_order) VALUES"
    " (?, CAST(? AS TEXT), ?, ?, ?, ?, ?, ?, ?, ?, ?, CAST(? AS TEXT), ?, ?, ?, CAST(? AS TEXT))"
    " ON CONFLICT (cell, task, repeat) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _UPDATED.split())
)


class _State(NamedTuple):
    """Part of `episodes.jsonl` that is indexed.

    Attributes:
        size: Size of the file when it was last read to its end, in bytes.
        time: Time of its last change then, in nanoseconds.
        end: Byte offset of the first line that is not indexed.
        lines: Number of indexed lines.
        crc: CRC-32 of all indexed bytes.
        tail: CRC-32 of the last `TAIL` indexed bytes.
        identity: Digest of the run's suite and agents.
    """

    size: int = 0
    time: int = 0
    end: int = 0
    lines: int = 0
    crc: int = 0
    tail: int = 0
    identity: str = ""


Check = Callable[[Result], str | None]


def result_check(suite: Suite, agents: Sequence[str]) -> Check:
    """Return a function that returns the fault of a stored result, or None if it is an episode of the run.

    Args:
        suite: Suite of the run.
        agents: Names of its agents.
    """
    entries = {entry.name: entry for entry in suite.entries}

    def check(result: Result) -> str | None:
        agent, name, task, repeat = result.key
        entry = entries.get(name)
        if agent not in agents or entry is None:
            return f"belongs to no agent and entry of the run ({agent!r}, {name!r})"
        if repeat >= entry.repeats or result.seed != suite.episode_seed(entry, task, repeat):
            return f"belongs to no episode of the run (task {task!r}, repeat {repeat}, seed {result.seed})"
        score = result.details.get(entry.score) if entry.score is not None else None
        if score is not None and not (isinstance(score, int | float) and abs(score) < 1e15):
            return f"has no finite number as `{entry.score}` but {str(score)[:40]!r}"
        return None

    return check


def open_index(folder: str | Path, *, thorough: bool = False) -> RunIndex:
    """Open the index of a run, and bring it up to date.

    Args:
        folder: Folder of the run.
        thorough: Compare all of the indexed part with its checksum where the time of `episodes.jsonl` has changed,
            as the process that appends episodes does once; else only what tells an appended file from another.

    Raises:
        DataError: The folder holds no run, or a database of another program in the place of the index.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    agents = list(manifest["agents"])
    check: Check
    try:
        check = result_check(read_suite(manifest["suite"], str(folder / MANIFEST_FILE)), agents)
    except DataError:
        check = _accept  # Callers that need the suite read it themselves, and report it.
    identity = f"{stable_seed(json.dumps([manifest['suite'], agents], sort_keys=True)):016x}"
    for opener in (open_stored, open_stored, open_read_only):
        connection = None
        try:
            connection = opener(folder / INDEX_FILE)
            index = RunIndex(folder, connection, check, identity)
            index.refresh(thorough=thorough)
            return index
        except sqlite3.DatabaseError as error:
            if connection is not None:
                connection.close()
            if opener is open_stored and is_damage(error):
                with suppress(OSError):
                    (folder / INDEX_FILE).unlink()
    index = RunIndex(folder, open_memory(), check, identity)
    index.refresh()
    return index


def _accept(result: Result) -> str | None:
    return None


class RunIndex(IndexReader):
    """Index of a run, to be opened with `open_index`. Threads may share it.

    Args:
        folder: Folder of the run.
        connection: Connection to the tables.
        check: Function that returns the fault of a result, which is then left out, or None.
        identity: Digest of what `check` depends on.
    """

    def __init__(self, folder: Path, connection: sqlite3.Connection, check: Check, identity: str) -> None:
        super().__init__(folder, connection)
        self._check, self._identity = check, identity

    def __enter__(self) -> RunIndex:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def problems(self) -> list[str]:
        """Return a sentence for each line that is left out, with its file and number, and one for lost texts."""
        found = [
            f"{self._path}, line {line}: {problem}; it is left out."
            for line, problem in self._fetch("SELECT line, problem FROM problems ORDER BY line")
        ]
        state = self._state()
        if state.size > state.end:
            found.append(f"{self._path}, line {state.lines + 1}: is incomplete; it is left out.")
        digests = {digest for (digest,) in self._fetch("SELECT digest FROM texts")}
        return found + describe_lost_texts(self._folder, digests)

    def has_damage(self) -> bool:
        """Return True if a line is incomplete, damaged, or holds a value of a wrong kind."""
        state = self._state()
        return state.size > state.end or bool(self._fetch("SELECT 1 FROM problems WHERE damaged LIMIT 1"))

    def keep_planned_tasks(self, searches: Mapping[str, str], tasks: Mapping[str, Sequence[str]]) -> None:
        """Store the results of searches for distinct tasks, so that resuming the run need not repeat them.

        Args:
            searches: Identity of the search, by entry.
            tasks: Names of the tasks, by entry.
        """
        stored = {tuple(row) for row in self._fetch("SELECT entry, identity FROM planned")}
        new = [
            (entry, one, json.dumps(tasks[entry])) for entry, one in searches.items() if (entry, one) not in stored
        ]
        if new:
            with suppress(sqlite3.Error), self._lock, transaction(self._connection):
                self._connection.executemany("INSERT OR REPLACE INTO planned VALUES (?, ?, ?)", new)

    def _make_anew(self) -> None:
        self._connection.close()
        with suppress(OSError):
            (self._folder / INDEX_FILE).unlink()
        self._connection = open_index(self._folder)._connection

    # ------------------------------------------------------------------ extension

    def refresh(self, *, thorough: bool = False) -> None:
        """Bring the index up to date.

        Args:
            thorough: See `open_index`.

        Raises:
            sqlite3.DatabaseError: The index is damaged or cannot be written.
        """
        with self._lock:
            while self._extend(thorough):
                pass

    def _extend(self, thorough: bool) -> bool:
        """Index up to `CHUNK` lines in one transaction; return True if there may be more."""
        size, time = self._status()
        state = self._state()
        if (state.size, state.time, state.identity) == (size, time, self._identity):
            return False
        with transaction(self._connection):
            size, time = self._status()  # Another process may have appended lines, and indexed them.
            state = self._state()
            if not self._is_prefix(state, size, thorough):
                for table in ("state", "cells", "episodes", "problems", "texts"):
                    self._connection.execute(f"DELETE FROM {table}")
                state = _State(identity=self._identity)
            return self._add_lines(state, size, time)

    def _add_lines(self, state: _State, size: int, time: int) -> bool:
        end, number, crc = state.end, state.lines, state.crc
        cells = {(agent, entry): cell for cell, agent, entry in self._connection.execute("SELECT * FROM cells")}
        rows, problems, texts = [], [], set()
        lines = islice(read_lines(self._path, end), CHUNK) if size else iter(())
        at_end = True
        for offset, line in lines:
            if not line.endswith(LINE_END):
                break  # It is being written, or its writer was killed.
            end, number, crc = offset + len(line), number + 1, zlib.crc32(line, crc)
            at_end = number - state.lines < CHUNK
            result = parse_head(line, offset)
            problem = result if isinstance(result, str) else self._check(result)
            if isinstance(result, Result) and problem is None:
                cell = cells.setdefault(result.key[:2], len(cells) + 1)
                rows.append(_row(cell, result))
                texts |= referred_texts(line)
            else:
                problems.append((number, problem, isinstance(result, str)))
        write = self._connection.executemany
        write(
            "INSERT OR IGNORE INTO cells VALUES (?, CAST(? AS TEXT), CAST(? AS TEXT))",
            [(cell, *map(bind, key)) for key, cell in cells.items()],
        )
        write(_INSERT, rows)
        write("INSERT INTO problems VALUES (?, CAST(? AS TEXT), ?)", [(n, bind(p), d) for n, p, d in problems])
        write("INSERT OR IGNORE INTO texts VALUES (?)", [(digest,) for digest in texts])
        seen = (size, time) if at_end else (0, 0)
        new = _State(*seen, end, number, crc, self._file_crc(max(0, end - TAIL), end), self._identity)
        self._connection.execute("DELETE FROM state")
        self._connection.execute("INSERT INTO state VALUES (?, ?, ?, ?, ?, ?, ?)", new)
        return not at_end

    def _state(self) -> _State:
        rows = self._fetch("SELECT * FROM state")
        return _State(*rows[0]) if rows else _State()

    def _status(self) -> tuple[int, int]:
        """Return size and time of `episodes.jsonl`; zeros if there is none."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return 0, 0
        return status.st_size, status.st_mtime_ns

    def _is_prefix(self, state: _State, size: int, thorough: bool) -> bool:
        """Return True if the indexed part is the beginning of `episodes.jsonl`."""
        if state.identity != self._identity or size < state.end:
            return False
        # A file of the same size with another time was copied, or changed in place.
        if state.time and (thorough or size == state.size):
            return self._file_crc(0, state.end) == state.crc
        return self._file_crc(max(0, state.end - TAIL), state.end) == state.tail

    def _file_crc(self, start: int, end: int) -> int:
        """Return the CRC-32 of a part of `episodes.jsonl`."""
        crc = 0
        if start < end:
            with self._path.open("rb") as file:
                file.seek(start)
                while start < end and (block := file.read(min(1 << 20, end - start))):
                    crc = zlib.crc32(block, crc)
                    start += len(block)
        return crc


def _row(cell: int, result: Result) -> tuple[Any, ...]:
    task = result.key.task
    return (
        cell,
        bind(task),
        result.key.repeat,
        result.seed,
        result.success,
        result.total_reward,
        result.steps,
        result.turns,
        result.invalid,
        result.truncated,
        result.seconds,
        bind(result.error),
        json.dumps(result.details) if result.details else None,
        result.offset,
        result.error is not None,
        # Numbers sort by value: "test/9" before "test/10".
        bind(_DIGITS.sub(lambda match: match[0].zfill(12), task)),
    )


__all__ = ["EPISODES_FILE", "INDEX_FILE", "Cell", "RunIndex", "open_index", "result_check"]
