"""Run a study: trials in parallel processes, live curves of the running ones, and a table at the end.

Results are written as soon as a trial or a control is finished; starting the study again in the same folder runs
the missing ones only.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from ...envs.checks import at_least, first_difference
from ...envs.errors import ConfigurationError, DataError, unknown_name
from ...envs.files import read_jsonl, write_atomic
from ...eval.manifest import STUDY_FILE, check_holds_no_run
from ..checkpoints.interruption import Interruption
from ..checkpoints.run_folder import METRICS_FILE
from ..config.serialize import to_plain
from ..reporting.terminal_plot import Series, plot, running_mean
from ..sampling.worker import init_worker
from ..state import Activity
from ..train import FAILED, INTERRUPTED, OK, require_torch
from .curves import read_curves
from .definition import Study
from .evaluation import write_suite
from .page import REPORT_FILE, evaluation_commands, write_page
from .results import make_rows
from .table import make_tables, render_table, to_markdown
from .trials import (
    EXPERT,
    OTHER_MODEL,
    RANDOM,
    TUNED,
    WARM_START,
    evaluate_control,
    policy_path,
    run_supervised,
    run_trial,
    trial_path,
)

LOG_FILE = "log.txt"
_STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")
_THREAD_LIMITS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def run_study(study: Study, out: Path, *, workers: int = 2, envs: Sequence[str] = (), console: Console) -> int:
    """Run the missing trials and controls of a study, and print its tables.

    Args:
        study: Study to run.
        out: Folder of the study; receives the trials' folders, `summary.json`, `table.md` and `report.html`.
        workers: Number of trials or controls that run at the same time, each in a process with one thread.
        envs: Environments to run now, by their names in the study; none for all. The tables have all results.
        console: Console that shows progress.

    Returns:
        Exit status: 0 when everything is done, 1 when a trial or a control failed, 130 when interrupted.

    Raises:
        ConfigurationError: The study cannot work, or the folder holds another study.
    """
    at_least("workers", workers, 1)
    for env in envs:
        if env not in study.envs:
            raise unknown_name(f"environment of the study {study.name}", env, study.envs)
    study.check()
    require_torch()
    envs = envs or list(study.envs)
    work = missing_work(study, out, envs)
    if any(work):
        study.check_models(envs)
    _claim_folder(study, out)
    console.print(f"{study.name}: {escape(study.description)}", highlight=False)
    failures: list[str] = []
    status = OK
    if any(work):
        try:
            with Interruption(Activity()).handle_signals():
                failures = _run_in_workers(study, out, work, workers, console)
        except KeyboardInterrupt:
            console.print("[yellow]Interrupted:[/] finished trials are kept; run the same command to continue.")
            status = INTERRUPTED
    for failure in failures:
        console.print(f"[red]Failed:[/] {escape(failure)}", highlight=False)
    _write_results(study, out, console)
    return status or (FAILED if failures else OK)


def _claim_folder(study: Study, out: Path) -> None:
    """Write the study's definition into its folder, unless the folder holds another study, or a run."""
    path, definition = out / STUDY_FILE, to_plain(study)
    if not path.exists():
        check_holds_no_run(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else definition
    except OSError as error:
        raise ConfigurationError(f"{out}: cannot be written to ({error.strerror}).") from None
    except ValueError as error:
        raise DataError(path, f"is not JSON ({error}); choose another --out.") from None
    if not isinstance(stored, dict):
        raise DataError(path, "does not hold the definition of a study; choose another --out.")
    difference = first_difference({key: stored.get(key) for key in definition}, definition)
    if difference is not None:
        raise ConfigurationError(
            f"{out}: holds a study that was started with other settings ({difference}); choose another --out, "
            "or delete the folder."
        )
    write_atomic(path, json.dumps(definition, indent=2) + "\n")


def missing_work(study: Study, out: Path, envs: Sequence[str]) -> list[list[WorkItem]]:
    """Return the trials and controls without a result in some environments, in phases.

    Runs that tune a setting come before all trials, which need the chosen value. The trials of the first seed,
    which take longest, come next, then the controls, so that a study that is stopped early has something to
    compare with. Further supervised fine-tuning comes after all trials, whose CPU
    time is its budget.
    """
    policies = [RANDOM, EXPERT, WARM_START]
    policies += [TUNED] if study.controls.temperatures else []
    policies += [OTHER_MODEL] if study.controls.model is not None else []
    controls = [
        WorkItem(f"{policy} on {env}", evaluate_control, (study, env, policy, out))
        for policy in policies
        for env in envs
        if not policy_path(out, env, policy).exists()
    ]
    trials = [one for one in study.trials() if one.env in envs and not trial_path(out, one).exists()]
    first, others = (
        [WorkItem(trial.name, run_trial, (study, trial, out)) for trial in trials if (trial.seed == 0) is is_first]
        for is_first in (True, False)
    )
    supervised = [
        WorkItem(trial.name, run_supervised, (study, trial, out))
        for env in envs
        for trial in study.supervised_trials(env)
        if not trial_path(out, trial).exists()
    ]
    tuning = [
        WorkItem(trial.name, run_trial, (study, trial, out))
        for trial in study.tuning_trials()
        if trial.env in envs and not trial_path(out, trial).exists()
    ]
    return [tuning, [*first, *controls, *others], supervised]


def _write_results(study: Study, out: Path, console: Console) -> None:
    """Write the tables, their data and the report, and print the tables."""
    rows, curves = make_rows(study, out), read_curves(study, out)
    tables = make_tables(study, rows)
    for env in study.envs:
        write_suite(study, env, out)
    commands = list(evaluation_commands(study, out))
    summary = {
        "name": study.name,
        "rows": [row.to_dict() for row in rows],
        "curves": [curve.to_dict() for curve in curves],
        "commands": commands,
    }
    write_atomic(out / "summary.json", json.dumps(summary, indent=2) + "\n")
    write_atomic(out / "table.md", "\n".join(map(to_markdown, tables)))
    write_page(study, out, tables, curves)
    for table in tables:
        console.print()
        console.print(render_table(table))
    console.print()
    lines = [f"Tables: {out / 'table.md'}; with learning curves: {out / REPORT_FILE}"]
    lines += [f"Evaluate a final model, such as: {commands[0]}"] if commands else []
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


# ---------------------------------------------------------------------- worker processes


@dataclass(frozen=True)
class WorkItem:
    """Function call to make in a worker process.

    Attributes:
        name: Name for messages.
        function: Function to call; writes its result to disk.
        arguments: Arguments of the function.
    """

    name: str
    function: Callable[..., None]
    arguments: tuple[object, ...]


def _run_in_workers(
    study: Study, out: Path, phases: Sequence[Sequence[WorkItem]], workers: int, console: Console
) -> list[str]:
    """Do all work in worker processes, one phase after the other.

    Returns:
        A message for each item that failed.
    """
    failures: list[str] = []
    with (
        _single_threaded_workers(),
        _StudyProgress(study, out, sum(map(len, phases)), console) as progress,
    ):
        for work in phases:
            if work:
                failures += _run_phase(work, out, workers, progress)
    return failures


def _run_phase(work: Sequence[WorkItem], out: Path, workers: int, progress: _StudyProgress) -> list[str]:
    """Do the work of one phase, in processes of its own: a process that dies breaks its pool for good.

    Returns:
        A message for each item that failed.
    """
    failures: list[str] = []
    pool = ProcessPoolExecutor(
        min(workers, len(work)),
        mp_context=get_context("spawn"),
        initializer=init_worker,
        initargs=(out / LOG_FILE,),
    )
    with pool:
        try:
            futures: dict[Future[None], WorkItem] = {
                pool.submit(item.function, *item.arguments): item for item in work
            }
            waiting = set(futures)
            while waiting:
                done, waiting = wait(waiting, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in done:
                    name, error = futures[future].name, future.exception()
                    reason = None if error is None else _describe(error, out)
                    if reason is not None:
                        failures.append(f"{name}: {reason}")
                    progress.finish(name, reason)
                # `Future.running` also holds for one item beyond those that the workers are executing.
                running = [item.name for future, item in futures.items() if future in waiting]
                progress.show(running[:workers])
        except BaseException:
            for process in list(pool._processes.values()):
                process.terminate()
            # Waits for the pool's manager thread, which would race with the interpreter's exit otherwise.
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return failures


def _describe(error: BaseException, out: Path) -> str:
    if isinstance(error, BrokenProcessPool):
        return f"a worker process died; see {out / LOG_FILE}"
    return str(error) or type(error).__name__


@contextmanager
def _single_threaded_workers() -> Iterator[None]:
    """Context in which new processes limit numerical libraries to one thread; more would compete for the cores."""
    before = {name: os.environ.get(name) for name in _THREAD_LIMITS}
    os.environ |= _THREAD_LIMITS
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# ---------------------------------------------------------------------- progress


class _StudyProgress:
    """Live plot of success over updates, one curve per running trial, and the number of finished work items.

    A log cannot be redrawn: there, each finished item is one line, and the plot follows at the end.

    Args:
        study: Study that runs.
        out: Folder of the study.
        total: Number of work items.
        console: Console to print to.
    """

    def __init__(self, study: Study, out: Path, total: int, console: Console) -> None:
        self._study, self._out, self._total, self._console = study, out, total, console
        self._finished = 0
        self._start = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> _StudyProgress:
        if self._console.is_terminal:
            self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._console.is_terminal:
            self._live.__exit__(*exception)  # type: ignore[arg-type]
        elif self._finished:
            self._console.print(self._plot([]))

    def finish(self, name: str, failure: str | None) -> None:
        """Count a work item as finished.

        Args:
            name: Name of the work item.
            failure: Why it failed; None if it did not.
        """
        self._finished += 1
        if failure is not None or not self._console.is_terminal:
            status = "done" if failure is None else f"failed: {failure}"
            self._console.print(
                f"{self._minutes():5.1f} min  {self._finished} of {self._total}: {name} {status}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )

    def show(self, running: Sequence[str]) -> None:
        """Redraw the plot.

        Args:
            running: Names of the running work items.
        """
        if not self._console.is_terminal:
            return
        line = f"{self._finished} of {self._total} done after {self._minutes():.1f} min; running: "
        line += "; ".join(running) or "none"
        self._live.update(Group(self._plot(running), Text(line, style="dim")), refresh=True)

    def _minutes(self) -> float:
        return (time.monotonic() - self._start) / 60

    def _plot(self, running: Sequence[str]) -> Text:
        """Plot the running trials; without any, the last ones that ran."""
        trials = list(self._study.trials())
        shown = [trial for trial in trials if trial.name in running]
        if not shown:
            started = [trial for trial in trials if (self._out / trial.folder / METRICS_FILE).exists()]
            shown = started[-len(self._study.envs) :]
        series, updates = [], 1
        for trial, style in zip(shown, _STYLES, strict=False):
            history = read_jsonl(self._out / trial.folder / METRICS_FILE, damaged="skip")
            optimization = self._study.recipe(trial.recipe, trial.env).optimization
            # A limit of tokens ends the runs before the limit of updates, after an unknown number.
            made = int(history[-1]["update"]) if history else 0
            updates = max(updates, made if optimization.max_tokens is not None else optimization.updates)
            training = [(m["update"], m["success"]) for m in history if "success" in m]
            held_out = [(m["update"], m["validation/success"]) for m in history if "validation/success" in m]
            label = f"{trial.recipe} on {trial.env}"
            if len(self._study.recipes) == 1:
                label = trial.env
            elif len({one.env for one in shown}) == 1:
                label = trial.recipe
            series.append(Series(label, running_mean(training, 5), style))
            series.append(Series("held out" if trial is shown[-1] else "", held_out, f"bold {style}", "marks"))
        return plot(
            series,
            x_max=updates,
            y_max=1.0,
            width=min(self._console.width, 100),
            height=16,
            format_value=lambda value: f"{value:.0%}",
        )
