"""Labelling and its table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .labelling import Coverage, describe_coverage, label_run
from .statistics import DecisionLine
from .table import describe_basis, fit_decisions


def label_with_progress(
    folder: Path, seconds: float | None, *, with_costly: bool, console: Console
) -> tuple[Coverage, list[str]]:
    """Label a run's episodes with a progress bar.

    Args:
        folder: Folder of the run.
        seconds: Time for it; None for no limit.
        with_costly: Also label entries whose replay is costly.
        console: Terminal.

    Returns:
        The share that is labelled, and a sentence about episodes that have not been examined, if there are any.
    """
    bar = Progress(
        TextColumn("labelling decisions"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with bar:
        bar_id = bar.add_task("", total=None)
        coverage = label_run(
            folder,
            seconds,
            with_costly=with_costly,
            on_progress=lambda done, total: bar.update(bar_id, completed=done, total=total),
        )
    return coverage, describe_coverage(coverage, folder, seconds)


def print_decisions(lines: Sequence[DecisionLine], remarks: Sequence[str], console: Console) -> None:
    """Print the table of decisions with its explanation, and remarks on what is not labelled."""
    labelled = [line for line in lines if line.labelled]
    if labelled:
        console.print(fit_decisions(labelled, console.width))
    for note in describe_basis(lines, console.width):
        console.print(note, markup=False, style="dim")
    for remark in remarks:
        console.print(remark, markup=False, style="yellow", soft_wrap=True)
