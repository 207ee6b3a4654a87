"""Displays of a running study."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ...envs.files import read_jsonl
from ..checkpoints.run_folder import METRICS_FILE
from ..reporting.terminal_plot import Series, plot, running_mean
from .definition import Study

_STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")

_LOG_PAUSE = 60.0
"""Seconds after which a line in a log says again what is running."""


class StatusProgress:
    """Number of finished work items, and which are running.

    A log cannot be redrawn: there, each finished item is one line, and every minute one says what is running.

    Args:
        total: Number of work items.
        console: Console to print to.
    """

    def __init__(self, total: int, console: Console) -> None:
        self._total, self._console = total, console
        self._finished = 0
        self._start = self._shown = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._console.is_terminal:
            self._live.__exit__(*exception)  # type: ignore[arg-type]

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
        """Redraw what is running.

        Args:
            running: Names of the running work items.
        """
        now = time.monotonic()
        if not self._console.is_terminal and now - self._shown < _LOG_PAUSE:
            return
        self._shown = now
        line = f"{self._finished} of {self._total} done after {self._minutes():.1f} min; running: "
        line += "; ".join(running) or "none"
        if not self._console.is_terminal:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
            return
        self._live.update(self._render(running, Text(line, style="dim")), refresh=True)

    def _minutes(self) -> float:
        return (time.monotonic() - self._start) / 60

    def _render(self, running: Sequence[str], line: Text) -> RenderableType:
        """Return what a terminal shows."""
        return line


class StudyProgress(StatusProgress):
    """Live plot of success over updates, one curve per running trial, above the number of finished work items.

    In a log, the plot follows at the end.

    Args:
        study: Study that runs.
        out: Folder of the study.
        total: Number of work items.
        console: Console to print to.
    """

    def __init__(self, study: Study, out: Path, total: int, console: Console) -> None:
        super().__init__(total, console)
        self._study, self._out = study, out

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        if self._finished and not self._console.is_terminal:
            self._console.print(self._plot([]))

    def _render(self, running: Sequence[str], line: Text) -> RenderableType:
        return Group(self._plot(running), line)

    def _plot(self, running: Sequence[str]) -> Text:
        """Plot the running trials; without any, the last ones that ran."""
        trials = list(self._study.trials())
        shown = [trial for trial in trials if trial.name in running]
        if not shown:
            started = [trial for trial in trials if (self._out / trial.folder / METRICS_FILE).exists()]
            shown = started[-len(self._study.envs) :]
        series, updates = [], 1
        for trial, style, letter in zip(shown, _STYLES, ascii_uppercase, strict=False):
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
            series.append(Series(label, running_mean(training, 5), style, letter=letter))
            series.append(Series("held out" if trial is shown[-1] else "", held_out, f"bold {style}", "marks"))
        return plot(
            series,
            x_max=updates,
            y_max=1.0,
            width=min(self._console.width, 100),
            height=16,
            format_value=lambda value: f"{value:.0%}",
        )
