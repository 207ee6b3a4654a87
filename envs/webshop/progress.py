"""A progress bar for the first load of a large catalogue, on terminals only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

PATIENCE = 2.0
"""Seconds before a bar appears; most loads are over by then."""


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int], None]]:
    """A function to call with the number of things done; draws on standard error if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    start = time.monotonic()
    bars: list[Any] = []
    with ExitStack() as stack:

        def show(done: int) -> None:
            if not bars and time.monotonic() - start > PATIENCE:
                from rich.console import Console
                from rich.progress import (
                    MofNCompleteColumn,
                    Progress,
                    SpinnerColumn,
                    TextColumn,
                    TimeElapsedColumn,
                )

                columns = (SpinnerColumn(), TextColumn(what), MofNCompleteColumn(), TimeElapsedColumn())
                bar = Progress(*columns, console=Console(stderr=True), transient=True)
                bars.append((stack.enter_context(bar), bar.add_task(what, total=None)))
            if bars:
                bar, task = bars[0]
                bar.update(task, completed=done)

        yield show
