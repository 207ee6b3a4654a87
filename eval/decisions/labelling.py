"""Labelling of a run: replays grouped by task, within a time, and appended to `decisions.jsonl`."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...envs.core import TextEnv
from ...envs.seeding import stable_seed
from ..run_index import EPISODES_FILE
from ..store import Result
from ..suite import Entry
from ..summary import load_run
from .coverage import missing_labels
from .file import DecisionsFile, Labels, read_labels
from .labels import EpisodeDecisions, Unlabelled
from .replay import OutOfTime, label_recorded, read_recorded

_EXCHANGES, _TRIALS = (
    b',"exchanges":[',
    b',"trials":[',
)  # Cannot occur inside a JSON string, like the store's keys.


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
    run = load_run(folder)
    complete = {key: result for key, result in run.results.items() if result.error is None}
    stored = read_labels(folder, complete.values())
    keep = {key: labels for key, labels in stored.items() if isinstance(labels, EpisodeDecisions)}
    pending: dict[str, list[list[Result]]] = {}
    for entry in run.suite.entries:
        tasks: dict[str, list[Result]] = defaultdict(list)
        for key, result in complete.items():
            if key.entry == entry.name and key not in keep:
                tasks[key.task].append(result)
        if tasks:
            pending[entry.name] = [
                tasks[task] for task in sorted(tasks, key=lambda task: stable_seed("label", task))
            ]
    if not pending:
        return Coverage(len(complete), len(keep))
    end = math.inf if seconds is None else time.monotonic() + seconds
    envs: dict[str, TextEnv[Any] | Unlabelled] = {}
    costly: list[str] = []
    done, failed = len(keep), 0
    file = DecisionsFile(folder, complete, keep)
    try:
        with (folder / EPISODES_FILE).open("rb") as episodes:
            entries = [entry for entry in run.suite.entries if entry.name in pending]
            for number, entry in enumerate([*entries, *entries]):  # Again, for time that others did not need.
                groups = pending[entry.name]
                now = time.monotonic()
                share = (end - now) / max(1, len(entries) - number)
                if not groups or entry.name in costly or now >= end:
                    continue
                env = envs.setdefault(entry.name, _open(entry))
                if isinstance(env, TextEnv) and env.replay_is_costly and not with_costly:
                    costly.append(entry.name)
                    continue
                try:
                    while groups:
                        group = groups[-1]
                        while group:
                            labels = _label(env, episodes, group[-1], now + share)
                            file.append(group.pop(), labels)
                            done += isinstance(labels, EpisodeDecisions)
                            failed += isinstance(labels, Unlabelled)
                        groups.pop()
                        on_progress(done, len(complete))
                except OutOfTime:
                    pass
    finally:
        file.close()
    late = sum(len(group) for name, groups in pending.items() if name not in costly for group in groups)
    return Coverage(len(complete), done, failed, late, tuple(costly))


def _open(entry: Entry) -> TextEnv[Any] | Unlabelled:
    """Make the environment of an entry, or return the reason why it cannot be made."""
    try:
        return entry.make()
    except Exception as error:
        return Unlabelled(f"The environment cannot be made: {error}")


def _label(env: TextEnv[Any] | Unlabelled, episodes: Any, result: Result, deadline: float) -> Labels:
    """Label one stored episode.

    Raises:
        OutOfTime: The deadline has passed.
    """
    if isinstance(env, Unlabelled):
        return env
    episodes.seek(result.offset)
    try:
        recorded = read_recorded(_parse_episode(episodes.readline()))
        return label_recorded(env, recorded, deadline)
    except OutOfTime:
        raise
    except Exception as error:  # Of a damaged record, or of an environment whose service does not answer.
        return Unlabelled(f"The replay failed: {type(error).__name__}: {error}")


def _parse_episode(line: bytes) -> Mapping[str, Any]:
    """Parse a line of `episodes.jsonl` without its conversations, which may be most of it."""
    cut = line.find(_EXCHANGES)
    if cut >= 0 and _TRIALS not in line:
        line = line[:cut] + b"}"
    record: Mapping[str, Any] = json.loads(line.decode("utf-8", "surrogatepass"))
    return record


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
