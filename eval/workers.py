"""Workers that play episodes in other processes of this machine; `cluster` has those of a Ray cluster.

A worker may hang, crash or be killed. An episode whose worker dies is played once more with no other worker beside
it, so that it has all memory; if that worker dies, too, the episode is recorded with an error.
"""

from __future__ import annotations

import faulthandler
import math
import os
import pickle
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TextIO, runtime_checkable

from ..agents.base import Stop
from ..agents.deadline import SharedDeadline, share_deadline
from ..agents.episode import Episode
from ..agents.execution import MAX_TRACE
from ..agents.play import Job, TimeLimits, play
from ..envs.core import TextEnv
from ..envs.errors import ConfigurationError
from .agents import AgentFactory
from .planning import PlannedEpisode
from .store import EncodedEpisode, EpisodeKey, encode_episode
from .suite import Entry

GRACE = 5.0
"""Seconds beyond the time limit of an episode or a step, after which a worker that did not end it is killed."""

_CHECK_SECONDS = 1.0
"""Seconds between checks of the deadlines of steps, in a run with a limit on them."""

_DUMP_SECONDS = 5.0
"""Seconds that a worker that hangs in a step has to begin writing its stack."""

OPENING = 600.0
"""Seconds that a worker may take to open an environment in a run with a time limit, after which it is killed."""

_DUMPS_ON_SIGNAL = hasattr(signal, "SIGUSR1")
"""True if a worker that hangs in a step writes its stack on a signal, which Windows does not have."""

_AHEAD = 8
"""Episodes that a quick worker holds, the one in progress included, so that it does not wait for the next."""

_QUICK = 0.02
"""Seconds that an episode of a quick worker takes at most."""

_PIPE_BYTES = 32_768
"""Bytes of episodes in a worker's pipe at most; more could block this process while the worker is blocked."""

_READY, _OPENS, _STARTED = "ready", "opens", "started"
"""Messages of a worker process: it has started; it opens the environment of an episode with a time limit, and then
begins that episode."""


StartMethod = Literal["spawn", "fork"]


class FinishedEpisode(NamedTuple):
    """A played episode and its encoding. Workers return it without turns, which the encoding contains."""

    key: EpisodeKey
    encoded: EncodedEpisode
    episode: Episode


class Workers(Protocol):
    """Processes that play episodes."""

    def play(
        self, planned: Iterable[PlannedEpisode], limits: TimeLimits, in_flight: int, /
    ) -> Iterator[FinishedEpisode]:
        """Play episodes, and yield them as they end."""
        ...


@runtime_checkable
class ReplicatingWorkers(Workers, Protocol):
    """Workers that also play agents that must play in one process, each copy in one of its own."""

    def hosts(self, factory: AgentFactory, /) -> bool:
        """Return True if copies of the agent can play, made by `play_replicated`."""
        ...

    def play_replicated(
        self,
        factory: AgentFactory,
        planned: Iterable[PlannedEpisode],
        limits: TimeLimits,
        in_flight: int,
        /,
    ) -> Iterator[FinishedEpisode]:
        """Play episodes of such an agent, and yield them as they end."""
        ...


def play_episode(planned: PlannedEpisode, limits: TimeLimits) -> FinishedEpisode:
    """Play one episode in a worker process, which keeps its environments for later episodes."""
    env = cached_env(planned.entry)
    job = Job(planned.key.task, planned.seed)
    assert planned.agent is not None
    (episode,) = play(
        planned.agent,
        [env],
        [job],
        max_turns=planned.entry.max_turns,
        time_limit=limits.episode,
        step_time_limit=limits.step,
    )
    if episode.error is not None:
        _envs.clear()  # An environment that failed or was interrupted may be broken.
    encoded = encode_episode(planned.key, episode)
    episode.turns = []  # The encoding contains them, so they need not be transferred twice.
    episode.exchanges = []
    return FinishedEpisode(planned.key, encoded, episode)


_envs: dict[str, TextEnv[Any]] = {}


def cached_env(entry: Entry) -> TextEnv[Any]:
    """Return the environment of an entry, which the first call in this process opens."""
    identity = repr(entry)
    if identity not in _envs:
        _envs[identity] = entry.make()
    return _envs[identity]


def failed_episode(planned: PlannedEpisode, error: str, trace: str | None = None) -> FinishedEpisode:
    """Return the record of an episode that never came back from its worker."""
    key = planned.key
    episode = Episode(planned.entry.env, key.task, planned.seed, key.agent, error=error, trace=trace)
    return FinishedEpisode(key, encode_episode(key, episode), episode)


# ---------------------------------------------------------------------- processes of this machine


