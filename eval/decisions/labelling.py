"""Labelling of a run: replays grouped by task, within a time, and appended to `decisions.jsonl`."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import merge, nlargest
from itertools import groupby
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ...envs.core import TextEnv
from ...envs.seeding import stable_seed
from ...envs.user_code import describe_failure
from ..index_reader import EPISODES_FILE, TaskOutcomes
from ..store import Result
from ..suite import Entry
from ..summary import OpenRun, open_run
from .coverage import missing_labels
from .file import DecisionsFile, Labels, read_indexed_labels
from .labels import EpisodeDecisions, Unlabelled
from .replay import OutOfTime, label_recorded, parse_recorded

BATCH = 20_000
"""Tasks whose names are in memory at once."""
_QUERY = 128
"""Tasks whose results are read by one query."""


@dataclass(frozen=True)
class Coverage:
    """Share of a run's episodes that are labelled.

    Attributes:
        episodes: Number of complete episodes.
        labelled: Number of labelled ones.
        failed: Number of those that cannot be labelled; the labels have the reasons.
        late: Number of those that were not reached within the time.
        costly: Names of the entries that were left out because their replay is costly.
    """

    episodes: int
    labelled: int
    failed: int = 0
    late: int = 0
    costly: tuple[str, ...] = ()


def label_run(
    folder: Path,
    seconds: float | None = None,
    *,
    with_costly: bool = True,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Coverage:
    """Label the episodes of a run that have no labels yet.

    Tasks are taken in a fixed random order, and all agents' episodes of a task together, so that the labels of a
    run that is labelled in part are those of a random sample of tasks. Of the given time, entries have equal
    shares; what one does not need is left to the others.

    Args:
        folder: Folder of the run.
        seconds: Time after which no further position is examined. None labels all episodes.
        with_costly: Also label entries whose environments have `replay_is_costly`.
        on_progress: Function that is called with the numbers of labelled and of all complete episodes.

    Raises:
        DataError: The folder holds no run.
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    with open_run(folder) as run, _turn(folder, seconds) as is_ours:
        labelling = _Labelling(folder, run, with_costly)
        return labelling.label(end, on_progress) if is_ours else labelling.coverage()


@contextmanager
def _turn(folder: Path, seconds: float | None) -> Iterator[bool]:
    """Wait until no other process labels the run; False if one still does after some seconds.

    A folder that cannot be written to has no labels to protect.
    """
    lock = FileLock(folder / ".decisions.lock", thread_local=False)
    is_ours = True
    try:
        lock.acquire(timeout=-1 if seconds is None else seconds)
    except Timeout:
        is_ours = False
    except OSError:
        pass
    try:
        yield is_ours
    finally:
        lock.release()


