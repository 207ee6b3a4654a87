"""Results of stored runs: the summary of one run, or of several side by side, and their report."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from ..envs.checks import first_difference
from ..envs.errors import ConfigurationError
from .comparison.participants import short_names
from .decisions import Labels, read_indexed_labels, summarize_decisions
from .decisions.coverage import describe_unlabelled, has_labels_file
from .manifest import check_keeps_results
from .report import write_report
from .reported_run import ReportedRun
from .store import EpisodeKey, Result
from .suite import fill_defaults
from .summary import EXPERT, RANDOM, OpenRun, Summary, open_run, summarize, write_summary


def report(folders: Sequence[Path], path: Path | None = None) -> Summary:
    """Summarize one run, or several of the same suite side by side, and write the report.

    Args:
        folders: Folders of the runs. For a single run, `summary.json` is written into its folder. Agents with the
            same name in several runs are distinguished by the end of the path of the run's folder.
        path: HTML file; None for `report.html` in the first folder.

    Returns:
        The summary.

    Raises:
        ConfigurationError: The runs are of different suites, or of one suite on different data, or one is named
            twice.
        DataError: A folder holds no run.
    """
    with load_results(folders) as results:
        write_results(results, path or folders[0] / "report.html")
    return results.summary


class ReportedResults(NamedTuple):
    """Content of a report, and context of the runs' open indexes.

    Attributes:
        summary: Summary of the runs.
        runs: The runs.
        indexes: Context that closes the indexes of the runs.
    """

    summary: Summary
    runs: list[ReportedRun]
    indexes: ExitStack

    def __enter__(self) -> ReportedResults:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.indexes.close()


def write_results(results: ReportedResults, path: Path) -> None:
    """Write the report of one run or several, and of a single run `summary.json`.

    Damaged episodes are added to the summary's problems.

    Args:
        results: Result of `load_results`.
        path: HTML file.

    Raises:
        OSError: A file cannot be written.
    """
    write_report(path, results.summary, results.runs)
    if len(results.runs) == 1:
        write_summary(results.runs[0].folder, results.summary)


def load_results(folders: Sequence[Path]) -> ReportedResults:
    """Summarize one run, or several of the same suite side by side, and write nothing; see `report`.

    The memory that it needs grows with the number of labelled episodes, and not with that of the others.

    Raises:
        ConfigurationError: As `report` says, or the results of a run were kept without its episodes.
    """
    for folder in folders:
        check_keeps_results(folder)
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigurationError("a run is named twice; name the folder of each run once.")
    with ExitStack() as stack:
        opened = [stack.enter_context(open_run(folder)) for folder in folders]
        _check_alike(folders, opened)
        runs = list(_name_agents(folders, opened))
        merged: dict[str, Any] = {**opened[0].manifest, "expected": {}, "budgets": {}}
        merged |= {key: [] for key in ("uses_success_labels", "uses_simulator")}
        for run in runs:
            merged["expected"] |= run.manifest.get("expected", {})
            budgets = run.manifest.get("budgets", ())
            merged["budgets"] |= {new: budgets[old] for new, old in run.names.items() if old in budgets}
            for key in ("uses_success_labels", "uses_simulator"):
                merged[key] += [new for new, old in run.names.items() if old in run.manifest.get(key, ())]

        def read(agent: str, entry: str) -> Iterator[Result]:
            return chain.from_iterable(run.results(agent, entry) for run in runs)

        agents = [name for run in runs for name in run.names]
        problems = [problem for run in opened for problem in run.index.problems()]
        summary = summarize(opened[0].suite, agents, read, merged, problems)
        labels: dict[EpisodeKey, Labels] = {}
        for run in runs:
            labels |= run.labels
        episodes = {(line.entry, line.agent): line.episodes for line in summary.lines if line.group is None}
        decisions = summarize_decisions(episodes, labels)
        is_shown = bool(labels) or any(has_labels_file(folder) for folder in folders)
        unlabelled = [sentence for run in runs if is_shown for sentence in _describe_unlabelled(run)]
        summary = dataclasses.replace(summary, decisions=decisions, unlabelled=unlabelled)
        return ReportedResults(summary, runs, stack.pop_all())


def _check_alike(folders: Sequence[Path], runs: Sequence[OpenRun]) -> None:
    """Raise `ConfigurationError` if runs are of different suites or have different tasks."""
    suite = runs[0].suite
    for folder, run in zip(folders, runs, strict=True):
        bare = (dataclasses.replace(one, tables=()) for one in (suite, run.suite))
        first, other = (fill_defaults(one.to_dict()) for one in bare)
        difference = first_difference(first, other)
        if difference is not None:
            raise ConfigurationError(
                f"{folder}: is a run of another suite than {folders[0]} ({difference}); report them separately."
            )
    tasks: dict[str, Any] = {}
    for folder, run in zip(folders, runs, strict=True):
        for entry, digest in run.manifest.get("tasks", {}).items():
            if tasks.setdefault(entry, digest) != digest:
                raise ConfigurationError(
                    f"{folder}: has other tasks for {entry!r} than the runs before it (other data?); report them"
                    " separately."
                )


def _name_agents(folders: Sequence[Path], runs: Sequence[OpenRun]) -> Iterator[ReportedRun]:
    """Yield the runs with the names of their agents in a report, and their labels."""
    all_names = [name for run in runs for name in run.agents]
    # A reference agent plays identical episodes in every run: the run that has most of them shows it.
    owners = {name: _fullest(runs, name) for name in (RANDOM, EXPERT) if name in all_names}
    for folder, short, run in zip(folders, short_names(folders), runs, strict=True):
        names: dict[str, str] = {}
        for name in run.agents:
            if owners.get(name, run) is run:
                ambiguous = all_names.count(name) > 1 and name not in owners
                names[f"{name} ({short})" if ambiguous else name] = name
        yield ReportedRun(folder, run.index, run.manifest, names, _read_labels(folder, run, names))


def _fullest(runs: Sequence[OpenRun], agent: str) -> OpenRun:
    """Return the run, the first of several, with most complete episodes of an agent."""

    def complete(run: OpenRun) -> int:
        return sum(cell.episodes - cell.failed for cell in run.index.cells() if cell.agent == agent)

    return max((run for run in runs if agent in run.agents), key=complete)


def _read_labels(folder: Path, run: OpenRun, names: Mapping[str, str]) -> dict[EpisodeKey, Labels]:
    """Return the labels of a run by the keys of its episodes in the report."""
    shown = {own: name for name, own in names.items()}
    stored = read_indexed_labels(folder, run.index)
    return {key._replace(agent=shown[key.agent]): labels for key, labels in stored.items() if key.agent in shown}


def _describe_unlabelled(run: ReportedRun) -> list[str]:
    complete = {(cell.agent, cell.entry): cell.episodes - cell.failed for cell in run.cells}
    return describe_unlabelled(run.folder, complete, Counter((key.agent, key.entry) for key in run.labels))
