"""What `import arboretum` costs beside `import gymnasium`, in fresh interpreters."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator

from .row import Row

_CODE = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"


def measure(peers: bool = False, rounds: int = 5) -> Iterator[Row]:
    """The ratio of import times, ours to Gymnasium's, in CPU seconds, paired round by round."""
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(_import("gymnasium"))
        ours.append(_import(__name__.split(".")[0]))
    beside = f"import gymnasium {1000 * statistics.median(theirs):.0f} ms"
    factor = statistics.median(o / t for o, t in zip(ours, theirs, strict=True))
    yield Row("import arboretum", factor, "x", bar=1.5, higher_is_better=False, beside=beside)


def _import(module: str) -> float:
    command = [sys.executable, "-c", _CODE.format(module)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
