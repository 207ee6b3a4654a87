"""Locations of benchmark data and of caches derived from it.

An environment's `data=` argument gives its data folder, or the parent of that folder. Without it, the environment
variable `ARBORETUM_DATA` gives a folder with one subfolder per environment. Parsed data may be cached under
`ARBORETUM_CACHE` (default: `~/.cache/arboretum`).
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from .checks import expand_home, user_path
from .errors import DataError

MAX_MEMBER = 256 * 2**20
"""Largest file in an archive in bytes."""
MAX_UNPACKED = 16 * 2**30
"""Largest size of all files of an archive in bytes; the largest published one, ALFWorld's, has 2 GB."""


def data_folder(env: str, data: str | Path | None = None) -> Path | None:
    """Return the data folder of an environment.

    Args:
        env: Name of the subfolder, such as "boxoban".
        data: Data folder of the environment, or its parent. None uses `ARBORETUM_DATA`.

    Returns:
        The folder, or None if no data is configured and the environment generates its own.

    Raises:
        DataError: `data` or `ARBORETUM_DATA` is not a folder.
    """
    if data is not None:
        folder = user_path("data", data)
        if not folder.is_dir():
            raise DataError(
                folder, "is not a folder; set data= to the folder that holds this environment's files."
            )
        return folder / env if (folder / env).is_dir() else folder
    root = os.environ.get("ARBORETUM_DATA")
    if not root:
        return None
    folder = expand_home(root)
    if not folder.is_dir():
        raise DataError(folder, "is not a folder; set ARBORETUM_DATA to an existing folder, or unset it.")
    return folder / env if (folder / env).is_dir() else None


def data_file_or_folder(env: str, data: str | Path | None = None) -> Path | None:
    """Return `data` if it is a file, such as an archive; else the folder that `data_folder` returns.

    Raises:
        DataError: `data` is neither, or `ARBORETUM_DATA` is not a folder.
    """
    if data is not None and (file := user_path("data", data)).is_file():
        return file
    return data_folder(env, data)


_VARIABLE = "$ARBORETUM_DATA/"


def missing_files(patterns: Sequence[str]) -> list[str]:
    """Return those of several paths or patterns below `ARBORETUM_DATA` that no file or folder has.

    Args:
        patterns: Relative paths, or patterns such as `nq/test.*`. Without `ARBORETUM_DATA` all are missing.

    Raises:
        DataError: `ARBORETUM_DATA` is not a folder.
    """
    root = os.environ.get("ARBORETUM_DATA")
    if not root or not patterns:
        return list(patterns)
    folder = expand_home(root)
    if not folder.is_dir():
        raise DataError(folder, "is not a folder; set ARBORETUM_DATA to an existing folder, or unset it.")
    return [pattern for pattern in patterns if next(folder.glob(pattern.lstrip("/")), None) is None]


def expand_data_folder(value: object) -> object:
    """Return a value in which a leading `$ARBORETUM_DATA/` is replaced by the data folder, if it is a text."""
    root = os.environ.get("ARBORETUM_DATA")
    if isinstance(value, str) and value.startswith(_VARIABLE) and root:
        return str(expand_home(root) / value.removeprefix(_VARIABLE))
    return value


def cache_folder() -> Path:
    """Return the cache folder, creating it if needed."""
    base = os.environ.get("ARBORETUM_CACHE")
    if base:
        folder = expand_home(base)
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arboretum"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def archive_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each regular file of a tar archive, in archive order, without unpacking it.

    Raises:
        DataError: The archive is damaged, truncated or not a tar archive, or unpacks to more than `MAX_MEMBER` or
            `MAX_UNPACKED` bytes.
    """
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.size > MAX_MEMBER or archive.offset > MAX_UNPACKED:
                    raise DataError(
                        path,
                        f"unpacks to too much at {member.name[:100]!r} ({member.size / 2**20:,.0f} MB; at most"
                        f" {MAX_MEMBER >> 20} MB a file and {MAX_UNPACKED >> 30} GB in all); fetch it again.",
                    )
                if member.isfile():
                    file = archive.extractfile(member)
                    assert file is not None
                    yield member.name, file.read()
            # tarfile takes a damaged header for the end of the archive. After the real end there are only zeros;
            # reading them to the last byte also makes the decompressor verify its checksum.
            stream = archive.fileobj
            assert stream is not None
            while rest := stream.read(1 << 20):
                if stream.tell() > MAX_UNPACKED:
                    raise DataError(path, f"unpacks to more than {MAX_UNPACKED >> 30} GB; fetch it again.")
                if rest.strip(b"\0"):
                    raise DataError(path, "is damaged: members follow an unreadable header; fetch it again.")
    except (tarfile.TarError, EOFError, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataError(path, f"cannot be read as a tar archive ({reason}); fetch it again.") from error
    except DataError:
        raise
    except Exception as error:  # lzma and zlib raise exception types of their own for truncated streams
        if type(error).__module__ in ("lzma", "_lzma", "zlib"):
            raise DataError(path, f"is truncated or damaged ({error}); fetch it again.") from error
        raise
