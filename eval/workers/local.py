"""Workers that play episodes in other processes of this machine.

A worker may hang, crash or be killed. An episode whose worker dies is played once more with no other worker beside
it, so that it has all memory; if that worker dies, too, the episode is recorded with an error.
"""

from __future__ import annotations

import math
import pickle
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from multiprocessing import connection, get_context
from typing import Any

from ...agents.play import TimeLimits
from ...envs.errors import ConfigurationError
from ..planning import PlannedEpisode
from .interface import FinishedEpisode, Workers, failed_episode
from .process import GRACE, OPENS, STARTED, StartMethod, WorkerProcess

OPENING = 600.0
"""Seconds that a worker may take to open an environment in a run with a time limit, after which it is killed."""

_CHECK_SECONDS = 1.0
"""Seconds between checks of the deadlines of steps, in a run with a limit on them."""


class _Waiting:
    """Queue of the episodes that no process holds; they are taken from their source as processes need them.

    Args:
        planned: The episodes. A deque is the queue itself, to which others may append.
    """

    def __init__(self, planned: Iterable[PlannedEpisode]) -> None:
        self._next: deque[PlannedEpisode] = planned if isinstance(planned, deque) else deque()
        self._source = iter(() if planned is self._next else planned)

    def first(self) -> PlannedEpisode | None:
        """Return the first episode without taking it; None if there is none."""
        if not self._next:
            self._next.extend(islice(self._source, 1))
        return self._next[0] if self._next else None

    def take(self) -> PlannedEpisode:
        """Take the first episode, which `first` has returned."""
        return self._next.popleft()

    def give_back(self, planned: Iterable[PlannedEpisode]) -> None:
        """Put episodes back before all others, in their order."""
        self._next.extendleft(reversed(list(planned)))


