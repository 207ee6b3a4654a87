"""Replies kept on disk: what was once paid for is not paid for again."""

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
    """What a reply is found by: the endpoint's address, everything in the request, and which draw of it.

    Args:
        endpoint: address that the request goes to.
        body: the request as sent: model, messages or token ids, sampling, seed.
        sample: 0 for the first time that a conversation asks exactly this, 1 for the second, …
    """
    canonical = json.dumps([endpoint, body, sample], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return blake2b(canonical.encode("utf-8", "surrogatepass"), digest_size=20).digest()


class ReplyCache:
    """Completions in an SQLite file, which several processes may share (write-ahead log).

    Only whole replies are kept, never errors. A cache that fails later (a full disk, a lock held for long) is
    passed over with a warning in the log: a reply in hand is worth more.

    Args:
        path: the file; made, with its folder, if missing.

    Raises:
        DataError: the file is no cache of this version, or cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise DataError(self.path, f"cannot be opened as a reply cache ({error}); name another.") from None
        try:
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if version != _FORMAT and tables:
                raise DataError(self.path, "is no reply cache of this version; name another file, or delete it.")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS replies (key BLOB PRIMARY KEY, reply TEXT NOT NULL) WITHOUT ROWID"
            )
            self._db.execute(f"PRAGMA user_version={_FORMAT}")
        except sqlite3.Error as error:
            self._db.close()
            raise DataError(
                self.path, f"is no readable reply cache ({error}); name another file, or delete it."
            ) from None
        except DataError:
            self._db.close()
            raise

    def get(self, key: bytes) -> Completion | None:
        """The reply of a key, at no cost: all of its prompt counts as cached. None if there is none."""
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
        """Keep a reply. Errors are not kept."""
        if completion.finish == "error":
            return
        prompt, _, generated, _ = astuple(completion.usage)
        row = [completion.text, completion.finish, completion.token_ids, completion.logprobs, [prompt, generated]]
        try:
            self._db.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (key, json.dumps(row)))
        except (sqlite3.Error, ValueError) as error:
            log.warning("reply cache %s: cannot keep a reply: %s", self.path, error)

    def __len__(self) -> int:
        (count,) = self._db.execute("SELECT count(*) FROM replies").fetchone()
        return int(count)

    def close(self) -> None:
        self._db.close()
