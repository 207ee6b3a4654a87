"""Ctrl-C and SIGTERM during a run: keep the update in progress, or stop at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..state import Activity

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_REQUEST = 1.0
"""Seconds within which further signals are the same request: a launcher passes on what its processes also get."""


class Interruption:
    """Request to stop a run.

    Before the first update nothing would be lost, and a signal raises KeyboardInterrupt. From then on the first
    signal is a request, which the run answers after the update in progress with a checkpoint; a second one raises
    KeyboardInterrupt.

    Args:
        activity: Receives a notice of the request, for displays.

    Attributes:
        deferred: True while signals are requests; see `defer`.
        requested: True once a stop has been requested.
    """

    def __init__(self, activity: Activity) -> None:
        self._activity = activity
        self.deferred = False
        self.requested = False
        self._requested_at = 0.0

    def defer(self) -> None:
        """Take signals as requests from now on; the run calls this when its first update begins.

        Raises:
            KeyboardInterrupt: A signal arrived before, but a library discarded its exception, as the import of an
                optional package may.
        """
        if self.requested and not self.deferred:
            raise KeyboardInterrupt
        self.deferred = True

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Context in which Ctrl-C and SIGTERM are handled; without effect outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if not self.deferred or (self.requested and now - self._requested_at > SAME_REQUEST):
            self.requested = True
            raise KeyboardInterrupt
        if self.requested:
            return
        self.requested, self._requested_at = True, now
        self._activity.notice = "Stopping after this update, with a checkpoint; a second Ctrl-C stops at once."
