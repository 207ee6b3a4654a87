"""Cache of the replies of retrieval servers."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..reply_cache import ReplyCache
from .interface import Document, Hit


class HitCache:
    """Map on disk from (corpus, query, k) to hits.

    Args:
        path: File of the `ReplyCache`. A file of the earlier format, which had two tables, is converted.

    Raises:
        DataError: The file exists and is not a reply cache.
    """

    def __init__(self, path: Path) -> None:
        self._replies = ReplyCache(path, _upgrade)

    def get(self, corpus: str, queries: Sequence[str], k: int) -> dict[str, list[Hit]]:
        """Return the cached hits by query; missing queries are left out."""
        keys = {query: _key(corpus, query, k) for query in queries}
        found = self._replies.get(keys.values())
        return {
            query: [Hit(Document(i, contents), score) for i, contents, score in found[key]]
            for query, key in keys.items()
            if key in found
        }

    def put(self, corpus: str, replies: Mapping[str, Sequence[Hit]], k: int) -> None:
        """Store the hits of queries."""
        self._replies.put(
            {
                _key(corpus, query, k): [(*hit.document, hit.score) for hit in hits]
                for query, hits in replies.items()
            }
        )

    def set_served_index(self, url: str, served: str) -> None:
        """Store the identity of the index that a server has."""
        self._replies.put({_server_key(url): served})

    def get_served_index(self, url: str) -> str:
        """Return the last stored index of a server; empty if there is none."""
        key = _server_key(url)
        return str(self._replies.get([key]).get(key, ""))

    def close(self) -> None:
        """Close the file of this process; the next use opens it again."""
        self._replies.close()


def _key(corpus: str, query: str, k: int) -> bytes:
    return _digest(f"{corpus}\0{k}\0{query}")


def _server_key(url: str) -> bytes:
    return _digest(f"index of\0{url}")  # The corpus of a query begins with http.


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _upgrade(db: sqlite3.Connection) -> bool:
    """Convert a file with the tables `replies` (key, hits) and `servers` (url, served)."""
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    columns = [row[1] for row in db.execute("PRAGMA table_info(replies)")]
    if tables != {"replies", "servers"} or columns != ["key", "hits"]:
        return False
    db.execute("ALTER TABLE replies RENAME COLUMN hits TO reply")
    servers = db.execute("SELECT url, served FROM servers").fetchall()
    rows = [(_server_key(url), json.dumps(served)) for url, served in servers]
    db.executemany("INSERT INTO replies VALUES (?, ?)", rows)
    db.execute("DROP TABLE servers")
    return True
