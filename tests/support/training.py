"""What tests of training compare: weights and records of runs. Needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.trainer import Trainer

Make = Callable[..., TrainingConfig]


def weights(trainer: Trainer) -> dict[str, Any]:
    return {name: value.clone() for name, value in trainer.optimizer.policy.state_dict().items()}


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def without_times(records: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in record.items() if "second" not in name} for record in records]


def finish(trainer: Trainer) -> Trainer:
    for _ in trainer.run():
        pass
    return trainer
