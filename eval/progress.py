"""Progress of a run in progress: a bar in a terminal, and lines on standard error anywhere else."""

from __future__ import annotations

import threading
import time
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from ..envs.terminal import Terminal
from .runner import Progress


class RunDisplay:
    """Progress bar of a run; in a pipe or a file, which cannot be redrawn, a line on standard error at times.

    Args:
        name: Name of the suite.
        console: Console of the results; decides between the bar and the lines.
        quiet: Show neither.
    """

    PAUSE = 30.0
    """Seconds between the lines."""

    def __init__(self, name: str, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._in_log = not quiet and not console.is_terminal
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[rates]}", markup=False),
            TextColumn("{task.fields[failed]}", style="red", markup=False),
            console=console,
            transient=True,
            disable=quiet or self._in_log,
        )
        self._task = self._bar.add_task(name, total=None, rates="", failed="")
        self._start = time.monotonic()
        self._counts = ""  # Written by the thread of the run, and read by the logger's.
        self._closed = threading.Event()
        self._logger = threading.Thread(target=self._log, daemon=True)

    def __enter__(self) -> RunDisplay:
        self._bar.__enter__()
        if self._in_log:
            self._logger.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._closed.set()
        if self._in_log:
            self._logger.join()
        self._bar.__exit__(*exception)

    def show(self, progress: Progress) -> None:
        """Show the progress of the run; the first time with what was found in its folder."""
        if not self._counts:
            for sentence in progress.repairs:
                self._console.print(f"[yellow]Repaired:[/] {escape(sentence)}")
            if progress.done:
                self._console.print(f"{progress.done} of {progress.total} episodes are already stored.")
            self._bar.reset(self._task, total=progress.total)
        completed = progress.done + progress.failed
        rates = [f"{name} {100 * progress.successes[name] / n:.0f}%" for name, n in progress.played.items() if n]
        if progress.tokens:
            rates.append(f"{progress.tokens / (time.monotonic() - self._start):.0f} tokens/s")
        tokens = [f"{progress.tokens:,} sampled tokens"] if progress.tokens else []
        cost = [f"${progress.cost:.2f}"] if progress.cost else []
        failed = [f"{progress.failed} broke off"] if progress.failed else []
        self._bar.update(self._task, completed=completed, rates="  ".join([*rates, *cost]), failed="".join(failed))
        # Without rates of success: short episodes end first, and in a log that would be read as a result.
        self._counts = ", ".join([f"{completed} of {progress.total} episodes", *tokens, *cost, *failed])

    def _log(self) -> None:
        """Print a line after every pause; runs in a thread, since an episode may take longer than a pause."""
        log = Terminal(stderr=True, highlight=False)
        while not self._closed.wait(self.PAUSE):
            minutes = (time.monotonic() - self._start) / 60
            log.print(f"{minutes:5.1f} min  {self._counts or 'starting'}", markup=False, soft_wrap=True)
