"""Interruption of an environment that exceeds the time limit of its episode."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

_LEAST = 1e-3
"""Shortest delay of a timer in seconds; zero would disarm it."""
_AGAIN = 1.0
"""Seconds after which `Expired` is raised again, in case a `__del__` or an `except BaseException` swallowed it."""


class SharedDeadline(Protocol):
    """A number in memory that processes share, such as `multiprocessing.RawValue("d")`."""

    value: float


_shared: SharedDeadline | None = None


def share_deadline(shared: SharedDeadline) -> None:
    """Keep the deadline of the block in progress in shared memory; infinity where there is none.

    Another process can then end this one where `expires_after` cannot interrupt compiled code.

    Args:
        shared: Place of the deadline, a time of `time.perf_counter()`.
    """
    global _shared
    _shared = shared
    shared.value = math.inf


class Expired(BaseException):
    """The time limit has expired. No `except Exception` of an environment catches it."""


@contextmanager
def expires_after(deadline: float) -> Iterator[None]:
    """Context that raises `Expired` once `time.perf_counter()` has passed the deadline.

    A timer signal interrupts Python code, sleeps and waits for sockets and locks, every second until the block
    ends. It cannot interrupt compiled code before that returns, and it needs a POSIX system and the main thread;
    elsewhere `Expired` is raised only at the end. A timer that was armed before is armed again at the end with the
    time that it has left.

    Args:
        deadline: Time of `time.perf_counter()`; infinity for no limit.
    """
    if deadline == math.inf:
        yield
    elif threading.current_thread() is threading.main_thread():
        with _sharing(deadline), _timer(deadline) if hasattr(signal, "setitimer") else _late(deadline):
            yield
    else:
        with _late(deadline):
            yield


@contextmanager
def _late(deadline: float) -> Iterator[None]:
    yield
    if time.perf_counter() >= deadline:
        raise Expired


@contextmanager
def _sharing(deadline: float) -> Iterator[None]:
    if _shared is None:
        yield
        return
    before, _shared.value = _shared.value, deadline
    try:
        yield
    finally:
        _shared.value = before


@contextmanager
def _timer(deadline: float) -> Iterator[None]:
    start = time.perf_counter()
    is_armed = True

    def expire(number: int, frame: FrameType | None) -> None:
        if is_armed:
            raise Expired

    handler = signal.signal(signal.SIGALRM, expire)
    left, interval = signal.setitimer(signal.ITIMER_REAL, max(deadline - start, _LEAST), _AGAIN)
    try:
        try:
            yield
        finally:
            is_armed = False  # A signal from here on must not keep the earlier timer from being restored.
        if time.perf_counter() >= deadline:
            raise Expired
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.perf_counter() - start), _LEAST), interval)
