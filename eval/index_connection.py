"""Tables of `index.sqlite`, the index of a run, and the connections to it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from ..envs.errors import DataError

VERSION = 2
"""Version of the tables, in SQLite's `user_version`. An index of another version is made anew."""

APPLICATION_ID = 0x41726272
"""SQLite's `application_id` of an index, by which `file` and others tell it from other databases."""

SCHEMA = (
    # One row: see `_State` of the index; `identity` is a digest of the run's suite and agents.
    """CREATE TABLE state (
        size INTEGER, time INTEGER, position INTEGER, lines INTEGER, crc INTEGER, tail INTEGER, identity TEXT
    )""",
    "CREATE TABLE cells (cell INTEGER PRIMARY KEY, agent TEXT, entry TEXT, UNIQUE (agent, entry))",
    # The latest line of every episode, in the order in which the episodes ended first. Wide columns come last, so
    # that sorting and filtering read little.
    """CREATE TABLE episodes (
        id INTEGER PRIMARY KEY, cell INTEGER, repeat INTEGER, success INTEGER, failed INTEGER, steps INTEGER,
        turns INTEGER, total_reward REAL, seconds REAL, invalid INTEGER, truncated INTEGER, seed INTEGER,
        position INTEGER, task TEXT, task_order TEXT, error TEXT, details TEXT,
        UNIQUE (cell, task, repeat)
    )""",
    "CREATE INDEX by_task ON episodes (task_order)",
    "CREATE TABLE problems (line INTEGER PRIMARY KEY, problem TEXT, damaged INTEGER)",
    "CREATE TABLE texts (digest TEXT PRIMARY KEY) WITHOUT ROWID",
    # Names of generated tasks, whose search takes long: see `read_planned_tasks`.
    "CREATE TABLE planned (entry TEXT PRIMARY KEY, identity TEXT, names TEXT)",
)
"""Statements that create the tables."""

WAIT = 60.0
"""Seconds to wait for another process that extends the index."""


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Return True if the file is at fault, and not the folder, the file system or another process."""
    text = str(error)
    return not any(word in text for word in ("locked", "readonly", "unable to open", "disk I/O", "is full"))


def open_stored(path: Path) -> sqlite3.Connection:
    """Return a connection to a stored index, which is made if it is absent or of another version.

    Raises:
        DataError: The file is a database of another program.
        sqlite3.DatabaseError: It is damaged or cannot be opened.
    """
    connection = _connect(str(path))
    try:
        # Network file systems have no shared memory, which the write-ahead log needs and the rollback journal not.
        connection.execute("PRAGMA synchronous = NORMAL")
        _check_owner(connection, path)
        if connection.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            _create(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_owner(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `DataError` if a database is neither an index nor empty: making the index would delete its tables."""
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    if owner != APPLICATION_ID and (owner or connection.execute("SELECT 1 FROM sqlite_master").fetchone()):
        raise DataError(path, "is a database of another program and no index of a run; move it away.")


def open_read_only(path: Path) -> sqlite3.Connection:
    """Return an index that is written in memory only, with the content of the stored one."""
    memory = _connect(":memory:")
    with closing(_connect(f"{path.absolute().as_uri()}?mode=ro")) as stored:
        _check_owner(stored, path)
        if stored.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            raise sqlite3.DatabaseError("of another version")
        stored.backup(memory)
    return memory


def open_memory() -> sqlite3.Connection:
    """Return an empty index in memory."""
    connection = _connect(":memory:")
    _create(connection)
    return connection


def read_planned_tasks(path: Path, searches: Mapping[str, str]) -> dict[str, list[str]]:
    """Return task names that `RunIndex.keep_planned_tasks` stored; entries without them are left out.

    Args:
        path: File of the index, which may be absent, damaged or of another version.
        searches: Identity of the search, by entry.
    """
    found = {}
    address = f"{path.absolute().as_uri()}?mode=ro"
    query = "SELECT names FROM planned WHERE entry = ? AND identity = ?"
    with suppress(sqlite3.Error, OSError, ValueError), closing(_connect(address)) as connection:
        for entry, identity in searches.items():
            for (names,) in connection.execute(query, [entry, identity]):
                found[entry] = [str(name) for name in json.loads(names)]
    return found


def _connect(address: str) -> sqlite3.Connection:
    is_uri = address.startswith("file:")
    return sqlite3.connect(address, timeout=WAIT, isolation_level=None, check_same_thread=False, uri=is_uri)


def _create(connection: sqlite3.Connection) -> None:
    """Make the tables anew, in one transaction."""
    with transaction(connection):
        if connection.execute("PRAGMA user_version").fetchone()[0] == VERSION:
            return  # Another process was first.
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            connection.execute(f'DROP TABLE "{name}"')
        for statement in SCHEMA:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Context of a transaction that locks the index against other writers from its beginning."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")  # It fails, and leaves the transaction open, while another process reads.
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
