"""Cache of the replies of retrieval servers, in a SQLite file that several processes may share."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import DataError
from .interface import Document, Hit

_SCHEMA = """
CREATE TABLE IF NOT EXISTS replies (key BLOB PRIMARY KEY, hits TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS servers (url TEXT PRIMARY KEY, served TEXT NOT NULL) WITHOUT ROWID;
"""


class ReplyCache:
    """Map on disk from (corpus, query, k) to hits.

    Args:
        path: SQLite file; created if it does not exist.

    Raises:
        DataError: The file exists and is not a reply cache.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: tuple[int, sqlite3.Connection] | None = None
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            self._open()

    def _open(self) -> sqlite3.Connection:
        """Return the connection of this process, because a SQLite connection must not be used after a fork."""
        if self._connection is None or self._connection[0] != os.getpid():
            connection = sqlite3.connect(self._path, timeout=30.0, check_same_thread=False, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.executescript(_SCHEMA)
            except sqlite3.DatabaseError as error:
                connection.close()
                raise DataError(self._path, f"is not a reply cache ({error}); set another path.") from None
            self._connection = os.getpid(), connection
        return self._connection[1]

    def get(self, corpus: str, queries: Sequence[str], k: int) -> dict[str, list[Hit]]:
        """Return the cached hits by query; missing queries are left out."""
        found = {}
        with self._lock:
            connection = self._open()
            for query in dict.fromkeys(queries):
                key = _key(corpus, query, k)
                row = connection.execute("SELECT hits FROM replies WHERE key = ?", (key,)).fetchone()
                if row is not None:
                    found[query] = [Hit(Document(i, contents), score) for i, contents, score in json.loads(row[0])]
        return found

    def put(self, corpus: str, replies: Mapping[str, Sequence[Hit]], k: int) -> None:
        """Store the hits of queries."""
        rows = [
            (_key(corpus, query, k), json.dumps([(*hit.document, hit.score) for hit in hits]))
            for query, hits in replies.items()
        ]
        with self._lock:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT OR REPLACE INTO replies VALUES (?, ?)", rows)
            connection.execute("COMMIT")

    def set_served_index(self, url: str, served: str) -> None:
        """Store the identity of the index that a server has."""
        with self._lock:
            self._open().execute("INSERT OR REPLACE INTO servers VALUES (?, ?)", (url, served))

    def get_served_index(self, url: str) -> str:
        """Return the last stored index of a server; empty if there is none."""
        with self._lock:
            row = self._open().execute("SELECT served FROM servers WHERE url = ?", (url,)).fetchone()
        return "" if row is None else str(row[0])

    def close(self) -> None:
        """Close the connection of this process; the next use opens a new one."""
        with self._lock:
            if self._connection is not None and self._connection[0] == os.getpid():
                self._connection[1].close()
            self._connection = None


def _key(corpus: str, query: str, k: int) -> bytes:
    text = f"{corpus}\0{k}\0{query}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
