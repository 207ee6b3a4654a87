"""Packs: compiled games on disk, so that the second start reads an index instead of compiling thousands of files.

A pack is one file: a line that names format and index, the index as JSON, and the games' records behind it, each
guarded by a checksum. It is written under another name and then renamed, so that concurrent writers cannot mix and
a reader never sees half of one. Whatever cannot be read is treated as absent: the games are compiled anew.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import weakref
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .gamefile import from_record, read_dialect, to_record
from .model import Dialect, Game

_log = logging.getLogger(__name__)

_FORMAT = "arboretum-alfworld-1"
"""To be changed whenever a record, or what compiling makes of a file, changes."""


class Place(NamedTuple):
    """Where a game's record lies in its pack.

    Attributes:
        offset, length: bytes, counted from the end of the index.
        checksum: CRC-32 of the record.
        dialect: number of its domain and grammar.
        source: what the record was made from (for loose files, their signature and digest; else empty).
    """

    offset: int
    length: int
    checksum: int
    dialect: int
    source: tuple[Any, ...] = ()


class Pack:
    """Compiled games by task.

    Attributes:
        places: where each game lies.
        skipped: for each file that holds no playable game, the reason and the file's signature.
        splits: the names of all splits that the source has, whether or not their games are in the pack.
    """

    def __init__(self, index: Mapping[str, Any], records: int | bytes, start: int) -> None:
        self.places = {task: Place._make((*row[:4], _tuple(row[4]))) for task, row in index["games"].items()}
        self.skipped = {name: (str(reason), _tuple(source)) for name, (reason, source) in index["skipped"].items()}
        self.splits: list[str] = list(index["splits"])
        self._texts: list[tuple[str, str]] = [(domain, grammar) for domain, grammar in index["dialects"]]
        self._start = start
        self._records = records
        if isinstance(records, int):
            weakref.finalize(self, os.close, records)

    def game(self, task: str) -> Game:
        """Open a game.

        Raises:
            ValueError, OSError: its record cannot be read.
        """
        place = self.places[task]
        record = self.record(place)
        try:
            return from_record(json.loads(record), self.dialect(place))
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a game's record ({error})") from error

    def record(self, place: Place) -> bytes:
        """A game's record as it lies in the pack."""
        start = self._start + place.offset
        if isinstance(self._records, bytes):
            record = self._records[start : start + place.length]
        else:
            record = os.pread(self._records, place.length, start)
        if zlib.crc32(record) != place.checksum:
            raise ValueError("the record's checksum does not match")
        return record

    def dialect(self, place: Place) -> Dialect:
        return read_dialect(*self._texts[place.dialect])


class PackWriter:
    """Collects games for a new pack."""

    def __init__(self) -> None:
        self.splits: set[str] = set()
        self._games: dict[str, Place] = {}
        self._skipped: dict[str, tuple[str, Sequence[Any]]] = {}
        self._dialects: dict[tuple[str, str], int] = {}
        self._records = bytearray()

    def __contains__(self, task: str) -> bool:
        return task in self._games

    def add(self, task: str, game: Game, source: Sequence[Any] = ()) -> None:
        record = json.dumps(to_record(game), separators=(",", ":")).encode()
        self.add_record(task, record, game.dialect, source)

    def add_record(self, task: str, record: bytes, dialect: Dialect, source: Sequence[Any] = ()) -> None:
        number = self._dialects.setdefault((dialect.domain, dialect.grammar), len(self._dialects))
        place = Place(len(self._records), len(record), zlib.crc32(record), number, tuple(source))
        self._games[task] = place
        self._records += record

    def skip(self, name: str, reason: str, source: Sequence[Any] = ()) -> None:
        self._skipped[name] = (reason, tuple(source))

    def finish(self, path: Path | None) -> Pack:
        """Write the pack to `path` and open it. Where that is impossible the pack stays in memory."""
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
                _replace(path, head + text + self._records)
            except OSError as error:
                _log.info("compiled games are not kept: %s", error)
            else:
                pack = open_pack(path)
                if pack is not None:
                    return pack
        return Pack(json.loads(text), bytes(self._records), 0)


def open_pack(path: Path) -> Pack | None:
    """The pack at `path`, or None if there is none that can be read."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        head, _, rest = os.pread(file, 200, 0).partition(b"\n")
        name, length, checksum = head.decode("ascii").split()
        text = os.pread(file, int(length), len(head) + 1) if name == _FORMAT else b""
        if not rest or zlib.crc32(text) != int(checksum):
            raise ValueError("another format, or a damaged index")
        return Pack(json.loads(text), file, len(head) + 1 + len(text))
    except (OSError, ValueError, TypeError, KeyError) as error:
        os.close(file)
        _log.info("%s is ignored: %s", path, error)
        return None


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(_tuple(part) if isinstance(part, list) else part for part in value)
