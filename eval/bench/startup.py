"""Benchmark of `import arboretum` against `import gymnasium`, in fresh interpreters."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator

from .row import Row

_CODE = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"


def measure(peers: bool = False, rounds: int = 5) -> Iterator[Row]:
    """Yield the ratio of our import time to Gymnasium's, in CPU seconds.

    Args:
        peers: Unused; there is no original system.
        rounds: Number of paired measurements.
    """
    del peers
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(_import_seconds("gymnasium"))
        ours.append(_import_seconds(__name__.split(".")[0]))
    details = f"import gymnasium {1000 * statistics.median(theirs):.0f} ms"
    factor = statistics.median(o / t for o, t in zip(ours, theirs, strict=True))
    yield Row("import arboretum", factor, "x", target=1.5, higher_is_better=False, details=details)


def _import_seconds(module: str) -> float:
    """Return the CPU seconds of an import in a new process."""
    command = [sys.executable, "-c", _CODE.format(module)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
