"""On-disk cache of compiled games, which saves compiling thousands of files at every start.

A pack is one file: a header line with the format and the size and checksum of the index, the index as JSON, and
the games' records, each with a checksum. Packs are written atomically, so concurrent writers cannot interleave and
readers never see a partial file. Unreadable packs and records are ignored, and their games are compiled again.
"""

from __future__ import annotations

import json
import logging
import os
import weakref
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..files import BINARY, read_at, write_atomic
from .gamefile import from_record, read_dialect, to_record
from .model import Dialect, Game

_log = logging.getLogger(__name__)

_FORMAT = "arboretum-alfworld-1"
"""Format identifier. Change it whenever the record format or the result of compilation changes."""


class Entry(NamedTuple):
    """Index entry of a game.

    Attributes:
        offset: Position of the record in bytes, relative to the end of the index.
        length: Size of the record in bytes.
        checksum: CRC-32 of the record.
        dialect: Number of the game's domain and grammar in the pack.
        source: Signature and digest of the game file; empty for games from an archive.
    """

    offset: int
    length: int
    checksum: int
    dialect: int
    source: tuple[Any, ...] = ()


class Pack:
    """Compiled games by task.

    Attributes:
        entries: Index entry of each game, by task id.
        skipped: Reason and file signature of each file that holds no playable game.
        splits: Names of all splits of the source, including those whose games are not in the pack.

    Args:
        index: Parsed index.
        records: File descriptor of the pack, which the object closes, or the records themselves.
        start: Position of the first record.
    """

    def __init__(self, index: Mapping[str, Any], records: int | bytes, start: int) -> None:
        self.entries = {task: Entry._make((*row[:4], _to_tuple(row[4]))) for task, row in index["games"].items()}
        self.skipped = {
            name: (str(reason), _to_tuple(source)) for name, (reason, source) in index["skipped"].items()
        }
        self.splits: list[str] = list(index["splits"])
        self._texts: list[tuple[str, str]] = [(domain, grammar) for domain, grammar in index["dialects"]]
        self._start = start
        self._records = records
        if isinstance(records, int):
            weakref.finalize(self, os.close, records)

    def game(self, task: str) -> Game:
        """Return the game of a task.

        Raises:
            ValueError, OSError: The record cannot be read.
        """
        entry = self.entries[task]
        record = self.record(entry)
        try:
            return from_record(json.loads(record), self.dialect(entry))
        except (TypeError, KeyError) as error:
            raise ValueError(f"the record does not describe a game ({error})") from error

    def record(self, entry: Entry) -> bytes:
        """Return the raw record of a game.

        Raises:
            ValueError: The checksum does not match.
            OSError: The pack cannot be read.
        """
        start = self._start + entry.offset
        if isinstance(self._records, bytes):
            record = self._records[start : start + entry.length]
        else:
            record = read_at(self._records, entry.length, start)
        if zlib.crc32(record) != entry.checksum:
            raise ValueError("the record's checksum does not match")
        return record

    def dialect(self, entry: Entry) -> Dialect:
        """Return the dialect of a game."""
        return read_dialect(*self._texts[entry.dialect])


class PackWriter:
    """Builder of a new pack."""

    def __init__(self) -> None:
        self.splits: set[str] = set()
        self._games: dict[str, Entry] = {}
        self._skipped: dict[str, tuple[str, Sequence[Any]]] = {}
        self._dialects: dict[tuple[str, str], int] = {}
        self._records = bytearray()

    def add(self, task: str, game: Game, source: Sequence[Any] = ()) -> None:
        """Add a compiled game."""
        record = json.dumps(to_record(game), separators=(",", ":")).encode()
        self.add_record(task, record, game.dialect, source)

    def add_record(self, task: str, record: bytes, dialect: Dialect, source: Sequence[Any] = ()) -> None:
        """Add the raw record of a game, as another pack returned it."""
        number = self._dialects.setdefault((dialect.domain, dialect.grammar), len(self._dialects))
        entry = Entry(len(self._records), len(record), zlib.crc32(record), number, tuple(source))
        self._games[task] = entry
        self._records += record

    def skip(self, name: str, reason: str, source: Sequence[Any] = ()) -> None:
        """Register a file that holds no playable game."""
        self._skipped[name] = (reason, tuple(source))

    def write(self, path: Path | None) -> Pack:
        """Write the pack to `path` and open it. If `path` is None or not writable, the pack is kept in memory."""
        index = {
            "games": self._games,
            "skipped": self._skipped,
            "splits": sorted(self.splits),
            "dialects": list(self._dialects),
        }
        text = json.dumps(index, separators=(",", ":")).encode()
        head = f"{_FORMAT} {len(text)} {zlib.crc32(text)}\n".encode()
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, head + text + self._records)
            except OSError as error:
                _log.info("compiled games are not cached: %s", error)
            else:
                pack = open_pack(path)
                if pack is not None:
                    return pack
        return Pack(json.loads(text), bytes(self._records), 0)


def open_pack(path: Path) -> Pack | None:
    """Open the pack at `path`; return None if it is absent or unreadable."""
    try:
        file = os.open(path, os.O_RDONLY | BINARY)
    except OSError:
        return None
    try:
        head, _, rest = read_at(file, 200, 0).partition(b"\n")
        name, length, checksum = head.decode("ascii").split()
        text = read_at(file, int(length), len(head) + 1) if name == _FORMAT else b""
        if not rest or zlib.crc32(text) != int(checksum):
            raise ValueError("the format differs or the index is damaged")
        return Pack(json.loads(text), file, len(head) + 1 + len(text))
    except (OSError, ValueError, TypeError, KeyError) as error:
        os.close(file)
        _log.info("%s is ignored: %s", path, error)
        return None


def _to_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(_to_tuple(part) if isinstance(part, list) else part for part in value)
