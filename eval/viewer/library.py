"""Runs below a folder, by name."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...envs.display import visible
from ...envs.errors import ConfigurationError
from ..manifest import MANIFEST_FILE, read_manifest
from ..run_index import EPISODES_FILE
from ..suite import Suite, read_suite
from .episodes import EpisodeList

MAX_FOLDERS = 20_000
"""Number of folders that a search for runs visits at most."""

MAX_DEPTH = 6
"""Levels of folders below the given one in which runs are found."""

_REFRESH = 2.0
"""Seconds for which a search for runs is valid."""

_SKIPPED = frozenset({"node_modules", "__pycache__"})


@dataclass(frozen=True)
class FoundRun:
    """Folder with a `run.json`.

    Attributes:
        name: Path below the folder of runs, with slashes.
        folder: Folder of the run.
        is_evaluation: True for a run of `arboretum eval`, damaged or not, and for one of unknown kind because its
            settings are not JSON; False for other kinds.
    """

    name: str
    folder: Path
    is_evaluation: bool


class EvaluationRun:
    """Run of `arboretum eval`, as it is on the disk.

    Args:
        name: Name in addresses.
        folder: Folder of the run.

    Raises:
        DataError: The folder holds no run, or its settings are damaged.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.manifest: dict[str, Any] = read_manifest(folder)
        self.suite: Suite = read_suite(self.manifest["suite"], str(folder / MANIFEST_FILE))
        self.agents: list[str] = list(self.manifest["agents"])

    @cached_property
    def episodes(self) -> EpisodeList:
        """Episodes of the run."""
        return EpisodeList(self.folder)

    @property
    def expected(self) -> int:
        """Number of episodes that the suite asks for, as far as it is known."""
        counts: dict[str, int] = self.manifest.get("expected", {})
        return sum(counts.values()) * len(self.agents)

    @property
    def version(self) -> tuple[int, ...]:
        """Value that changes with the files of the run."""
        return file_version(self.folder, MANIFEST_FILE, EPISODES_FILE)


def file_version(folder: Path, *names: str) -> tuple[int, ...]:
    """Return the sizes and times of files; zeros for missing ones."""
    found: list[int] = []
    for name in names:
        try:
            status = (folder / name).stat()
        except OSError:
            found += (0, 0)
        else:
            found += (status.st_size, status.st_mtime_ns)
    return tuple(found)


class Library:
    """Runs below a folder. Threads may share it.

    Args:
        root: Folder of runs, or of one run.

    Raises:
        ConfigurationError: There is no such folder.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise ConfigurationError(f"{root}: is not a folder; give the folder of runs, such as runs.")
        self.root = root
        self._lock = threading.Lock()
        self._found: dict[str, FoundRun] = {}
        self._searched = -_REFRESH
        self._runs: dict[str, tuple[tuple[int, ...], EvaluationRun]] = {}

    def found(self) -> dict[str, FoundRun]:
        """Return the runs by name, the latest first."""
        with self._lock:
            if time.monotonic() - self._searched >= _REFRESH:
                runs = sorted(_search(self.root), key=lambda run: -_last_change(run.folder))
                self._found = {run.name: run for run in runs}
                self._searched = time.monotonic()
            return self._found

    def evaluation(self, name: str) -> EvaluationRun | None:
        """Return a run of `arboretum eval`; None if there is none of this name.

        Raises:
            DataError: Its settings are damaged.
        """
        run = self.found().get(name)
        if run is None or not run.is_evaluation:
            return None
        version = file_version(run.folder, MANIFEST_FILE)
        with self._lock:
            known = self._runs.get(name)
            if known is None or known[0] != version:
                known = self._runs[name] = (version, EvaluationRun(name, run.folder))
            return known[1]


def _last_change(folder: Path) -> int:
    return max(file_version(folder, MANIFEST_FILE, EPISODES_FILE, "metrics.jsonl")[1::2], default=0)


def _search(root: Path) -> Iterator[FoundRun]:
    """Yield the runs below a folder, or the one in it. Folders within a run are not searched."""
    for visited, (path, folders, files) in enumerate(os.walk(root)):
        folder = Path(path)
        depth = len(folder.relative_to(root).parts)
        if MANIFEST_FILE in files or EPISODES_FILE in files:
            name = folder.relative_to(root).as_posix() if depth else folder.resolve().name or "run"
            if visible(name) == name and not {"\n", "\t"} & set(name):  # Other names cannot be shown.
                yield FoundRun(name, folder, _is_evaluation(folder))
            folders.clear()
        elif depth >= MAX_DEPTH or visited >= MAX_FOLDERS:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED)


def _is_evaluation(folder: Path) -> bool:
    if (folder / EPISODES_FILE).exists():
        return True
    try:
        settings = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return True  # So that the first page says that it cannot be read.
    return isinstance(settings, dict) and "suite" in settings
