"""One worker process of this machine: the parent's end of it, and what it executes."""

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
from contextlib import suppress
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, Literal, TextIO

from ...agents.base import Stop
from ...agents.deadline import SharedDeadline, share_deadline
from ...agents.execution import MAX_TRACE
from ...envs.errors import ConfigurationError
from ...envs.user_code import describe_error, describe_failure
from ..planning import PlannedEpisode
from .interface import cached_env, play_episode

GRACE = 5.0
"""Seconds beyond the time limit of an episode or a step, after which a worker that did not end it is killed."""

_DUMP_SECONDS = 5.0
"""Seconds that a worker that hangs in a step has to begin writing its stack."""

_DUMPS_ON_SIGNAL = hasattr(signal, "SIGUSR1")
"""True if a worker that hangs in a step writes its stack on a signal, which Windows does not have."""

_AHEAD = 8
"""Episodes that a quick worker holds, the one in progress included, so that it does not wait for the next."""

_QUICK = 0.02
"""Seconds that an episode of a quick worker takes at most."""

_PIPE_BYTES = 32_768
"""Bytes of episodes in a worker's pipe at most; more could block this process while the worker is blocked."""

READY, OPENS, STARTED = "ready", "opens", "started"
"""Messages of a worker process: it has started; it opens the environment of an episode with a time limit, and then
begins that episode."""

StartMethod = Literal["spawn", "fork"]


class WorkerProcess:
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
    pipe.send_bytes(pickle.dumps(READY))
    while True:
        try:
            request = pipe.recv_bytes()
        except EOFError:
            return
        try:
            planned, limits = pickle.loads(request)
        except Exception as error:  # Of a class of a notebook or a prompt, which this process cannot import.
            reason = f"the agent cannot be loaded in worker processes ({describe_error(error)})"
            fix = "play with --workers 1, or define its class in a module."
            pipe.send_bytes(pickle.dumps(ConfigurationError(f"{reason}; {fix}")))
            continue
        try:
            if limits.episode is not None:
                pipe.send_bytes(pickle.dumps(OPENS))
            cached_env(planned.entry)
            if limits.episode is not None:
                pipe.send_bytes(pickle.dumps(STARTED))
                faulthandler.dump_traceback_later(limits.episode + GRACE / 2, file=trace)
            message: Any = play_episode(planned, limits)
        except (Stop, ConfigurationError) as error:
            message = error
        except Exception as error:
            message = Stop(describe_failure(f"the episode of task {planned.key.task!r}", error))
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
