"""SHA-256 checksums of a folder's files, written with the folder and verified when it is opened.

`SHA256SUMS` is a file of the tool of that name, which verifies it, too: `sha256sum -c SHA256SUMS`.

A folder of at most `ALWAYS_READ` bytes is read in full whenever it is opened. Of a larger one, a file is read
again only if its size, its times or its inode differ from those that it had when it was last found intact, which
are stored in the cache folder; `fresh` reads everything.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from .data import cache_folder
from .errors import DataError
from .files import write_atomic

SUMS_FILE = "SHA256SUMS"

ALWAYS_READ = 32 * 2**20
"""Size in bytes up to which a folder is read at every opening, which takes about 30 ms."""

_CHUNK = 1 << 22
_SEPARATORS = ("  ", " *")
"""Separators of digest and name in the text mode and the binary mode of sha256sum."""
_Identity = list[int]
"""Size, time of modification, time of change (in nanoseconds), and inode of a file."""


def write_checksums(folder: Path, exclude: Collection[str] = ()) -> None:
    """Write the checksums of all files below a folder into its `SHA256SUMS`.

    Args:
        folder: The folder.
        exclude: Names of files in it that are left out.
    """
    others = {folder / name for name in (SUMS_FILE, *exclude)}
    lines = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path not in others:
            lines.append(f"{_digest(path)}  {path.relative_to(folder).as_posix()}\n")
    write_atomic(folder / SUMS_FILE, "".join(lines))


def verify_checksums(
    folder: Path,
    fix: str,
    *,
    fresh: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Verify the files of a folder against its `SHA256SUMS`; files that it does not name are ignored.

    Args:
        folder: Folder with the checksums.
        fix: End of the message of an error: what the user can do.
        fresh: Read files again that were found intact before.
        progress: Called with the number of bytes read so far, and of all bytes to read.

    Returns:
        The number of files.

    Raises:
        DataError: A file, or `SHA256SUMS` itself, is missing or damaged; names the file.
    """
    sums = read_checksums(folder, fix)
    identities = {}
    for name in (*sums, SUMS_FILE):
        try:
            status = (folder / name).stat()
        except OSError as error:
            raise DataError(folder / name, f"is missing ({error.strerror}); {fix}") from None
        identities[name] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    is_large = sum(identity[0] for identity in identities.values()) > ALWAYS_READ
    record = _record_path(folder) if is_large else None
    known = {} if fresh or record is None else _read_record(record)
    to_read = [name for name in sums if known.get(name) != identities[name]]
    total = sum(identities[name][0] for name in to_read)
    done = 0
    for name in to_read:

        def on_read(count: int) -> None:
            nonlocal done
            done += count
            if progress is not None:
                progress(done, total)

        try:
            found = _digest(folder / name, on_read)
        except OSError as error:
            raise DataError(folder / name, f"cannot be read ({error.strerror}); {fix}") from None
        if found != sums[name]:
            raise DataError(folder / name, f"is damaged or was changed (its SHA-256 is not in {SUMS_FILE}); {fix}")
    if record is not None and known != identities:
        _write_record(record, identities)
    return len(sums)


def read_checksums(folder: Path, fix: str) -> dict[str, str]:
    """Return the checksum of every file by its path within the folder; the files are not read.

    Args:
        folder: Folder with the checksums.
        fix: End of the message of an error: what the user can do.

    Raises:
        DataError: `SHA256SUMS` is missing or damaged.
    """
    path = folder / SUMS_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        raise DataError(path, f"is missing; {fix}") from None
    except (OSError, ValueError) as error:
        raise DataError(path, f"cannot be read ({error}); {fix}") from None
    sums: dict[str, str] = {}
    for line in lines:
        digest, separator, name = line[:64], line[64:66], line[66:-1]
        is_inside = name and not Path(name).is_absolute() and ".." not in Path(name).parts
        is_digest = len(digest) == 64 and not digest.strip("0123456789abcdef")
        if not is_digest or separator not in _SEPARATORS or not line.endswith("\n") or not is_inside:
            raise DataError(path, f"is damaged; {fix}", len(sums) + 1)
        sums[name] = digest
    if not sums:
        raise DataError(path, f"is empty; {fix}")
    return sums


def _digest(path: Path, on_read: Callable[[int], None] | None = None) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        buffer = memoryview(bytearray(min(os.fstat(file.fileno()).st_size + 1, _CHUNK)))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            if on_read is not None:
                on_read(count)
    return digest.hexdigest()


def _record_path(folder: Path) -> Path | None:
    """Return the file of the identities that the files of a folder had when they were last intact."""
    key = hashlib.blake2b(os.fsencode(folder.resolve()), digest_size=16).hexdigest()
    try:
        verified = cache_folder() / "verified"
        verified.mkdir(exist_ok=True)
    except OSError:
        return None  # Without a cache, everything is read every time.
    return verified / f"{key}.json"


def _read_record(path: Path) -> dict[str, _Identity]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _write_record(path: Path, identities: dict[str, _Identity]) -> None:
    with suppress(OSError):
        write_atomic(path, json.dumps(identities))
