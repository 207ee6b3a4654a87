"""Progress bars on the terminal for work that reports `(stage, done, total)`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

Progress = Callable[[str, int, int | None], None]
"""Function of a stage's name, the number of items done and the total number of items (None if unknown)."""


@contextmanager
def progress_bar(*, delay: float = 0.0, transient: bool = False) -> Iterator[Progress]:
    """Context that draws one bar per stage on standard error, and yields the function to report progress to.

    Args:
        delay: Seconds before the first bar appears, so that short work draws none.
        transient: Remove the bars at the end, and draw none if standard error is not a terminal.
    """
    if transient and not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return
    start = time.monotonic()
    bars: Bars | None = None
    stages: dict[str, TaskID] = {}
    with ExitStack() as stack:

        def report(stage: str, done: int, total: int | None) -> None:
            nonlocal bars
            if bars is None:
                if time.monotonic() - start < delay:
                    return
                bars = stack.enter_context(_make_bars(transient))
            if stage not in stages:
                stages[stage] = bars.add_task(stage, total=total)
            bars.update(stages[stage], completed=done, total=total)

        yield report


def _make_bars(transient: bool) -> Bars:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..terminal import Terminal

    name = TextColumn("{task.description:>8}", markup=False)
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Terminal(stderr=True), transient=transient)
