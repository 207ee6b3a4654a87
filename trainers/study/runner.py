"""Running a study: trials side by side in processes of their own, their curves as they happen, a table at the end.

Whatever is finished is on disk, and is not done again when the study is started anew with the same folder.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from ...envs.checks import at_least
from ...envs.errors import ConfigurationError, DataError
from ...envs.files import read_jsonl, write_atomic
from ..config.serialize import to_plain
from ..reporting.terminal_plot import Series, plot, running_mean
from .definition import Study
from .table import drawn, markdown, rows
from .trials import RESULT, Outcomes, evaluate_references, evaluate_warm_start, run_trial, warm_start_path
from .worker import init_worker

OK, FAILED, INTERRUPTED = 0, 1, 130
FILE = "study.json"
STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")


def run_study(study: Study, out: Path, *, workers: int = 2, console: Console) -> int:
    """Run what is missing of a study, and show its table.

    Args:
        study: what to do.
        out: its folder; trials, `summary.json` and `table.md` land there.
        workers: trials at once, each in a process with one thread.
        console: where progress is shown.

    Returns:
        Exit status: 0 when all trials are done, 1 when one failed, 130 when interrupted.

    Raises:
        ConfigurationError: it cannot work, or the folder holds another study.
    """
    from ..train import require_torch

    at_least("workers", workers, 1)
    study.check()
    require_torch()
    _claim(study, out)
    console.print(f"{study.name}: {escape(study.description)}", highlight=False)
    references = {name: evaluate_references(study, env) for name, env in study.envs.items()}
    missing = [trial for trial in study.trials() if not (out / trial.folder / RESULT).exists()]
    jobs = [
        _Job(f"warm start on {env}", (evaluate_warm_start, study, env, out))
        for env in study.envs
        if not warm_start_path(out, env).exists()
    ]
    jobs += [_Job(trial.name, (run_trial, study, trial, out)) for trial in missing]
    failures: list[str] = []
    status = OK
    if jobs:
        try:
            failures = _work(study, out, jobs, workers, console)
        except KeyboardInterrupt:
            console.print("[yellow]Interrupted;[/] what was measured is kept: start the study again to go on.")
            status = INTERRUPTED
    for failure in failures:
        console.print("[red]Failed:[/] ", end="")
        console.print(failure, markup=False, highlight=False)
    _conclude(study, out, references, console)
    return status or (FAILED if failures else OK)


def _claim(study: Study, out: Path) -> None:
    path, mine = out / FILE, to_plain(study)
    try:
        out.mkdir(parents=True, exist_ok=True)
        there = json.loads(path.read_text(encoding="utf-8")) if path.exists() else mine
    except OSError as error:
        raise ConfigurationError(f"{out}: cannot be written to ({error.strerror}).") from None
    except ValueError as error:
        raise DataError(path, f"is not JSON ({error}); choose another --out.") from None
    changed = [key for key in mine if there.get(key) != mine[key]]
    if changed:
        raise ConfigurationError(
            f"{out}: holds a study that was begun with another {changed[0]}; choose another --out, or delete it."
        )
    write_atomic(path, json.dumps(mine, indent=2) + "\n")


def _conclude(study: Study, out: Path, references: Mapping[str, Mapping[str, Outcomes]], console: Console) -> None:
    found = rows(study, out, references)
    write_atomic(out / "summary.json", json.dumps([row.to_dict() for row in found], indent=2) + "\n")
    write_atomic(out / "table.md", markdown(study, found))
    console.print(drawn(study, found))
    console.print(
        f"Table: {out / 'table.md'}; report of each run: {out}/<env>/<recipe>-<seed>/report.html",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )


# ---------------------------------------------------------------------- work in processes


@dataclass(frozen=True)
class _Job:
    name: str
    call: tuple[object, ...]


def _work(study: Study, out: Path, jobs: Sequence[_Job], workers: int, console: Console) -> list[str]:
    """Do all jobs; the reasons of those that failed."""
    failures: list[str] = []
    pool = ProcessPoolExecutor(
        min(workers, len(jobs)),
        mp_context=get_context("spawn"),
        initializer=init_worker,
        initargs=(out / "log.txt",),
    )
    with _one_thread(), pool:
        futures: dict[Future[None], _Job] = {pool.submit(*job.call): job for job in jobs}  # type: ignore[arg-type]
        view = _View(study, out, [job.name for job in jobs], console)
        try:
            with view:
                waiting = set(futures)
                while waiting:
                    done, waiting = wait(waiting, timeout=1.0)
                    for future in done:
                        error = future.exception()
                        if error is not None:
                            said = (
                                f"a process died, see {out / 'log.txt'}"
                                if isinstance(error, BrokenProcessPool)
                                else str(error)
                            )
                            failures.append(f"{futures[future].name}: {said or type(error).__name__}")
                        view.ended(futures[future].name, error is None)
                    # The pool calls one more than it has processes for "running".
                    view.show([job.name for future, job in futures.items() if future in waiting][:workers])
        except BaseException:
            processes = list(pool._processes.values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
            raise
    return failures


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes started within it hold numerical libraries to one thread: more would only wait for each other."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM")
    before = {name: os.environ.get(name) for name in names}
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _View:
    """Success over the updates of the trials under way, one curve each, and how much is done."""

    def __init__(self, study: Study, out: Path, names: Sequence[str], console: Console) -> None:
        self._study, self._out, self._total, self._console = study, out, len(names), console
        self._done = 0
        self._begun = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> _View:
        if self._console.is_terminal:
            self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._console.is_terminal:
            self._live.__exit__(*exception)  # type: ignore[arg-type]
        else:  # a log cannot be redrawn, and gets the last picture
            self._console.print(self._curves([]))

    def ended(self, name: str, well: bool) -> None:
        """Note that a job is over."""
        self._done += 1
        if not self._console.is_terminal:
            minutes = (time.monotonic() - self._begun) / 60
            said = "done" if well else "failed"
            self._console.print(
                f"{minutes:5.1f} min  {self._done} of {self._total}: {name} {said}", highlight=False, markup=False
            )

    def show(self, running: Sequence[str]) -> None:
        """Draw anew."""
        if not self._console.is_terminal:
            return
        minutes = (time.monotonic() - self._begun) / 60
        line = f"{self._done} of {self._total} done after {minutes:.1f} min; now: {'; '.join(running) or 'none'}"
        self._live.update(Group(self._curves(running), Text(line, style="dim")), refresh=True)

    def _curves(self, running: Sequence[str]) -> Text:
        trials = list(self._study.trials())
        shown = [t for t in trials if t.name in running]
        if not shown:  # between two trials, and at the end: the last that ran
            begun = [t for t in trials if (self._out / t.folder / "metrics.jsonl").exists()]
            shown = begun[-len(self._study.envs) :]
        series, end = [], 1
        for trial, style in zip(shown, STYLES, strict=False):
            history = read_jsonl(self._out / trial.folder / "metrics.jsonl", damaged="skip")
            end = max(end, self._study.recipe(trial.recipe).optimization.updates)
            points = [(m["update"], m["success"]) for m in history if "success" in m]
            held = [(m["update"], m["validation/success"]) for m in history if "validation/success" in m]
            name = trial.env if len(self._study.recipes) == 1 else f"{trial.recipe} on {trial.env}"
            series.append(Series(name, running_mean(points, 5), style))
            series.append(Series("held out" if trial is shown[-1] else "", held, f"bold {style}", "marks"))
        width = min(self._console.width, 100)
        return plot(series, end=end, width=width, height=16, form=_percent, top=1.0)


def _percent(value: float) -> str:
    return f"{value:.0%}"


__all__ = ["run_study"]
