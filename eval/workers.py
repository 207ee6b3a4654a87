"""Workers that play episodes in other processes: on this machine, or on a Ray cluster.

A worker may hang, crash or be killed. An episode whose worker dies is played once more with no other worker beside
it, so that it has all memory; if that worker dies, too, the episode is recorded with an error.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing import connection, get_context, parent_process
from typing import Any, NamedTuple, Protocol

from ..agents.base import Stop
from ..agents.episode import Episode
from ..agents.play import Job, play
from ..envs.core import TextEnv
from ..envs.errors import ConfigurationError
from ..envs.extras import missing_extra
from .planning import PlannedEpisode
from .store import EncodedEpisode, EpisodeKey, encode_episode
from .suite import Entry

GRACE = 5.0
"""Seconds beyond the time limit of an episode, after which a worker that did not end it is killed."""

_AHEAD = 8
"""Episodes that a quick worker holds, the one in progress included, so that it does not wait for the next."""

_QUICK = 0.02
"""Seconds that an episode of a quick worker takes at most."""

_PIPE_BYTES = 32_768
"""Bytes of episodes in a worker's pipe at most; more could block this process while the worker is blocked."""

_READY, _STARTED = "ready", "started"
"""Messages of a worker process: it has started; it begins an episode with a time limit."""


class FinishedEpisode(NamedTuple):
    """A played episode and its encoding. Workers return it without turns, which the encoding contains."""

    key: EpisodeKey
    encoded: EncodedEpisode
    episode: Episode


class Workers(Protocol):
    """Processes that play episodes."""

    def play(
        self, planned: Iterable[PlannedEpisode], time_limit: float | None, in_flight: int, /
    ) -> Iterator[FinishedEpisode]:
        """Play episodes, and yield them as they end."""
        ...


def play_episode(planned: PlannedEpisode, time_limit: float | None) -> FinishedEpisode:
    """Play one episode in a worker process, which keeps its environments for later episodes."""
    env = _cached_env(planned.entry)
    job = Job(planned.key.task, planned.seed)
    (episode,) = play(planned.agent, [env], [job], max_turns=planned.entry.max_turns, time_limit=time_limit)
    if episode.error is not None:
        _envs.clear()  # An environment that failed or was interrupted may be broken.
    encoded = encode_episode(planned.key, episode)
    episode.turns = []  # The encoding contains them, so they need not be transferred twice.
    episode.exchanges = []
    return FinishedEpisode(planned.key, encoded, episode)


_envs: dict[str, TextEnv[Any]] = {}


def _cached_env(entry: Entry) -> TextEnv[Any]:
    identity = repr(entry)
    if identity not in _envs:
        _envs[identity] = entry.make()
    return _envs[identity]


def _failed(planned: PlannedEpisode, error: str) -> FinishedEpisode:
    """Return the record of an episode that never came back from its worker."""
    key = planned.key
    episode = Episode(planned.entry.env, key.task, planned.seed, key.agent, error=error)
    return FinishedEpisode(key, encode_episode(key, episode), episode)


# ---------------------------------------------------------------------- processes of this machine


class _Process:
    """A worker process, and the episodes that it holds.

    Attributes:
        held: Episodes sent to the worker, in the order in which it plays them.
        is_ready: True once the process has started.
        is_quick: True if its last episode was so short that the way to the next one would cost time.
        deadline: `time.monotonic()` at which the process is killed; infinite without a time limit.
    """

    def __init__(self) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,))
        self.process.start()
        theirs.close()
        self.held: deque[PlannedEpisode] = deque()
        self.is_ready = self.is_quick = False
        self.deadline = math.inf
        self._last = 0.0

    def has_room(self, size: int) -> bool:
        """Return True if the process can take an episode of `size` bytes."""
        return not self.held or (self.is_quick and len(self.held) < _AHEAD and size * _AHEAD <= _PIPE_BYTES)

    def send(self, planned: PlannedEpisode, message: bytes) -> None:
        """Send an episode to the process; if it has died, the pipe's end tells so later."""
        if not self.held:
            self._last = time.monotonic()
        self.held.append(planned)
        with suppress(OSError):
            self.pipe.send_bytes(message)

    def receive(self) -> Any:
        """Return the next message of the process.

        Raises:
            EOFError: It has died.
        """
        try:
            if not self.pipe.poll():
                raise EOFError
            return pickle.loads(self.pipe.recv_bytes())
        except OSError:
            raise EOFError from None

    def finish(self) -> None:
        """Remove the first episode, which has ended."""
        now = time.monotonic()
        self.held.popleft()
        self.deadline = math.inf
        self.is_quick = now - self._last < _QUICK
        self._last = now

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def cause_of_death(self) -> str:
        """Return the signal or the exit status that ended the process."""
        self.process.join()
        code = self.process.exitcode or 0
        if code >= 0:
            return f"exit status {code}"
        hint = ", as when memory runs out" if -code == signal.SIGKILL else ""
        return f"{signal.Signals(-code).name}{hint}"


