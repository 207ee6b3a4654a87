"""Folders of tests that another user may read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


@contextmanager
def readable_by_all(folder: Path) -> Iterator[None]:
    """Context in which every user may enter a folder of a test, and those above it.

    All tests share the latter, so one test at a time changes their permissions.
    """
    own = [path for path in (folder, *folder.parents) if path.stat().st_uid == os.geteuid()]
    own = [path for path in own if path not in (Path("/"), Path("/tmp"))]
    with FileLock(own[-1] / "permissions.lock"):
        modes = {path: path.stat().st_mode for path in own}
        try:
            for path, mode in modes.items():
                path.chmod(mode | 0o055)
            yield
        finally:
            for path, mode in modes.items():
                path.chmod(mode)
