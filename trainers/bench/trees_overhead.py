"""Benchmark of T-STAR: its time per update over that of GRPO with the same rollouts, and its parts."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from ...agents.engines.shipped_models import SAPLING
from ...eval.bench.row import Row
from ...eval.bench.threads import one_thread
from ..algorithms.recipes import RECIPES
from ..config.run import TrainingConfig
from ..config.settings import DialogueConfig, EnvConfig, HardwareConfig, ValidationConfig
from ..trainer import Trainer

ENVIRONMENTS = {"TextFrozenLake-v0": {}, "TextSokoban-v0": {"reward_mode": "sparse"}}
TARGET = 1.22
"""T-STAR's table 5: 51.8 s per iteration, of which 42.3 s are GRPO's."""
PARTS = ("merge", "compare", "values", "graft")
SETTINGS: dict[str, object] = {
    "sampler.prompts": 8,
    "sampler.rollouts": 8,
    "sampler.reply_tokens": 24,
    "sampler.max_turns": 20,
    "sampler.max_actions": 20,
    "sampler.max_actions_per_turn": 1,
    "optimization.episodes_per_step": None,
    "optimization.lr": 1e-6,  # The policies, and with them the episodes, stay nearly the same.
}


def measure(peers: bool = False, updates: int = 4) -> Iterator[Row]:
    """Yield T-STAR's seconds per update over GRPO's, on the shipped model in one thread.

    GRPO has no KL term, whose reference scores would cost as much as the comparison of turns. Times are processor
    time, since the ratio is small against what other processes do to wall time; the updates of the two recipes
    alternate, and medians are compared. The shipped model writes no thoughts, so that pairs are made of replies:
    the time of writing thoughts is not included (in the paper 3.5 s of 51.8 s).

    Args:
        peers: Unused; there is no public code of T-STAR.
        updates: Updates per recipe and environment.
    """
    del peers
    with one_thread():
        for env, kwargs in ENVIRONMENTS.items():
            with tempfile.TemporaryDirectory() as folder:
                yield from measure_overhead(Path(folder), EnvConfig(env, kwargs), updates)


def measure_overhead(folder: Path, env: EnvConfig, updates: int) -> Iterator[Row]:
    """Yield the ratio of the median processor times per update in one environment.

    The second row is that of T-STAR with `credit.kl_contexts=all`, which also compares where it changes nothing.

    Args:
        folder: Empty folder for the runs.
        env: Environment.
        updates: Updates per recipe, after one that is not counted.
    """
    common = {**SETTINGS, "optimization.updates": updates + 2}  # The last one writes a checkpoint.
    runs: dict[str, tuple[str, dict[str, object]]] = {
        "GRPO": ("grpo", {**common, "objective.kl.coef": 0.0}),
        "T-STAR": ("t_star", common),
        "T-STAR, all contexts": ("t_star", {**common, "credit.kl_contexts": "all"}),
    }
    trainers = {
        name: Trainer(_config(folder / str(number), recipe, settings, env))
        for number, (name, (recipe, settings)) in enumerate(runs.items())
    }
    records = {name: trainer.run() for name, trainer in trainers.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(updates + 1):
        for name, run in records.items():
            start = time.process_time()
            next(run)
            if number:
                seconds[name].append(time.process_time() - start)
    medians = {name: median(times) for name, times in seconds.items()}
    for name, trainer in trainers.items():
        trainer.close()
        if name == "GRPO":
            continue
        history = trainer.history[1:]
        wall = sum(value for record in history for key, value in record.items() if key.startswith("seconds/"))
        parts = {part: sum(record.get(f"seconds/{part}", 0.0) for record in history) / wall for part in PARTS}
        shares = ", ".join(f"{part} {100 * share:.1f} %" for part, share in parts.items())
        details = f"{medians[name]:.2f} s, GRPO {medians['GRPO']:.2f} s; of the wall time {shares}"
        ratio = medians[name] / medians["GRPO"]
        target = TARGET if name == "T-STAR" else None
        yield Row(f"{name} / GRPO, {env.id}", ratio, "x", target, higher_is_better=False, details=details)


def _config(out: Path, recipe: str, settings: dict[str, object], env: EnvConfig) -> TrainingConfig:
    return TrainingConfig(
        RECIPES[recipe].with_settings(settings),
        env,
        SAPLING,
        out,
        dialogue=DialogueConfig("no_think"),
        hardware=HardwareConfig(device="cpu"),
        validation=ValidationConfig(every=0),
        checkpoint_every=1000,
    )
