"""Where real benchmark data lies, and where things worked out from it are kept.

`data=` at make-time names a world's folder (or the folder that holds it); otherwise the environment variable
`ARBORETUM_DATA` names a folder with one subfolder a world. What is parsed from it may be cached under
`ARBORETUM_CACHE` (default: `~/.cache/arboretum`).
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from .errors import DataError


def data_folder(env: str, data: str | Path | None = None) -> Path | None:
    """The folder of a world's real data, or None where there is none and the world makes its own.

    Args:
        world: the subfolder's name, such as "boxoban".
        data: an explicit folder: the world's own, or one that has it as a subfolder.

    Raises:
        DataError: `data` or `ARBORETUM_DATA` names something that is not a folder.
    """
    if data is not None:
        folder = Path(data).expanduser()
        if not folder.is_dir():
            raise DataError(folder, "not a folder; give data= the folder that holds this world's files.")
        return folder / env if (folder / env).is_dir() else folder
    root = os.environ.get("ARBORETUM_DATA")
    if not root:
        return None
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise DataError(folder, "not a folder; ARBORETUM_DATA must name one that exists, or be unset.")
    return folder / env if (folder / env).is_dir() else None


def cache_folder() -> Path:
    """The folder for caches; created on first use."""
    base = os.environ.get("ARBORETUM_CACHE")
    if base:
        folder = Path(base).expanduser()
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arboretum"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def archive_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """The regular files of a tar archive, `(name, content)` in the archive's order, nothing unpacked to disk.

    Raises:
        DataError: the archive is truncated or not a tar archive.
    """
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile():
                    file = archive.extractfile(member)
                    assert file is not None
                    yield member.name, file.read()
            # A garbled header looks like the end. What follows the real end is zeros, and reading it to the last
            # byte lets the compression's own checksum speak.
            stream = archive.fileobj
            assert stream is not None
            while rest := stream.read(1 << 20):
                if rest.strip(b"\0"):
                    raise DataError(path, "is damaged: members follow a garbled header; fetch it again.")
    except (tarfile.TarError, EOFError, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataError(path, f"cannot be read as a tar archive ({reason}); fetch it again.") from error
    except DataError:
        raise
    except Exception as error:  # lzma and zlib raise their own types for truncated streams
        if type(error).__module__ in ("lzma", "_lzma", "zlib"):
            raise DataError(path, f"is truncated or damaged ({error}); fetch it again.") from error
        raise
