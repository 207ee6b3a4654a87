"""The command `arboretum decisions`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ...envs.checks import positive
from ...envs.errors import ConfigurationError
from ..evaluate import INTERRUPTED
from ..manifest import check_is_evaluation
from ..output_path import describe_failure
from ..results import load_results, write_results
from .console import label_with_progress, print_decisions
from .file import FILE


def label_runs(runs: Sequence[Path], seconds: float | None, *, console: Console) -> int:
    """Label the decisions of runs, print their quality, and write `summary.json` and `report.html` again.

    Args:
        runs: Folders of evaluation runs.
        seconds: Time for each run; None labels all episodes.
        console: Terminal.

    Returns:
        The exit status: 1 if an episode has no labels, a run has no episodes, or a file cannot be written; 130 if
        interrupted.

    Raises:
        ConfigurationError: No run is named, one is a training run, or the time is not positive.
        DataError: A folder holds no run.
    """
    if not runs:
        raise ConfigurationError("name at least one folder of a run, such as runs/quick-random-expert.")
    if seconds is not None:
        positive("seconds", seconds)
    for folder in runs:
        check_is_evaluation(folder, "decisions")
    try:
        return max(_label(folder, seconds, is_alone=len(runs) == 1, console=console) for folder in runs)
    except KeyboardInterrupt:
        console.print("[yellow]Interrupted;[/] run the same command again to go on.")
        return INTERRUPTED


def _label(folder: Path, seconds: float | None, *, is_alone: bool, console: Console) -> int:
    """Label the decisions of a run, print and write them, and return the exit status."""
    remarks: list[str] = []
    failures: list[str] = []
    is_complete = False
    try:
        coverage, remarks = label_with_progress(folder, seconds, with_costly=True, console=console)
        is_complete = coverage.labelled == coverage.episodes
    except OSError as error:
        failures.append(f"{describe_failure(error, folder / FILE)}.")
    path = folder / "report.html"
    with load_results([folder]) as results:
        summary = results.summary
        try:
            write_results(results, path)
        except OSError as error:
            failures.append(f"{describe_failure(error, path)}.")
    if not is_alone:
        console.print(str(folder), markup=False, style="bold")
    for problem in summary.problems:
        console.print(problem, markup=False, style="yellow", soft_wrap=True)
    print_decisions(summary.decisions, remarks or summary.unlabelled, console)
    if not summary.episodes:
        failures.insert(0, f"{folder}: has no complete episodes, and so no decisions to label.")
    for failure in failures:
        console.print(failure, markup=False, style="yellow", soft_wrap=True)
    if not failures:
        console.print(f"Report: {path}", soft_wrap=True, highlight=False, markup=False)
    return 0 if is_complete and not failures else 1