class _Labelling:
    """Labelling of an open run. It holds the labels that are stored, and few other episodes at a time."""

    def __init__(self, folder: Path, run: OpenRun, with_costly: bool) -> None:
        self._folder, self._run, self._with_costly = folder, run, with_costly
        stored = read_indexed_labels(folder, run.index)
        self._keep = {key: labels for key, labels in stored.items() if isinstance(labels, EpisodeDecisions)}
        names = [entry.name for entry in run.suite.entries]
        self._complete = dict.fromkeys(names, 0)
        for cell in run.index.cells():
            self._complete[cell.entry] += cell.episodes - cell.failed
        kept = Counter(key.entry for key in self._keep)
        self._missing = {name: count - kept[name] for name, count in self._complete.items()}

    def coverage(self) -> Coverage:
        """Return the share that is labelled; all other episodes count as late."""
        total, done = sum(self._complete.values()), len(self._keep)
        return Coverage(total, done, late=max(0, total - done))

    def label(self, end: float, on_progress: Callable[[int, int], None]) -> Coverage:
        """Label episodes until a time on the monotonic clock."""
        total, done, failed = sum(self._complete.values()), len(self._keep), 0
        entries = [entry for entry in self._run.suite.entries if self._missing[entry.name]]
        if not entries:
            return Coverage(total, done)
        envs: dict[str, TextEnv[Any] | Unlabelled] = {}
        costly: list[str] = []
        groups = {entry.name: self._groups(entry.name) for entry in entries}
        begun: dict[str, list[Result]] = {entry.name: [] for entry in entries}
        file = DecisionsFile(self._folder, self._run.index.find, self._keep)
        try:
            with (self._folder / EPISODES_FILE).open("rb") as episodes:
                for number, entry in enumerate([*entries, *entries]):  # Again, for time that others did not need.
                    now = time.monotonic()
                    share = (end - now) / max(1, len(entries) - number)
                    if self._missing[entry.name] <= 0 or entry.name in costly or now >= end:
                        continue
                    env = envs.setdefault(entry.name, _open(entry))
                    if isinstance(env, TextEnv) and env.replay_is_costly and not self._with_costly:
                        costly.append(entry.name)
                        continue
                    try:
                        while group := begun[entry.name] or next(groups[entry.name], []):
                            begun[entry.name] = group
                            while group:
                                episodes.seek(group[-1].offset)
                                line = episodes.readline()
                                labels = _label(env, line, now + share)
                                file.append(group.pop(), line, labels)
                                self._missing[entry.name] -= 1
                                done += isinstance(labels, EpisodeDecisions)
                                failed += isinstance(labels, Unlabelled)
                            on_progress(done, max(done, total))
                    except OutOfTime:
                        pass
        finally:
            file.close()
        # A run in progress may have had further episodes labelled than it had at first.
        missing = {name: max(0, count) for name, count in self._missing.items()}
        late = sum(count for name, count in missing.items() if name not in costly)
        return Coverage(done + failed + sum(missing.values()), done, failed, late, tuple(costly))

    def _groups(self, entry: str) -> Iterator[list[Result]]:
        """Yield the episodes of each task that lack labels, in a fixed random order of the tasks."""
        index, agents = self._run.index, self._run.agents
        labelled = Counter(key.task for key in self._keep if key.entry == entry)
        after: tuple[int, str] | None = None
        while True:
            streams = [index.task_outcomes(agent, entry) for agent in agents]
            tasks = groupby(merge(*streams, key=_task), key=_task)
            missing = (task for task, group in tasks if sum(one.episodes for one in group) > labelled[task])
            places = ((stable_seed("label", task), task) for task in missing)
            batch = nlargest(BATCH, (place for place in places if after is None or place < after))
            for first in range(0, len(batch), _QUERY):
                groups: dict[str, list[Result]] = {task: [] for _, task in batch[first : first + _QUERY]}
                for result in index.complete_of_tasks(agents, entry, list(groups)):
                    if result.key not in self._keep:
                        groups[result.key.task].append(result)
                yield from filter(None, groups.values())
            if len(batch) < BATCH:
                return
            after = batch[-1]


def _task(outcomes: TaskOutcomes) -> str:
    return outcomes.task


def _open(entry: Entry) -> TextEnv[Any] | Unlabelled:
    """Make the environment of an entry, or return the reason why it cannot be made."""
    try:
        return entry.make()
    except Exception as error:
        return Unlabelled(f"The environment cannot be made: {error}")


def _label(env: TextEnv[Any] | Unlabelled, line: bytes, deadline: float) -> Labels:
    """Label the episode of a line of `episodes.jsonl`.

    Raises:
        OutOfTime: The deadline has passed.
    """
    if isinstance(env, Unlabelled):
        return env
    try:
        return label_recorded(env, parse_recorded(line), deadline)
    except OutOfTime:
        raise
    except Exception as error:  # Of a damaged record, or of an environment whose service does not answer.
        return Unlabelled(describe_failure("The replay", error))


def describe_coverage(coverage: Coverage, folder: Path, seconds: float | None) -> list[str]:
    """Return a sentence about the episodes that have not been examined, and how to label them, if there are any.

    Args:
        coverage: Result of `label_run`.
        folder: Folder of the run.
        seconds: Time that `label_run` had.
    """
    missing = coverage.episodes - coverage.labelled - coverage.failed
    if not missing:
        return []
    reasons = []
    if coverage.late:
        reasons.append(f"the time of {seconds:g} s is up")
    if coverage.costly:
        reasons.append(f"replays of {', '.join(coverage.costly)} search again")
    return [missing_labels(missing, coverage.episodes, f", because {' and '.join(reasons)}", folder)]
