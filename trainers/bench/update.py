"""Benchmark of the update step against TRL's GRPOTrainer: same model and batch, each system in its own process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...envs.errors import ConfigurationError
from ...eval.bench.row import Row, not_measured
from .workload import Workload, relative_distance

_MB = 2**20


def measure(peers: bool = False, workload: Workload | None = None) -> Iterator[Row]:
    """Yield tokens per CPU second of one thread in float32, and the memory of an update.

    Both systems take one optimizer step on the same episodes: GRPO with a mean over all tokens and without a
    reference policy. TRL uses micro-batches of eight sequences (its fastest of 4, 8 and 16); ours may hold as many
    tokens as eight of the longest. Our time is that of `Learner.update` as a whole (see `update_ours.run`); TRL's
    covers its training and optimizer steps, but not its advantages and padding (see `update_trl.run`). The
    gradients of both first steps are compared to verify that both do the same work.

    Args:
        peers: Also measure TRL, where it is installed.
        workload: Model and batch; None uses the default workload.
    """
    workload = workload or Workload()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workload.write(folder)
        settings: dict[str, Any] = asdict(workload)
        default = run_system("update_ours", folder, {**settings, "same_budget": False})
        yield Row("update step", _rate(default), "tokens/s", details=f"memory {default['memory'] / _MB:,.0f} MB")
        if not peers:
            return
        if missing := not_measured("TRL", "peers", "trl"):
            yield missing
            return
        ours = run_system("update_ours", folder, settings)
        theirs = run_system("update_trl", folder, settings)
        details = f"TRL {_rate(theirs):,.0f} tokens/s"
        yield Row(
            "update step, speed relative to TRL", _rate(ours) / _rate(theirs), "x", target=1.2, details=details
        )
        memory = ours["memory"] / theirs["memory"]
        details = f"TRL {theirs['memory'] / _MB:,.0f} MB"
        yield Row(
            "update step, memory relative to TRL", memory, "x", target=1.0, higher_is_better=False, details=details
        )
        distance = relative_distance(folder / "ours.pt", folder / "trl.pt")
        yield Row(
            "update step, gradient distance to TRL", 100 * distance, "%", target=0.01, higher_is_better=False
        )


def _rate(report: dict[str, Any]) -> float:
    return float(report["tokens"] / statistics.median(report["seconds"]))


def run_system(module: str, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Run a module of this package in a process of its own, and return its report (see `Stopwatch.report`)."""
    package = __name__.rpartition(".")[0]
    command = [sys.executable, "-m", f"{package}.{module}", str(folder), json.dumps(settings)]
    variables = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigurationError(f"the benchmark process {module} failed: {reason}")
    report: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return report
