"""Where the time of a training run goes, and how much of it goes neither into playing nor into learning."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ...eval.bench.row import Row
from ...eval.bench.tiny import make_tiny_model
from ..algorithms.recipes import RECIPES
from ..config.run import TrainingConfig
from ..config.settings import DialogueConfig, EnvConfig, HardwareConfig, ValidationConfig
from ..trainer import Trainer


def measure(peers: bool = False, updates: int = 8) -> Iterator[Row]:
    """Wall time of the training loop by phase: GRPO, 4 × 8 episodes of Sokoban, 0.36M parameters, one thread.

    Validation and checkpoints every fourth update. A tiny model's phases are short, so what lies between them
    weighs more here than anywhere else.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            shares, waited = run(Path(folder), updates, prompts=4)
    finally:
        torch.set_num_threads(threads)
    beside = ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items() if name != "rest")
    idle = 100 * shares["rest"]
    yield Row("loop: time in no phase", idle, "%", bar=5.0, higher_is_better=False, beside=beside)
    playing = 100 * (shares["sample"] + shares["learn"])
    yield Row("loop: time in sampling and learning", playing, "%")
    if waited is not None:
        yield Row("loop: time in which its thread waited", 100 * waited, "%", bar=5.0, higher_is_better=False)


def attended() -> float | None:
    """Seconds in which this thread has run, or stood in line for a processor that others had.

    What wall time has passed beyond that it spent waiting: for a disk, for another thread, for nothing. None where
    the kernel does not tell; Linux does.
    """
    try:
        ran, queued, _ = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    except OSError:
        return None
    return (int(ran) + int(queued)) / 1e9


def run(folder: Path, updates: int, prompts: int) -> tuple[dict[str, float], float | None]:
    """Train, and see where the wall time from the loop's beginning to its end goes.

    Args:
        folder: an empty one.
        updates: of the run.
        prompts: P; 8 episodes of each.

    Returns:
        Each phase's share, `rest` being all that the loop's own clocks do not explain; and the share in which the
        thread waited, in whichever phase (see `attended`).
    """
    recipe = RECIPES["grpo"].with_settings(
        {
            "sampler.prompts": prompts,
            "sampler.rollouts": 8,
            "sampler.reply_tokens": 16,
            "sampler.max_turns": 3,
            "objective.kl.coef": 0.0,
            "optimization.updates": updates,
            "optimization.episodes_per_step": 8,
        }
    )
    training = Trainer(
        TrainingConfig(
            recipe,
            EnvConfig("TextSokoban-v0"),
            str(make_tiny_model(folder / "model")),
            folder / "run",
            dialogue=DialogueConfig("think"),
            hardware=HardwareConfig(device="cpu"),
            validation=ValidationConfig(every=4, tasks=8),
            checkpoint_every=4,
        )
    )
    start, before = time.perf_counter(), attended()
    try:
        for _ in training.run():
            pass
    finally:
        training.close()
    after = attended()
    total = time.perf_counter() - start
    shares = {
        phase: sum(metrics.get(f"seconds/{phase}", 0.0) for metrics in training.history) / total
        for phase in ("sample", "learn", "validate", "checkpoint")
    }
    # The last checkpoint is in no record.
    shares["checkpoint"] += training.checkpoint_seconds / total
    waited = None if before is None or after is None else 1.0 - (after - before) / total
    return {**shares, "rest": 1.0 - sum(shares.values())}, waited
