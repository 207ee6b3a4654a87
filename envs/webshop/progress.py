"""A progress bar for the first load of a large catalogue, on terminals only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

PATIENCE = 2.0
"""Seconds before a bar appears; most loads are over by then."""

Progress = Callable[[int, float], None]
"""Called with the number of things done, and the share of the whole that is done (0 to 1)."""


@contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """A bar on standard error if that is a terminal; else a function that does nothing."""
    if not sys.stderr.isatty():
        yield lambda done, share: None
        return
    start = time.monotonic()
    bars: list[Any] = []
    with ExitStack() as stack:

        def show(done: int, share: float) -> None:
            if not bars and time.monotonic() - start > PATIENCE:
                from rich.console import Console
                from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

                columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
                bar = Progress(*columns, console=Console(stderr=True), transient=True)
                bars.append((stack.enter_context(bar), bar.add_task(what, total=1.0)))
            if bars:
                bar, task = bars[0]
                bar.update(task, completed=share, description=f"{what}: {done:,}")

        yield show
