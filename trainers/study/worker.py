"""What a process of a study does before all else; apart, since nothing that is imported here may speak."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def init_worker(log: Path) -> None:
    """Send what libraries say to a file, where it tears no picture, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
