"""The update step beside TRL's GRPOTrainer: one model, one batch, each side in a process of its own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...envs.errors import ConfigurationError
from ...eval.bench.row import Row
from .workload import Workload, apart

_MB = 2**20


def measure(peers: bool = False, workload: Workload | None = None) -> Iterator[Row]:
    """Tokens a CPU second of one thread in float32, and the memory that an update adds to the loaded state.

    Both learn once from the same episodes in one optimizer step, GRPO with a mean over all tokens and without a
    reference policy. TRL takes micro-batches of eight sequences (of 4, 8 and 16 its fastest); ours may run as many
    tokens at once as eight of the longest. Timed are `Learner.update` as a whole (see `update_ours.run`), and of
    TRL its training steps with the optimizer's, but not its advantages and padding (see `update_trl.run`). The
    gradients of both first steps are compared: both do the same work.
    """
    workload = workload or Workload()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workload.write(folder)
        settings: dict[str, Any] = asdict(workload)
        default = _side("update_ours", folder, {**settings, "same_budget": False})
        yield Row("update step", _rate(default), "tokens/s", beside=f"memory {default['memory'] / _MB:,.0f} MB")
        if not peers or find_spec("trl") is None:
            return
        ours = _side("update_ours", folder, settings)
        theirs = _side("update_trl", folder, settings)
        beside = f"TRL {_rate(theirs):,.0f} tokens/s"
        yield Row("update step, to TRL's", _rate(ours) / _rate(theirs), "x", bar=1.2, beside=beside)
        share = ours["memory"] / theirs["memory"]
        beside = f"TRL {theirs['memory'] / _MB:,.0f} MB"
        yield Row("memory of it, to TRL's", share, "x", bar=1.0, higher_is_better=False, beside=beside)
        distance = apart(folder / "ours.pt", folder / "trl.pt")
        yield Row("gradient, distance to TRL's", 100 * distance, "%", bar=0.01, higher_is_better=False)


def _rate(side: dict[str, Any]) -> float:
    return float(side["tokens"] / statistics.median(side["seconds"]))


def _side(module: str, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    package = __name__.rpartition(".")[0]
    command = [sys.executable, "-m", f"{package}.{module}", str(folder), json.dumps(settings)]
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **quiet})
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigurationError(f"the benchmark's process {module} failed: {last}")
    report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return report
