"""Leaderboard: the success of all agents of all runs, one table for each suite and choice of its tasks."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...envs.checks import first_difference
from ..comparison.participants import PlayedTasks, played_tasks
from ..manifest import SUMMARY_FILE
from ..paper_results import FilledTable, fill_tables
from ..run_index import EPISODES_FILE, Cell, RunIndex, open_index
from ..statistics import Interval, wilson
from ..statistics.repeats import Repeats
from ..summary import EXPERT, RANDOM, Line, summarize
from .library import EvaluationRun, file_version

LARGE = 20_000
"""Number of episodes beyond which an unfinished run has success rates only; its `summary.json` has the rest."""


class Score(NamedTuple):
    """Success of an agent on an entry.

    Attributes:
        success: Success rate with its 95 % interval.
        episodes: Number of complete episodes.
        expected: Number of episodes that the suite asks for.
    """

    success: Interval
    episodes: int
    expected: int


class Row(NamedTuple):
    """Line of a leaderboard.

    Attributes:
        run: Name of the run.
        agent: Name of the agent.
        is_reference: True for the random agent and the expert.
        scores: Success by entry; None where nothing has been played.
        mean: Mean of the success rates over the entries that were played.
    """

    run: str
    agent: str
    is_reference: bool
    scores: list[Score | None]
    mean: float


class Board(NamedTuple):
    """Leaderboard of one suite.

    Attributes:
        suite: Name of the suite.
        description: Description of the suite; of other tasks than those of its first table, how they differ.
        entries: Names of the entries.
        rows: The best mean first.
        runs: Name, number of complete episodes and number of expected ones of each run.
    """

    suite: str
    description: str
    entries: list[str]
    rows: list[Row]
    runs: list[tuple[str, int, int]]


def boards(runs: Sequence[EvaluationRun]) -> list[Board]:
    """Return the leaderboards of runs, in their order. Runs of a suite on other tasks have their own table."""
    groups: list[tuple[dict[str, PlayedTasks], list[EvaluationRun]]] = []
    for run in runs:
        tasks = {entry.name: played_tasks(run.manifest, entry) for entry in run.suite.entries}
        for known, group in groups:
            if group[0].suite.name == run.suite.name and _difference(known, tasks) is None:
                group.append(run)
                known.update({name: one for name, one in tasks.items() if name not in known})
                break
        else:
            groups.append((tasks, [run]))
    first: dict[str, dict[str, PlayedTasks]] = {}
    return [
        _board(group, _difference(first.setdefault(group[0].suite.name, tasks), tasks)) for tasks, group in groups
    ]


def _difference(known: Mapping[str, PlayedTasks], tasks: Mapping[str, PlayedTasks]) -> str | None:
    """Return how the tasks of entries of the same name differ; None if they are the same."""
    for name, other in tasks.items():
        one = known.get(name, other)
        if (difference := first_difference(one.settings, other.settings)) is not None:
            return f"{name}: {difference}"
        if one.has_other_digest(other):
            return f"{name}: other data"
    return None


def _board(runs: Sequence[EvaluationRun], difference: str | None) -> Board:
    lines = {run.name: [line for line in run_lines(run) if line.group is None] for run in runs}
    entries = list(dict.fromkeys(line.entry for found in lines.values() for line in found))
    rows = []
    for run in runs:
        for agent in dict.fromkeys(line.agent for line in lines[run.name]):
            scores = {line.entry: line for line in lines[run.name] if line.agent == agent and line.episodes}
            if scores:
                rates = [line.success.value for line in scores.values()]
                cells = [_score(scores.get(entry)) for entry in entries]
                rows.append(Row(run.name, agent, agent in (RANDOM, EXPERT), cells, sum(rates) / len(rates)))
    rows.sort(key=lambda row: -row.mean)
    counts = [(run.name, sum(line.episodes for line in lines[run.name]), run.expected) for run in runs]
    suite = runs[0].suite
    description = f"Other tasks: {difference}" if difference else suite.description
    return Board(suite.name, description, entries, rows, counts)


def _score(line: Line | None) -> Score | None:
    return None if line is None else Score(line.success, line.episodes, line.expected)


_lines: dict[str, tuple[tuple[int, ...], list[Line]]] = {}
_lock = threading.Lock()


def run_lines(run: EvaluationRun) -> list[Line]:
    """Return the results of a run: from `summary.json` if that is up to date, else from its episodes."""
    key, version = str(run.folder), (*run.version, *file_version(run.folder, SUMMARY_FILE))
    with _lock:
        known = _lines.get(key)
    if known is None or known[0] != version:
        with open_index(run.folder) as index:  # Not the one of the run's pages: many runs have no page open.
            known = version, _read_summary(run, index) or _summarize(run, index)
        with _lock:
            _lines[key] = known
    return known[1]


def suite_tables(run: EvaluationRun) -> list[FilledTable]:
    """Return the results of a run in the layout of the papers, if its suite defines tables."""
    lines = run_lines(run)
    agents = sorted(dict.fromkeys(line.agent for line in lines), key=lambda agent: agent in (RANDOM, EXPERT))
    repeats = {entry.name: entry.repeats for entry in run.suite.entries}
    return fill_tables(run.suite.tables, lines, agents, repeats, run.manifest)


def _summarize(run: EvaluationRun, index: RunIndex) -> list[Line]:
    cells = index.cells()
    if sum(cell.episodes for cell in cells) > LARGE:
        return [_count(run, cell) for cell in cells]
    return summarize(run.suite, run.agents, index.in_task_order, run.manifest).lines


def _count(run: EvaluationRun, cell: Cell) -> Line:
    """Return the success rate of a cell, with an interval for independent episodes."""
    complete, nan = cell.episodes - cell.failed, math.nan
    expected = run.manifest.get("expected", {}).get(cell.entry, complete)
    return Line(
        entry=cell.entry,
        group=None,
        agent=cell.agent,
        episodes=complete,
        expected=expected,
        failed=cell.failed,
        success=wilson(cell.solved, complete),
        score=None,
        mean_return=Interval(nan, nan, nan),
        steps=nan,
        invalid=nan,
        truncated=nan,
        seconds=nan,
    )


def _read_summary(run: EvaluationRun, index: RunIndex) -> list[Line] | None:
    """Return the results in `summary.json`; None if it is missing, damaged, or not of all stored episodes."""
    _, written = file_version(run.folder, SUMMARY_FILE)
    if written < file_version(run.folder, EPISODES_FILE)[1]:
        return None
    names = {field.name for field in dataclasses.fields(Line)}
    try:
        stored = json.loads((run.folder / SUMMARY_FILE).read_text(encoding="utf-8"))
        lines = [
            Line(**{name: _restore(name, line[name]) for name in names & line.keys()}) for line in stored["lines"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not (run.folder / EPISODES_FILE).exists():
        return lines  # A run may be kept without its largest file.
    # The times of a copied run's files say nothing.
    summarized = {(one.agent, one.entry, one.episodes, one.failed) for one in lines if one.group is None}
    found = {(one.agent, one.entry, one.episodes - one.failed, one.failed) for one in index.cells()}
    return lines if {one for one in summarized if any(one[2:])} == found else None


def _restore(name: str, value: Any) -> Any:
    """Return a value of a line from plain data, in which null stands for NaN and keys are text."""
    if name == "repeats" and value is not None:
        at, every = (
            {int(k): _restore_interval(rate) for k, rate in value[key].items()}
            for key in ("pass_at_k", "pass_all_k")
        )
        return Repeats(at, every, _restore_interval(value["flips"]))
    if isinstance(value, dict):
        return _restore_interval(value)
    if value is None and name in ("steps", "invalid", "truncated", "seconds"):
        return math.nan
    return value


def _restore_interval(value: Mapping[str, float | None]) -> Interval:
    bounds = {key: math.nan if part is None else part for key, part in value.items()}
    return Interval(**bounds)
