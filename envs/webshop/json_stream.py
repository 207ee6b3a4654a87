"""Streaming readers of a large JSON array or object, in memory bounded by the largest element."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from ..errors import DataError

CHUNK = 1 << 20
"""Minimum number of characters to read at once."""

MAX_VALUE = 64 << 20
"""Maximum number of characters of one element; a compressed one may unpack to any length."""

_SPACE = " \t\r\n"


class _Text:
    """Window on a text file with the characters that are not parsed yet.

    Args:
        file: Decoded text.
        raw: The underlying file, whose position measures progress.
        path: Path for error messages.
        on_read: Called after every read with the fraction of the file that has been read.

    Attributes:
        window: Characters read and not dropped yet.
        at: Position of the parser in the window.
    """

    def __init__(self, file: TextIO, raw: BinaryIO, path: Path, on_read: Callable[[float], None] | None) -> None:
        self._file = file
        self._raw = raw
        self._path = path
        self._size = max(path.stat().st_size, 1)
        self._on_read = on_read
        self._dropped = 0
        self._ended = False
        self.window = ""
        self.at = 0

    def error(self, expected: str) -> DataError:
        """Return an error at the current position."""
        return self._error(self._dropped + self.at, expected)

    def _error(self, position: int, expected: str) -> DataError:
        return DataError(self._path, f"at character {position}: expected {expected}; the file may be truncated.")

    def more(self) -> bool:
        """Drop the parsed part of the window and read on; at the end of the file keep it and return False."""
        if self._ended:
            return False
        if len(self.window) - self.at > MAX_VALUE:
            raise self.error(f"a value of at most {MAX_VALUE >> 20} million characters")
        try:
            chunk = self._file.read(max(CHUNK, len(self.window) - self.at))
        except (EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
            raise DataError(
                self._path, f"cannot be read past character {self._dropped + len(self.window)} ({error})."
            ) from error
        if self._on_read:
            self._on_read(self._raw.tell() / self._size)
        if not chunk:
            self._ended = True
            return False
        self._dropped += self.at
        self.window = self.window[self.at :] + chunk
        self.at = 0
        return True

    def peek(self, expected: str) -> str:
        """Return the next character that is not white space, without consuming it."""
        while True:
            while self.at < len(self.window) and self.window[self.at] in _SPACE:
                self.at += 1
            if self.at < len(self.window):
                return self.window[self.at]
            if not self.more():
                raise self.error(expected)

    def take(self, characters: str, expected: str) -> str:
        """Consume the next character, which must be one of `characters`."""
        found = self.peek(expected)
        if found not in characters:
            raise self.error(expected)
        self.at += 1
        return found

    def value(self, decoder: json.JSONDecoder, expected: str) -> Any:
        """Parse and consume the next JSON value."""
        self.peek(expected)
        while True:
            try:
                value, end = decoder.raw_decode(self.window, self.at)
            except json.JSONDecodeError as error:
                position = self._dropped + error.pos
                if self.more():
                    continue
                raise self._error(position, f"{expected} ({error.msg})") from None
            except RecursionError:
                raise self._error(self._dropped + self.at, f"{expected} nested less deeply") from None
            # A number may continue in the next chunk, from "1", "1." or "1e-" on.
            if end >= len(self.window) - 2 and self.more():
                continue
            self.at = end
            return value


@contextmanager
def _open(path: Path, on_read: Callable[[float], None] | None = None) -> Iterator[_Text]:
    with path.open("rb") as raw:
        plain = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
        with io.TextIOWrapper(cast(BinaryIO, plain), encoding="utf-8") as file:
            yield _Text(file, raw, path, on_read)


def read_array(path: Path, on_read: Callable[[float], None] | None = None) -> Iterator[Any]:
    """Yield the elements of a JSON array in a file.

    Args:
        path: File, plain or gzipped (`.gz`).
        on_read: Called as the file is read, with the fraction of it that has been read, from 0 to 1.

    Raises:
        DataError: The file is truncated or malformed; names the file, the position and the expected token.
    """
    decoder = json.JSONDecoder()
    with _open(path, on_read) as text:
        text.take("[", "[ (a JSON array)")
        if text.peek("an element or ]") == "]":
            return
        while True:
            yield text.value(decoder, "a JSON value")
            if text.take(",]", ", or ]") == "]":
                return


def read_object(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the `(key, value)` pairs of a JSON object in a file; see `read_array`."""
    decoder = json.JSONDecoder()
    with _open(path) as text:
        text.take("{", "{ (a JSON object)")
        if text.peek("a key or }") == "}":
            return
        while True:
            if text.peek('a key in "') != '"':
                raise text.error('a key in "')
            key = text.value(decoder, "a key")
            text.take(":", ":")
            yield key, text.value(decoder, "a JSON value")
            if text.take(",}", ", or }") == "}":
                return