class LocalWorkers:
    """Pool of processes on this machine, each with its own queue, so that a death concerns one episode only.

    Args:
        count: Maximum number of processes; they are started when there is work.
        start_method: Way to start them: "spawn" starts an interpreter, "fork" copies this process with the
            environments that it has opened.
    """

    def __init__(self, count: int, start_method: StartMethod = "spawn") -> None:
        self._count, self._start_method = count, start_method
        self._wake_up, self._woken = get_context(start_method).Pipe()
        self._processes: list[WorkerProcess] = []
        self._suspects: list[tuple[PlannedEpisode, str, str | None]] = []

    def play(
        self, planned: Iterable[PlannedEpisode], limits: TimeLimits, in_flight: int, /
    ) -> Iterator[FinishedEpisode]:
        """Play episodes, and yield them as they end.

        Args:
            planned: The episodes. A deque may be appended to while they are played, see `wake`.
            limits: Time limits of episodes.
            in_flight: Not used; every process plays one episode at a time.

        Raises:
            ConfigurationError: Worker processes cannot start, or the agent cannot be sent to them.
            Stop: The agent failed in a worker.
        """
        yield from self._play(_Waiting(planned), self._count, limits)
        suspects, self._suspects = self._suspects, []
        for one, _, _ in suspects:
            self.close()
            yield from self._play(_Waiting([one]), 1, limits)
            if self._suspects:
                _, cause, trace = self._suspects.pop()
                yield failed_episode(one, f"the episode ended its worker process twice ({cause})", trace)

    def wake(self) -> None:
        """Tell `play`, which runs in another thread, that there are more episodes."""
        self._wake_up.send_bytes(b"")

    def close(self) -> None:
        """Kill the processes."""
        for process in self._processes:
            process.process.kill()  # all at once, before waiting for any
        for process in self._processes:
            process.kill()
        self._processes.clear()

    def _play(self, waiting: _Waiting, count: int, limits: TimeLimits) -> Iterator[FinishedEpisode]:
        while waiting.first() or any(process.held for process in self._processes):
            self._hand_out(waiting, count, limits)
            for process in self._wait(math.inf if limits.step is None else _CHECK_SECONDS):
                yield from self._receive(process, waiting, limits)
            if limits.step is not None:
                yield from self._end_hung_steps(waiting, limits.step)
            for process in [one for one in self._processes if time.monotonic() >= one.deadline]:
                yield failed_episode(
                    process.held.popleft(),
                    f"the time limit of {limits.episode:g} s per episode expired; its worker process was killed",
                    process.trace(),
                )
                self._remove(process, waiting)

    def _end_hung_steps(self, waiting: _Waiting, limit: float) -> Iterator[FinishedEpisode]:
        """Kill the processes that hang in a step, and yield the records of its episodes."""
        for process in [one for one in self._processes if one.held and one.hangs_in_step()]:
            process.dump_stack()
            if not process.hangs_in_step():
                continue  # The signal interrupted the step after all.
            yield failed_episode(
                process.held.popleft(),
                f"the time limit of {limit:g} s per step of the environment expired; its worker process was"
                " killed",
                process.trace(),
            )
            self._remove(process, waiting)

    def _hand_out(self, waiting: _Waiting, count: int, limits: TimeLimits) -> None:
        """Send waiting episodes to processes with room, which are started as needed."""
        while (planned := waiting.first()) is not None:
            message = _encode(planned, limits)
            free = [process for process in self._processes if process.has_room(len(message))]
            if all(process.held for process in self._processes) and len(self._processes) < count:
                free = [WorkerProcess(self._start_method)]
                self._processes += free
            if not free:
                return
            min(free, key=lambda process: len(process.held)).send(waiting.take(), message)

    def _wait(self, longest: float) -> list[WorkerProcess]:
        """Wait for messages and deaths until the next deadline, and return the processes concerned.

        Args:
            longest: Seconds to wait at most.
        """
        by_handle: dict[Any, WorkerProcess | None] = {self._woken: None}
        for process in self._processes:
            by_handle |= {process.pipe: process, process.process.sentinel: process}
        next_deadline = min((process.deadline for process in self._processes), default=math.inf)
        timeout = None
        if min(next_deadline, longest) < math.inf:  # The system takes no more than some weeks.
            timeout = max(0.0, min(next_deadline - time.monotonic(), longest, 3600.0))
        ready = connection.wait(by_handle, timeout)
        if self._woken in ready:
            self._woken.recv_bytes()
        return list({id(found): found for handle in ready if (found := by_handle[handle]) is not None}.values())

    def _receive(self, process: WorkerProcess, waiting: _Waiting, limits: TimeLimits) -> Iterator[FinishedEpisode]:
        try:
            message = process.receive()
        except EOFError:
            cause = process.cause_of_death()
            if not process.is_ready:
                raise ConfigurationError(
                    f"worker processes cannot start ({cause}); play with --workers 1, or in a script put the call"
                    " below `if __name__ == '__main__':`."
                ) from None
            if process.held:
                self._suspects.append((process.held.popleft(), cause, process.trace()))
            self._remove(process, waiting)
            return
        if isinstance(message, Exception):
            raise message
        if isinstance(message, FinishedEpisode):
            process.finish()
            yield message
        elif message in (OPENS, STARTED) and limits.episode is not None:
            process.deadline = time.monotonic() + limits.episode + (OPENING if message == OPENS else GRACE)
        else:
            process.is_ready = True

    def _remove(self, process: WorkerProcess, waiting: _Waiting) -> None:
        """Kill a process, and return the episodes that it had not begun to the queue."""
        waiting.give_back(process.held)
        self._processes.remove(process)
        process.kill()


def _encode(planned: PlannedEpisode, limits: TimeLimits) -> bytes:
    try:
        return pickle.dumps((planned, limits))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"agent {planned.key.agent!r} cannot be sent to worker processes ({error}); play with --workers 1."
        ) from None


@contextmanager
def local_workers(count: int) -> Iterator[Workers]:
    """Context with up to `count` processes on this machine, which are killed at its end."""
    workers = LocalWorkers(count)
    try:
        yield workers
    finally:
        workers.close()
