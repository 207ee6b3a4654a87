"""Files and folders that are written as a whole or not at all, and JSON lines."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from .errors import DataError

PART = ".part"
"""Ending of what is still being written. A killed process may leave such a file or folder; it is never read."""


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file so that readers and crashes see the old content or the new content, never a mixture.

    Args:
        path: File to create or replace; its folder must exist.
        content: Text (written as UTF-8) or bytes.

    Raises:
        OSError: The file cannot be written; the old content is unchanged.
    """
    part = _part_of(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def replace_folder(folder: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """Context that yields an empty folder to fill, and puts it in the place of `folder` at the end.

    If the block raises, `folder` stays as it was. A process killed between the two renames at the end leaves
    the old and the new content under names that end in `PART`, and no `folder`.

    Args:
        folder: Folder to create or replace; parents are created.
        overwrite: Replace an existing folder. If False, an existing folder wins and the new one is deleted, as in
            a cache that several processes fill at once.

    Raises:
        OSError: The folder cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = _part_of(folder)
    part.mkdir()
    try:
        yield part
        _sync_tree(part)
        if overwrite and folder.exists():
            old = _part_of(folder)
            folder.rename(old)
            try:
                part.rename(folder)
            except OSError:
                old.rename(folder)
                raise
            shutil.rmtree(old, ignore_errors=True)
        else:
            try:
                part.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
        _sync_folder(folder.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def read_jsonl(path: Path, *, damaged: Literal["raise", "skip"] = "raise") -> list[Any]:
    """Return the records of a JSON-lines file, one a line; an empty list if the file does not exist.

    A last line without its line end, as a killed process leaves it, is skipped if it is not valid JSON.

    Args:
        path: File to read.
        damaged: Raise `DataError` for any other line that is not valid JSON, or skip it.

    Raises:
        DataError: A line is not valid JSON.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    lines = text.split("\n")  # not splitlines(): JSON strings may hold other line separators, such as U+2028
    unfinished = lines.pop()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if damaged == "raise":
                raise DataError(path, f"is not valid JSON ({error}).", number) from None
    if unfinished:
        with suppress(ValueError):
            records.append(json.loads(unfinished))
    return records


def _part_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{PART}")


def _sync_tree(folder: Path) -> None:
    """Flush every file and folder below `folder` to the disk."""
    for path in folder.rglob("*"):
        if path.is_dir():
            _sync_folder(path)
        else:
            with path.open("rb+") as file:
                os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, where the platform can open folders."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # Windows cannot.
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
