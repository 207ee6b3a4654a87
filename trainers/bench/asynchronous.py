"""Benchmark of asynchronous sampling, beside the synchronous run of the same settings."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...eval.bench.row import Row
from ...eval.bench.threads import one_thread
from ..algorithms.recipes import get_recipe
from ..config.run import TrainingConfig
from ..config.settings import DialogueConfig, EnvConfig, HardwareConfig, ValidationConfig
from ..trainer import Trainer

SETTINGS: dict[str, Any] = {
    "sampler.prompts": 8,
    "sampler.rollouts": 8,
    "sampler.reply_tokens": 24,
    "objective.kl.coef": 0.0,
    "optimization.updates": 6,
    # With half of the groups, learning takes as long as sampling, which is where overlapping both gains most.
    "selector.name": "uncertainty",
    "selector.amount": 0.5,
}


def measure(peers: bool = False, rounds: int = 3) -> Iterator[Row]:
    """Yield the wall rate of asynchronous updates relative to synchronous ones.

    The workload is GRPO with the sapling in Sokoban, one thread per process.

    Args:
        peers: Unused; the baseline is our own synchronous run.
        rounds: Number of pairs of runs, each with a seed of its own.
    """
    del peers
    with one_thread():
        pairs = [(_run(seed, False), _run(seed, True)) for seed in range(rounds)]
    ratios = sorted(synchronous["update"] / overlapped["update"] for synchronous, overlapped in pairs)
    sample, learn = (statistics.median(pair[0][phase] for pair in pairs) for phase in ("sample", "learn"))
    extremes = f"{ratios[0]:.2f} to {ratios[-1]:.2f} in {rounds} pairs"
    details = f"{extremes}; sampling {sample:.2f} s, learning {learn:.2f} s"
    yield Row("asynchronous update, wall time", statistics.median(ratios), "x", target=1.3, details=details)


def _run(seed: int, asynchronous: bool) -> Mapping[str, float]:
    """Return the mean wall seconds of an update and of its phases, without the first update."""
    recipe = get_recipe("grpo").with_settings({**SETTINGS, "sampler.asynchronous": asynchronous})
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            TrainingConfig(
                recipe,
                EnvConfig("TextSokoban-v0"),
                "sapling",
                Path(folder) / "run",
                seed=seed,
                dialogue=DialogueConfig("no_think"),
                hardware=HardwareConfig(device="cpu"),
                validation=ValidationConfig(every=0),
            )
        )
        try:
            ends = [time.perf_counter()]
            for _ in trainer.run():
                ends.append(time.perf_counter())
            history = trainer.history[1:]
        finally:
            trainer.close()
    return {
        "update": (ends[-1] - ends[1]) / (len(ends) - 2),
        "sample": statistics.mean(metrics["seconds/sample"] for metrics in history),
        "learn": statistics.mean(metrics["seconds/learn"] for metrics in history),
    }
