"""Worker processes of a study, each with one thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

from ..sampling.worker import init_worker

LOG_FILE = "log.txt"
_THREAD_LIMITS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


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


class Progress(Protocol):
    """Display of the work in progress."""

    def finish(self, name: str, failure: str | None) -> None:
        """Count a work item as finished.

        Args:
            name: Name of the work item.
            failure: Why it failed; None if it did not.
        """

    def show(self, running: Sequence[str]) -> None:
        """Show what is running.

        Args:
            running: Names of the running work items.
        """


def run_phase(work: Sequence[WorkItem], out: Path, workers: int, progress: Progress) -> list[str]:
    """Do some work in worker processes of its own: a process that dies breaks its pool for good.

    Args:
        work: Work without an order among its items.
        out: Folder of the study, which receives the processes' log.
        workers: Number of processes.
        progress: Receives what is running and what is finished.

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
def single_threaded_workers() -> Iterator[None]:
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
