"""Counters of a training run, part of every checkpoint."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TrainerState:
    """Counters of a training run.

    Attributes:
        update: Updates made.
        batch: Generation batches rolled out.
        task: Tasks drawn.
        rollbacks: Rollbacks to an earlier checkpoint. The other counters never go back: undone updates were
            sampled all the same, and their tasks and seeds are not used twice.
        uninformative: Consecutive updates without any advantage, which took no step.
    """

    update: int = 0
    batch: int = 0
    task: int = 0
    rollbacks: int = 0
    uninformative: int = 0
