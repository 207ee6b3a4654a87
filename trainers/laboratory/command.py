"""`arboretum study credit`: run the laboratory's experiment, and write its table, results and figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ...envs.checks import at_least
from ...envs.files import folder_failure, write_atomic
from ...eval.manifest import check_holds_no_run, check_holds_no_study, check_replaces_nothing
from .experiment import Experiment, Results, run_experiment
from .figure import draw_figure
from .options import LaboratoryOptions
from .table import CAPTION, make_cells, render_table, to_markdown

RESULTS_FILE, TABLE_FILE, FIGURE_FILE = "results.jsonl", "table.md", "figure.svg"


def run_laboratory(options: LaboratoryOptions, out: Path, *, workers: int, console: Console) -> int:
    """Do the missing runs of an experiment, and write `table.md`, `results.jsonl` and `figure.svg`.

    A folder may hold runs of several experiments; those of this one are not repeated.

    Args:
        options: Tasks, arms, seeds and regime of the experiment.
        out: Folder of the results.
        workers: Number of processes.
        console: Console for progress and table.

    Returns:
        Exit status: 0 when everything is done, 130 when interrupted.

    Raises:
        ConfigurationError: An option has no such value, or the folder cannot be written to or holds a run.
    """
    at_least("workers", workers, 1)
    check_holds_no_run(out)
    check_holds_no_study(out)
    if not (out / RESULTS_FILE).exists():
        check_replaces_nothing(out, (TABLE_FILE, FIGURE_FILE))
    experiment = replace(Experiment(), **options.given)
    try:
        out.mkdir(parents=True, exist_ok=True)
        results = Results(out / RESULTS_FILE)
    except OSError as error:
        raise folder_failure(error, out) from None
    status = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console) as bar:
            stage = bar.add_task("panels of tasks", total=None)
            run_experiment(
                experiment,
                results,
                workers=workers,
                progress=lambda done, total: bar.update(stage, completed=done, total=total),
            )
    except KeyboardInterrupt:
        console.print("[yellow]Interrupted:[/] finished panels are kept; run the same command to continue.")
        status = 130
    cells = make_cells(experiment, results)
    if any(cell.seeds for cell in cells):
        write_atomic(out / TABLE_FILE, to_markdown(experiment, results))
        if any(cell.difference is not None for cell in cells):
            write_atomic(out / FIGURE_FILE, draw_figure(cells))
        console.print(render_table(experiment, cells))
        console.print(CAPTION, highlight=False)
        line = f"Table: {out / TABLE_FILE}; runs: {out / RESULTS_FILE}"
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    return status
