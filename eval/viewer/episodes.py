"""Episodes of a run, page by page, from its index."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from ..episode_filter import ALL_EPISODES, EpisodeFilter
from ..run_index import Cell, RunIndex, open_index
from ..store import Result


class EpisodeList:
    """Heads of the episodes of a run, kept up to date with its file. Threads may share it.

    Args:
        folder: Folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._opened: RunIndex | None = None

    def in_task_order(self, agent: str, entry: str) -> Iterator[Result]:
        """Return the results of an agent on an entry by task and repeat."""
        return self._index().in_task_order(agent, entry)

    def problems(self) -> list[str]:
        """Return a sentence for each line of the file that is left out."""
        return self._index().problems()

    def page(
        self,
        which: EpisodeFilter,
        *,
        sort: str = "order",
        descending: bool = False,
        offset: int = 0,
        limit: int = 50,
    ) -> list[Result]:
        """Return a page of results, see `RunIndex.page`."""
        return self._index().page(which, sort=sort, descending=descending, offset=offset, limit=limit)

    def count(self, which: EpisodeFilter = ALL_EPISODES) -> int:
        """Return the number of results that a filter selects."""
        return self._index().count(which)

    def at(self, offset: int) -> Result | None:
        """Return the episode that begins at a byte of the file; None if none does."""
        return self._index().at(offset)

    def of_task(self, entry: str, task: str) -> list[Result]:
        """Return the episodes of a task, by agent and repeat."""
        return self._index().of_task(entry, task)

    def cells(self) -> list[Cell]:
        """Return the numbers of episodes by agent and entry."""
        return self._index().cells()

    def _index(self) -> RunIndex:
        """Return the index, up to date with the file."""
        with self._lock:
            if self._opened is not None:
                try:
                    self._opened.refresh()
                except sqlite3.Error:  # It was damaged, or cannot be written any more.
                    self._opened.close()
                    self._opened = None
            if self._opened is None:
                self._opened = open_index(self._folder)
            return self._opened