class LocalWorkers:
    """Pool of processes on this machine, each with its own queue, so that a death concerns one episode only.

    Args:
        count: Maximum number of processes; they are started when there is work.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._processes: list[_Process] = []
        self._suspects: list[tuple[PlannedEpisode, str]] = []

    def play(
        self, planned: Iterable[PlannedEpisode], time_limit: float | None, in_flight: int, /
    ) -> Iterator[FinishedEpisode]:
        """Play episodes, and yield them as they end.

        Args:
            planned: The episodes.
            time_limit: Wall time of an episode in seconds; None for no limit.
            in_flight: Not used; every process plays one episode at a time.

        Raises:
            ConfigurationError: Worker processes cannot start, or the agent cannot be sent to them.
            Stop: The agent failed in a worker.
        """
        yield from self._play(deque(planned), self._count, time_limit)
        suspects, self._suspects = self._suspects, []
        for one, _ in suspects:
            self.close()
            yield from self._play(deque([one]), 1, time_limit)
            if self._suspects:
                _, cause = self._suspects.pop()
                yield _failed(one, f"the episode ended its worker process twice ({cause})")

    def close(self) -> None:
        """Kill the processes."""
        for process in self._processes:
            process.process.kill()  # all at once, before waiting for any
        for process in self._processes:
            process.kill()
        self._processes.clear()

    def _play(
        self, waiting: deque[PlannedEpisode], count: int, time_limit: float | None
    ) -> Iterator[FinishedEpisode]:
        while waiting or any(process.held for process in self._processes):
            self._hand_out(waiting, count, time_limit)
            for process in self._wait():
                yield from self._receive(process, waiting, time_limit)
            for process in [one for one in self._processes if time.monotonic() >= one.deadline]:
                yield _failed(
                    process.held.popleft(),
                    f"the time limit of {time_limit:g} s per episode expired; its worker process was killed",
                )
                self._remove(process, waiting)

    def _hand_out(self, waiting: deque[PlannedEpisode], count: int, time_limit: float | None) -> None:
        """Send waiting episodes to processes with room, which are started as needed."""
        while waiting:
            message = _encode(waiting[0], time_limit)
            free = [process for process in self._processes if process.has_room(len(message))]
            if all(process.held for process in self._processes) and len(self._processes) < count:
                free = [_Process()]
                self._processes += free
            if not free:
                return
            min(free, key=lambda process: len(process.held)).send(waiting.popleft(), message)

    def _wait(self) -> list[_Process]:
        """Wait for messages and deaths until the next deadline, and return the processes concerned."""
        by_handle: dict[Any, _Process] = {}
        for process in self._processes:
            by_handle |= {process.pipe: process, process.process.sentinel: process}
        next_deadline = min((process.deadline for process in self._processes), default=math.inf)
        timeout = None if next_deadline == math.inf else max(0.0, next_deadline - time.monotonic())
        ready = connection.wait(by_handle, timeout)
        return list({id(by_handle[handle]): by_handle[handle] for handle in ready}.values())

    def _receive(
        self, process: _Process, waiting: deque[PlannedEpisode], time_limit: float | None
    ) -> Iterator[FinishedEpisode]:
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
                self._suspects.append((process.held.popleft(), cause))
            self._remove(process, waiting)
            return
        if isinstance(message, Exception):
            raise message
        if isinstance(message, FinishedEpisode):
            process.finish()
            yield message
        elif message == _STARTED and time_limit is not None:
            process.deadline = time.monotonic() + time_limit + GRACE
        else:
            process.is_ready = True

    def _remove(self, process: _Process, waiting: deque[PlannedEpisode]) -> None:
        """Kill a process, and return the episodes that it had not begun to the queue."""
        waiting.extendleft(reversed(process.held))
        self._processes.remove(process)
        process.kill()


def _encode(planned: PlannedEpisode, time_limit: float | None) -> bytes:
    try:
        return pickle.dumps((planned, time_limit))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"agent {planned.key.agent!r} cannot be sent to worker processes ({error}); play with --workers 1."
        ) from None


def _serve(pipe: connection.Connection) -> None:
    """Play the episodes that arrive in a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent handles Ctrl-C.
    _exit_after_parent()
    pipe.send_bytes(pickle.dumps(_READY))
    while True:
        try:
            planned, time_limit = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            _cached_env(planned.entry)
            if time_limit is not None:
                pipe.send_bytes(pickle.dumps(_STARTED))
            message: Any = play_episode(planned, time_limit)
        except (Stop, ConfigurationError) as error:
            message = error
        except Exception as error:
            message = Stop(f"the episode of task {planned.key.task!r} failed: {type(error).__name__}: {error}")
        pipe.send_bytes(pickle.dumps(message))


def _exit_after_parent() -> None:
    """Exit when the parent dies, even if it is killed in the middle of an episode."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def local_workers(count: int) -> Iterator[Workers]:
    """Context with up to `count` processes on this machine, which are killed at its end."""
    workers = LocalWorkers(count)
    try:
        yield workers
    finally:
        workers.close()


# ---------------------------------------------------------------------- a Ray cluster


@contextmanager
def ray_workers(address: str) -> Iterator[Workers]:
    """Context with the workers of a Ray cluster. Requires the extra `ray`.

    Ray itself repeats an episode once whose worker died. The time limit interrupts Python code only.

    Args:
        address: Address for `ray.init`: "auto", "local", or host and port.

    Raises:
        ConfigurationError: Ray is not installed, or there is no cluster at the address.
    """
    try:
        import ray
        from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError
    except ImportError as error:
        raise missing_extra("--ray", "ray", error) from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError) as error:
        raise ConfigurationError(f"no Ray cluster at {address!r} ({error}).") from None
    remote = ray.remote(max_retries=1)(play_episode)

    class Cluster:
        def play(
            self, planned: Iterable[PlannedEpisode], time_limit: float | None, in_flight: int, /
        ) -> Iterator[FinishedEpisode]:
            waiting = iter(planned)
            pending: dict[Future[FinishedEpisode], PlannedEpisode] = {}
            while True:
                for one in islice(waiting, in_flight - len(pending)):
                    pending[remote.remote(one, time_limit).future()] = one
                if not pending:
                    return
                ready, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in ready:
                    one = pending.pop(future)
                    try:
                        yield future.result()
                    except (WorkerCrashedError, OutOfMemoryError, NodeDiedError) as error:
                        yield _failed(one, f"the episode ended its worker process twice ({error})")

    try:
        yield Cluster()
    finally:
        ray.shutdown()
