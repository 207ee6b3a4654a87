"""Reading one huge JSON array or object element by element, in memory bounded by the largest element."""

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
_SPACE = " \t\r\n"


class _Text:
    """A growing window on a text file: what is left of it to parse, and how far it has been read."""

    def __init__(self, file: TextIO, raw: BinaryIO, path: Path, watch: Callable[[float], None] | None) -> None:
        self._file = file
        self._raw = raw
        self._path = path
        self._size = max(path.stat().st_size, 1)
        self._watch = watch
        self._passed = 0
        self._ended = False
        self.window = ""
        self.at = 0

    def error(self, expected: str) -> DataError:
        return self._error(self._passed + self.at, expected)

    def _error(self, position: int, expected: str) -> DataError:
        return DataError(self._path, f"at character {position}: expected {expected}; the file may be truncated.")

    def more(self) -> bool:
        """Drop what was parsed and read on; False at the end of the file."""
        if self._ended:
            return False
        try:
            chunk = self._file.read(max(CHUNK, len(self.window) - self.at))
        except (EOFError, OSError, zlib.error, UnicodeDecodeError) as problem:
            raise DataError(
                self._path, f"cannot be read past character {self._passed + len(self.window)} ({problem})."
            ) from problem
        if self._watch:
            self._watch(self._raw.tell() / self._size)
        self._passed += self.at
        self.window = self.window[self.at :] + chunk
        self.at = 0
        self._ended = not chunk
        return bool(chunk)

    def peek(self, expected: str) -> str:
        """The next character that is not white space, not consumed."""
        while True:
            while self.at < len(self.window) and self.window[self.at] in _SPACE:
                self.at += 1
            if self.at < len(self.window):
                return self.window[self.at]
            if not self.more():
                raise self.error(expected)

    def take(self, characters: str, expected: str) -> str:
        found = self.peek(expected)
        if found not in characters:
            raise self.error(expected)
        self.at += 1
        return found

    def value(self, decoder: json.JSONDecoder, expected: str) -> Any:
        self.peek(expected)
        while True:
            try:
                value, end = decoder.raw_decode(self.window, self.at)
            except json.JSONDecodeError as problem:
                position = self._passed + problem.pos
                if self.more():
                    continue
                raise self._error(position, f"{expected} ({problem.msg})") from None
            except RecursionError:
                raise self._error(self._passed + self.at, f"{expected} nested less deeply") from None
            # A number at the very end of the window may go on in the next chunk.
            if end == len(self.window) and not self._ended and self.more():
                continue
            self.at = end
            return value


@contextmanager
def _open(path: Path, watch: Callable[[float], None] | None = None) -> Iterator[_Text]:
    with path.open("rb") as raw:
        plain = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
        with io.TextIOWrapper(cast(BinaryIO, plain), encoding="utf-8") as file:
            yield _Text(file, raw, path, watch)


def read_array(path: Path, watch: Callable[[float], None] | None = None) -> Iterator[Any]:
    """The elements of the JSON array that a file (plain or `.gz`) holds, one after another.

    Args:
        watch: called as the file is read, with the share of it that has been.

    Raises:
        DataError: with the file, the position, and what was expected there.
    """
    decoder = json.JSONDecoder()
    with _open(path, watch) as text:
        text.take("[", "[ (a JSON array)")
        if text.peek("an element or ]") == "]":
            return
        while True:
            yield text.value(decoder, "a JSON value")
            if text.take(",]", ", or ]") == "]":
                return


def read_object(path: Path) -> Iterator[tuple[str, Any]]:
    """The `(key, value)` pairs of the JSON object that a file (plain or `.gz`) holds; see `read_array`."""
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
