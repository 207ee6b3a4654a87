"""On-disk cache of the replies of servers, in a SQLite file that threads and processes may share."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .checks import expand_home
from .errors import DataError

log = logging.getLogger(__name__)

FORMAT = 1
"""Version of the file, as its `user_version`: a table `replies` of keys and JSON texts."""

_BUSY_SECONDS = 10.0

Upgrade = Callable[[sqlite3.Connection], bool]
"""Conversion of an earlier format within a transaction; it returns False if the file does not have that format."""


class ReplyCache:
    """JSON data by key.

    A failure of the file while it is in use (a full disk, a lock held for long) is logged as a warning and
    otherwise ignored, so that no reply is lost to it.

    Args:
        path: The file; it and its folder are created if missing.
        upgrade: Conversion of an earlier format; None if there is none.

    Raises:
        DataError: The file is not a cache of this version, or cannot be opened.
    """

    def __init__(self, path: str | Path, upgrade: Upgrade | None = None) -> None:
        self.path = expand_home(path)
        self._upgrade = upgrade
        self._lock = threading.Lock()
        self._connection: tuple[int, sqlite3.Connection] | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._lock:
                self._open()
        except sqlite3.Error as error:
            raise DataError(
                self.path, f"is not a readable reply cache ({error}); name another file, or delete it."
            ) from None
        except OSError as error:
            raise DataError(
                self.path, f"cannot be opened as a reply cache ({error}); name another file."
            ) from None

    def get(self, keys: Iterable[bytes]) -> dict[bytes, Any]:
        """Return the data of the keys that the cache has."""
        found = {}
        try:
            with self._lock:
                db = self._open()
                for key in keys:
                    row = db.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
                    if row is not None:
                        found[key] = json.loads(row[0])
        except (sqlite3.Error, OSError, DataError, ValueError) as error:
            log.warning("reply cache %s: cannot read a reply: %s", self.path, error)
        return found

    def put(self, replies: Mapping[bytes, Any]) -> None:
        """Store data by key, all or nothing."""
        try:
            rows = [(key, json.dumps(reply)) for key, reply in replies.items()]
            with self._lock:
                db = self._open()
                db.execute("BEGIN IMMEDIATE")
                try:
                    db.executemany("INSERT OR REPLACE INTO replies VALUES (?, ?)", rows)
                    db.execute("COMMIT")
                except sqlite3.Error:
                    with suppress(sqlite3.Error):  # SQLite ends the transaction itself after some errors.
                        db.execute("ROLLBACK")
                    raise
        except (sqlite3.Error, OSError, DataError, ValueError, TypeError) as error:
            log.warning("reply cache %s: cannot store a reply: %s", self.path, error)

    def __len__(self) -> int:
        with self._lock:
            (count,) = self._open().execute("SELECT count(*) FROM replies").fetchone()
        return int(count)

    def close(self) -> None:
        """Close the file of this process; the next use opens it again."""
        with self._lock:
            if self._connection is not None and self._connection[0] == os.getpid():
                self._connection[1].close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        """Return the connection of this process, because a SQLite connection must not be used after a fork."""
        if self._connection is None or self._connection[0] != os.getpid():
            db = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(db)
            except BaseException:
                db.close()
                raise
            self._connection = os.getpid(), db
        return self._connection[1]

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Create or convert the table.

        Raises:
            DataError: The file is of another version, or of another program.
        """
        db.execute("BEGIN IMMEDIATE")  # so that one of several processes creates or converts it
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if version != FORMAT and tables and not (version == 0 and self._upgrade is not None and self._upgrade(db)):
            raise DataError(self.path, "is not a reply cache of this version; name another file, or delete it.")
        db.execute("CREATE TABLE IF NOT EXISTS replies (key BLOB PRIMARY KEY, reply TEXT NOT NULL) WITHOUT ROWID")
        db.execute(f"PRAGMA user_version = {FORMAT}")
        db.execute("COMMIT")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
