"""Benchmark of the training loop: fractions of wall time in sampling, training and everything else."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ...agents.engines.shipped_models import SAPLING
from ...eval.bench.row import Row
from ...eval.bench.threads import one_thread
from ..algorithms.recipes import RECIPES
from ..config.run import TrainingConfig
from ..config.settings import DialogueConfig, EnvConfig, HardwareConfig, ValidationConfig
from ..trainer import Trainer


def measure(peers: bool = False, updates: int = 8) -> Iterator[Row]:
    """Yield the fractions of wall time of GRPO with 4 × 8 episodes of Sokoban per update.

    The model has 0.36 million parameters and runs in one thread; validation and checkpoints follow every fourth
    update. The phases of a tiny model are short, so the overhead between them is overestimated.

    Args:
        peers: Unused; there is no original system.
        updates: Number of updates.
    """
    del peers
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        shares, blocked = measure_phases(Path(folder), updates, prompts=4)
    details = ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items() if name != "rest")
    overhead = 100 * shares["rest"]
    yield Row("loop: time outside all phases", overhead, "%", target=5.0, higher_is_better=False, details=details)
    useful = 100 * (shares["sample"] + shares["learn"])
    yield Row("loop: time in sampling and training", useful, "%")
    if blocked is not None:
        yield Row("loop: time its thread is blocked", 100 * blocked, "%", target=5.0, higher_is_better=False)


def runnable_seconds() -> float | None:
    """Return the seconds in which this thread was running or runnable; None if the kernel does not report them.

    A runnable thread waits for a processor that other threads occupy. In the rest of the wall time the thread is
    blocked: it waits for a disk, for another thread or for a timer.
    """
    try:
        running, queued, _ = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    except OSError:
        return None
    return (int(running) + int(queued)) / 1e9


def measure_phases(folder: Path, updates: int, prompts: int) -> tuple[dict[str, float], float | None]:
    """Train the sapling, and measure the fractions of the loop's wall time.

    Args:
        folder: Empty folder.
        updates: Number of updates.
        prompts: Prompts per update, with 8 episodes each.

    Returns:
        The fraction of each phase, where `rest` is the time that the loop's own metrics do not account for; and
        the fraction in which the thread was blocked in any phase, None if it is unknown (see `runnable_seconds`).
    """
    recipe = RECIPES["grpo"].with_settings(
        {
            "sampler.prompts": prompts,
            "sampler.rollouts": 8,
            "sampler.reply_tokens": 24,
            "sampler.max_turns": 3,
            "objective.kl.coef": 0.0,
            "optimization.updates": updates,
            "optimization.episodes_per_step": 8,
        }
    )
    trainer = Trainer(
        TrainingConfig(
            recipe,
            EnvConfig("TextSokoban-v0"),
            SAPLING,  # It solves some tasks; updates without an advantage would skip training.
            folder / "run",
            dialogue=DialogueConfig("no_think"),
            hardware=HardwareConfig(device="cpu"),
            validation=ValidationConfig(every=4, tasks=8),
            checkpoint_every=4,
        )
    )
    start, before = time.perf_counter(), runnable_seconds()
    try:
        for _ in trainer.run():
            pass
    finally:
        trainer.close()
    after = runnable_seconds()
    total = time.perf_counter() - start
    shares = {
        phase: sum(metrics.get(f"seconds/{phase}", 0.0) for metrics in trainer.history) / total
        for phase in ("sample", "learn", "validate", "checkpoint")
    }
    # A checkpoint is reported with the next update; the last one is in no record.
    shares["checkpoint"] += trainer.checkpoint_seconds / total
    blocked = None if before is None or after is None else 1.0 - (after - before) / total
    return {**shares, "rest": 1.0 - sum(shares.values())}, blocked