class _Process:
    """A worker process, and the episodes that it holds.

    Attributes:
        held: Episodes sent to the worker, in the order in which it plays them.
        is_ready: True once the process has started.
        is_quick: True if its last episode was so short that the way to the next one would cost time.
        deadline: `time.monotonic()` at which the process is killed; infinite without a time limit of episodes.
    """

    def __init__(self, start_method: StartMethod) -> None:
        context: Any = get_context(start_method)
        self.pipe, theirs = context.Pipe()
        # The stack of a worker that crashes or hangs is written here, by a thread that needs no Python.
        handle, name = tempfile.mkstemp(prefix="arboretum-trace-")
        os.close(handle)
        self._trace = Path(name)
        self._call_deadline = context.RawValue("d", math.inf)
        self.process = context.Process(target=_serve, args=(theirs, name, self._call_deadline))
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

    def hangs_in_step(self) -> bool:
        """Return True if a step has exceeded its time limit by `GRACE`, which no signal interrupts."""
        # Without a message that waits, the first episode held is the one in progress.
        return time.perf_counter() >= self._call_deadline.value + GRACE and not self.pipe.poll()

    def dump_stack(self) -> None:
        """Have the process write its stack to the file that `trace` reads, where the platform can."""
        if _DUMPS_ON_SIGNAL and self.process.pid is not None:
            with suppress(OSError):
                os.kill(self.process.pid, signal.SIGUSR1)
            end = time.monotonic() + _DUMP_SECONDS
            while not self._trace.stat().st_size and time.monotonic() < end and self.process.is_alive():
                time.sleep(0.05)
            self.process.join(0.1)  # For the rest of the stack.

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self._trace.unlink(missing_ok=True)

    def trace(self) -> str | None:
        """Return the stack at which the process crashed or hung; None if there is none."""
        text = self._trace.read_text(encoding="utf-8", errors="replace").strip()
        return text[:MAX_TRACE] or None

    def cause_of_death(self) -> str:
        """Return the signal or the exit status that ended the process."""
        self.process.join()
        code = self.process.exitcode or 0
        if code >= 0:
            return f"exit status {code}"
        name = signal.Signals(-code).name
        return f"{name}, as when memory runs out" if name == "SIGKILL" else name


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
        self._processes: list[_Process] = []
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
                free = [_Process(self._start_method)]
                self._processes += free
            if not free:
                return
            min(free, key=lambda process: len(process.held)).send(waiting.take(), message)

    def _wait(self, longest: float) -> list[_Process]:
        """Wait for messages and deaths until the next deadline, and return the processes concerned.

        Args:
            longest: Seconds to wait at most.
        """
        by_handle: dict[Any, _Process | None] = {self._woken: None}
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

    def _receive(self, process: _Process, waiting: _Waiting, limits: TimeLimits) -> Iterator[FinishedEpisode]:
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
        elif message in (_OPENS, _STARTED) and limits.episode is not None:
            process.deadline = time.monotonic() + limits.episode + (OPENING if message == _OPENS else GRACE)
        else:
            process.is_ready = True

    def _remove(self, process: _Process, waiting: _Waiting) -> None:
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


def _serve(pipe: connection.Connection, trace: str, deadline: SharedDeadline) -> None:
    """Play the episodes that arrive in a worker process.

    Args:
        pipe: Connection to the parent.
        trace: File for the stack of an episode that crashes or hangs.
        deadline: Place for the deadline of the call in progress, which the parent checks.
    """
    share_deadline(deadline)
    with open(trace, "w", encoding="utf-8") as file:
        faulthandler.enable(file)
        if _DUMPS_ON_SIGNAL:
            faulthandler.register(signal.SIGUSR1, file)
        _exit_after_parent(Path(trace))
        _serve_episodes(pipe, file)


def _serve_episodes(pipe: connection.Connection, trace: TextIO) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent handles Ctrl-C.
    pipe.send_bytes(pickle.dumps(_READY))
    while True:
        try:
            request = pipe.recv_bytes()
        except EOFError:
            return
        try:
            planned, limits = pickle.loads(request)
        except Exception as error:  # Of a class of a notebook or a prompt, which this process cannot import.
            reason = f"the agent cannot be loaded in worker processes ({type(error).__name__}: {error})"
            fix = "play with --workers 1, or define its class in a module."
            pipe.send_bytes(pickle.dumps(ConfigurationError(f"{reason}; {fix}")))
            continue
        try:
            if limits.episode is not None:
                pipe.send_bytes(pickle.dumps(_OPENS))
            cached_env(planned.entry)
            if limits.episode is not None:
                pipe.send_bytes(pickle.dumps(_STARTED))
                faulthandler.dump_traceback_later(limits.episode + GRACE / 2, file=trace)
            message: Any = play_episode(planned, limits)
        except (Stop, ConfigurationError) as error:
            message = error
        except Exception as error:
            message = Stop(f"the episode of task {planned.key.task!r} failed: {type(error).__name__}: {error}")
        if limits.episode is not None:
            faulthandler.cancel_dump_traceback_later()
        if os.fstat(trace.fileno()).st_size:  # The episode has ended late, but it has ended.
            os.ftruncate(trace.fileno(), 0)
            os.lseek(trace.fileno(), 0, os.SEEK_SET)
        pipe.send_bytes(pickle.dumps(message))


def _exit_after_parent(trace: Path) -> None:
    """Delete a file and exit when the parent dies, even if it is killed in the middle of an episode."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        with suppress(OSError):  # Windows deletes no open file.
            trace.unlink()
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
