"""Initializer of worker processes, in a module without imports that could print before it runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def init_worker(log: Path) -> None:
    """Redirect stdout and stderr to a log file and ignore SIGINT, which the parent handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
