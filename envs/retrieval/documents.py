"""Corpora: validation, hashing, and storage on disk for random access.

A corpus is a file of JSON lines, plain or gzipped, such as `{"id": "0", "contents": "\\"Title\\"\\ntext"}`. This
is the form of Search-R1's wiki-18 and of Pyserini's JsonCollection.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import weakref
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import expand_home
from ..errors import DataError
from ..files import BINARY, read_at
from .interface import Document

MAX_LINE = 64 * 2**20
"""Longest line of a file in bytes; a compressed line may unpack to any length."""


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the non-empty lines of a plain or gzipped file with their numbers, starting at 1.

    Raises:
        DataError: The file is missing, or is a truncated or damaged archive, or a line exceeds `MAX_LINE` bytes.
    """
    number = 0
    try:
        opened: Any = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rb") as file:
            for number, line in enumerate(iter(partial(file.readline, MAX_LINE + 1), b""), 1):
                if len(line) > MAX_LINE:
                    raise DataError(path, f"has more than {MAX_LINE >> 20} MB; split the document.", number)
                if line.strip():
                    yield number, line
    except FileNotFoundError:
        raise DataError(path, "there is no such file.") from None
    except (EOFError, zlib.error, OSError) as error:
        raise DataError(path, f"cannot be read after line {number} ({error}); fetch it again.") from error


def parse_row(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """Parse a JSON line into a dictionary.

    Args:
        line: Bytes of the line.
        path: File of the line, for error messages.
        number: Number of the line, for error messages.

    Raises:
        DataError: The line is not UTF-8, not JSON, or not an object.
    """
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        raise DataError(path, f"is not UTF-8 text ({error.reason} at byte {error.start}).", number) from None
    except (ValueError, RecursionError) as error:
        raise DataError(path, f"is not JSON ({error}).", number) from None
    if not isinstance(row, dict):
        raise DataError(path, f"holds a JSON {type(row).__name__}, not an object.", number)
    return row


def read_corpus(path: str | Path) -> Iterator[Document]:
    """Yield the documents of a corpus file.

    Duplicate ids raise an error after the last document.

    Raises:
        DataError: A line is not JSON, has no `id` or `contents`, or repeats an id; names the line.
    """
    path = expand_home(path)
    ids = _IdChecker(path)
    for number, line in read_lines(path):
        row = parse_row(line, path, number)
        for key in ("id", "contents"):
            if key not in row:
                raise DataError(path, f"has no {key!r}; a document is {{'id': …, 'contents': …}}.", number)
        name, contents = row["id"], row["contents"]
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise DataError(path, f"'id' must be a string, not {json.dumps(name)[:60]}.", number)
        if not isinstance(contents, str):
            raise DataError(path, f"'contents' must be a string, not {json.dumps(contents)[:60]}.", number)
        name = str(name)
        try:
            f"{name}{contents}".encode()
        except UnicodeEncodeError as error:
            raise DataError(path, f"contains half a surrogate pair ({error.reason}); repair it.", number) from None
        ids.add(name, number)
        yield Document(name, contents)
    ids.check()


class _IdChecker:
    """Detector of duplicate ids that takes 16 bytes per id, which suits corpora of millions of documents."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digests = array("Q")
        self._lines = array("Q")

    def add(self, name: str, line: int) -> None:
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        self._digests.append(int.from_bytes(digest, "little"))
        self._lines.append(line)

    def check(self) -> None:
        """Raise `DataError` for the first line that repeats an id."""
        digests = np.frombuffer(self._digests, np.uint64) if self._digests else np.empty(0, np.uint64)
        order = np.argsort(digests, kind="stable")
        repeats = np.flatnonzero(digests[order][1:] == digests[order][:-1])
        if not len(repeats):
            return
        pairs = [(self._lines[int(order[i + 1])], self._lines[int(order[i])]) for i in repeats]
        line, first = min(pairs)
        raise DataError(self._path, f"repeats the id of line {first}; ids must be unique.", line)


class CorpusHash:
    """SHA-256 over ids and contents, which is independent of compression and JSON formatting."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, document: Document) -> None:
        for part in document:
            raw = part.encode("utf-8", "surrogatepass")
            self._hash.update(len(raw).to_bytes(8, "little"))
            self._hash.update(raw)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def corpus_hash(documents: Iterable[Document]) -> str:
    """Return the hash by which a manifest identifies a corpus."""
    digest = CorpusHash()
    for document in documents:
        digest.add(document)
    return digest.hexdigest()


DOCUMENTS_FILE = "documents.jsonl"
OFFSETS_FILE = "offsets.npy"


class StoredDocuments(Sequence[Document]):
    """Documents of an index folder, read from disk on access.

    Args:
        folder: Folder with the documents and their offsets.

    Raises:
        DataError: The file of documents has another length than its offsets.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / DOCUMENTS_FILE
        self._offsets = np.load(folder / OFFSETS_FILE, mmap_mode="r")
        size = self._path.stat().st_size
        if len(self._offsets) < 1 or int(self._offsets[-1]) != size:
            raise DataError(self._path, "has another length than when the index was built; build the index again.")
        # Positioned reads of a descriptor share no file position, so threads and forks need no lock.
        self._descriptor = os.open(self._path, os.O_RDONLY | BINARY)
        self._closer = weakref.finalize(self, os.close, self._descriptor)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        start, stop = int(self._offsets[index]), int(self._offsets[index + 1])
        row = json.loads(read_at(self._descriptor, stop - start, start))
        return Document(row["id"], row["contents"])

    def close(self) -> None:
        self._closer()
        self._descriptor = -1  # The system may give the old number to another file.
