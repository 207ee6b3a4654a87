"""Atomic writes of files and folders, their errors, and a tolerant reader of JSON lines."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, TypeVar

from filelock import FileLock, Timeout

from .errors import ConfigurationError, DataError

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

BINARY: int = getattr(os, "O_BINARY", 0)
"""Flag for `os.open` without which Windows translates the ends of lines."""

_seeking = threading.Lock()

PART = ".part"
"""Suffix of files and folders that are still being written. A killed process may leave one; it is never read."""

LOCK_FILE = ".lock"
"""Name of the file in the folder of a run by which a process that writes the run locks it; it is never deleted."""


_started_in: ContextVar[Path | None] = ContextVar("started_in", default=None)


@contextmanager
def started_here() -> Iterator[None]:
    """Context of a command, or decorator, from whose working directory on paths are shown.

    Environments may change the working directory; hence folders of runs are absolute.
    """
    token = _started_in.set(_working_directory())
    try:
        yield
    finally:
        _started_in.reset(token)


def shown_path(path: Path) -> Path:
    """Return a path for people: relative to the working directory of the start, if it is below it."""
    folder = _started_in.get() or _working_directory()
    return path.relative_to(folder) if folder is not None and path.is_relative_to(folder) else path


def shown_paths(text: str) -> str:
    """Return a text with its paths as `shown_path` gives them."""
    folder = _started_in.get() or _working_directory()
    if folder is None:
        return text
    return re.sub(rf"(?<![\w./~:=-]){re.escape(f'{folder}{os.sep}')}(?=[\w.-])", "", text)


def _working_directory() -> Path | None:
    """Return the working directory; None if it was deleted, or is the root, below which everything is."""
    try:
        folder = Path.cwd()
    except OSError:
        return None
    return None if folder == folder.parent else folder


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file atomically: a reader, or a crash, finds either the old content or the new content.

    Args:
        path: File to create or replace; its folder must exist. A device is written to in place.
        content: Text (written as UTF-8) or bytes.

    Raises:
        OSError: The file cannot be written; the old content is unchanged.
    """
    part = _part_path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(data)  # A device such as /dev/stdout must not be replaced by a file.
        return
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error  # Not the part's name.
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def replace_folder(folder: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """Yield an empty folder to fill, and move it to `folder` when the block ends.

    Its files get the permissions of new files, where they have fewer: safetensors writes weights for their owner
    alone, which nobody else on a cluster could load. If the block raises, `folder` stays as it was. A process
    killed between the two renames at the end leaves the old and the new content under names that end in `PART`,
    and no `folder`.

    Args:
        folder: Folder to create or replace; parents are created.
        overwrite: Replace an existing folder. If False, an existing folder is kept and the new one is deleted,
            which suits a cache that several processes fill at the same time.

    Raises:
        OSError: The folder cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = _part_path(folder)
    part.mkdir()
    try:
        yield part
        _add_usual_permissions(part)
        move_folder(part, folder, overwrite=overwrite)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _add_usual_permissions(folder: Path) -> None:
    """Add to all files below a new folder the permissions that the process's umask left to the folder."""
    usual = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o777 | usual)


def open_cached(folder: Path, open_folder: Callable[[Path], _T]) -> _T | None:
    """Open a folder of a cache that several processes may use.

    Args:
        folder: Folder that can be built again.
        open_folder: Function that opens it; it raises DataError if the folder is damaged.

    Returns:
        None if there is no such folder, or after a damaged one has been deleted.
    """
    if not folder.exists():
        return None
    with suppress(DataError):
        return open_folder(folder)
    with FileLock(f"{folder}.lock"):
        # Another process may have found the same damage, and have built the folder again.
        if not folder.exists():
            return None
        try:
            return open_folder(folder)
        except DataError as error:
            _log.warning("The folder is built again: %s", error)
            shutil.rmtree(folder, ignore_errors=True)
            return None


def move_folder(part: Path, folder: Path, *, overwrite: bool = True) -> None:
    """Flush a folder to the disk and rename it, both within one parent folder; see `replace_folder`.

    Raises:
        OSError: The folder cannot be renamed; an existing one stays as it was.
    """
    _sync_tree(part)
    if overwrite and (folder.exists() or folder.is_symlink()):
        old = _part_path(folder)
        folder.rename(old)
        try:
            part.rename(folder)
        except OSError:
            old.rename(folder)
            raise
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink()
    else:
        try:
            part.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    _sync_folder(folder.parent)


def move_file(part: Path, path: Path) -> None:
    """Flush a file to the disk and rename it, both within one folder; an existing file is replaced."""
    _sync_file(part)
    os.replace(part, path)
    _sync_folder(path.parent)


def read_at(descriptor: int, length: int, offset: int) -> bytes:
    """Read bytes of a file at an offset. Threads may share the descriptor.

    Args:
        descriptor: Descriptor of a file that is open for reading.
        length: Number of bytes.
        offset: Offset of the first byte.
    """
    if hasattr(os, "pread"):
        return os.pread(descriptor, length, offset)
    with _seeking:  # Windows has no `pread`.
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, length)


def read_jsonl(path: Path, *, damaged: Literal["raise", "skip"] = "raise") -> list[Any]:
    """Return the records of a JSON-lines file, one per line.

    A last line that has no newline and is not valid JSON, as a killed process leaves it, is skipped.

    Args:
        path: File to read.
        damaged: Treatment of any other line that is not valid JSON: "raise" a `DataError` or "skip" the line.

    Returns:
        Records in file order; an empty list if the file does not exist.

    Raises:
        DataError: A line is not valid JSON and `damaged` is "raise".
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


def _part_path(path: Path) -> Path:
    """Return a fresh sibling path to write to before renaming."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{PART}")


def _sync_tree(folder: Path) -> None:
    """Flush every file and folder below `folder` to the disk."""
    for path in folder.rglob("*"):
        if path.is_dir():
            _sync_folder(path)
        elif path.is_file():
            _sync_file(path)
    _sync_folder(folder)


def _sync_file(path: Path) -> None:
    """Flush a file to the disk."""
    # Windows flushes only files that are open for writing.
    with path.open("rb" if os.name == "posix" else "rb+") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, where the platform can open folders."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # Windows cannot open folders.
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock_run_folder(folder: Path) -> FileLock:
    """Make the folder of a run and return its lock, acquired; the system releases it when the process dies.

    Raises:
        ConfigurationError: Another process holds it, or the folder cannot be written to.
    """
    lock = FileLock(folder / LOCK_FILE, timeout=0, thread_local=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise ConfigurationError(
            f"{folder}: another process is writing this run; wait for it, or choose another --out."
        ) from None
    except OSError as error:
        raise folder_failure(error, folder) from None
    return lock


def folder_failure(error: OSError, folder: Path) -> ConfigurationError:
    """Return the error of a folder that could not be made or written to.

    Args:
        error: Error of the system.
        folder: The folder.
    """
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return ConfigurationError(f"{folder}: is a file, or below one; name a folder.")
    return ConfigurationError(f"{folder}: cannot be written to ({error.strerror}); choose another --out.")
