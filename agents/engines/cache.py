"""On-disk cache of replies, so that no request to a paid API is repeated."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Mapping
from dataclasses import astuple
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ...envs.errors import DataError
from .base import Completion, Usage

log = logging.getLogger(__name__)

_FORMAT = 1
_BUSY_SECONDS = 10.0


def reply_key(endpoint: str, body: Mapping[str, Any], sample: int) -> bytes:
    """Return the cache key of a request.

    Args:
        endpoint: URL of the request.
        body: Body of the request: model, messages or token ids, sampling settings, seed.
        sample: Number of identical requests that the conversation made before, each of which is a sample of its
            own.
    """
    canonical = json.dumps([endpoint, body, sample], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return blake2b(canonical.encode("utf-8", "surrogatepass"), digest_size=20).digest()


class ReplyCache:
    """Completions in an SQLite file, which several processes may share (write-ahead log).

    Errors are not cached. A later failure of the file (a full disk, a lock held for long) is logged as a warning
    and otherwise ignored, so that no reply is lost to it.

    Args:
        path: The file; it and its folder are created if missing.

    Raises:
        DataError: The file is not a cache of this version, or cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise DataError(
                self.path, f"cannot be opened as a reply cache ({error}); name another file."
            ) from None
        try:
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if version != _FORMAT and tables:
                raise DataError(self.path, "not a reply cache of this version; name another file, or delete it.")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS replies (key BLOB PRIMARY KEY, reply TEXT NOT NULL) WITHOUT ROWID"
            )
            self._db.execute(f"PRAGMA user_version={_FORMAT}")
        except sqlite3.Error as error:
            self._db.close()
            raise DataError(
                self.path, f"not a readable reply cache ({error}); name another file, or delete it."
            ) from None
        except DataError:
            self._db.close()
            raise

    def get(self, key: bytes) -> Completion | None:
        """Return the reply of a key, at no cost and with its whole prompt counted as cached; None on a miss."""
        try:
            row = self._db.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            text, finish, token_ids, logprobs, (prompt, completion) = json.loads(row[0])
        except (sqlite3.Error, ValueError, TypeError) as error:
            log.warning("reply cache %s: cannot read a reply: %s", self.path, error)
            return None
        usage = Usage(prompt_tokens=prompt, cached_tokens=prompt, completion_tokens=completion)
        return Completion(text, finish, token_ids, logprobs, usage)

    def put(self, key: bytes, completion: Completion) -> None:
        """Store a reply, unless it is an error or a rejection."""
        if completion.finish in ("error", "rejected"):
            return
        prompt, _, generated, _ = astuple(completion.usage)
        row = [completion.text, completion.finish, completion.token_ids, completion.logprobs, [prompt, generated]]
        try:
            self._db.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (key, json.dumps(row)))
        except (sqlite3.Error, ValueError) as error:
            log.warning("reply cache %s: cannot store a reply: %s", self.path, error)

    def __len__(self) -> int:
        (count,) = self._db.execute("SELECT count(*) FROM replies").fetchone()
        return int(count)

    def close(self) -> None:
        """Close the file."""
        self._db.close()
