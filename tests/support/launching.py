"""Programs in two training processes, and what their runs wrote. Needs PyTorch and Accelerate."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch

from arboretum.assets import asset
from arboretum.trainers.config.run import TrainingConfig


def accelerate(accelerate_config: str) -> list[str]:
    """Return the command that runs a Python program in two processes under Accelerate's launcher."""
    path = asset(f"accelerate/{accelerate_config}.yaml")
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(path)]
    return [*command, "--num_processes", "2", "--main_process_port", "0"]


def written_metrics(config: TrainingConfig) -> list[dict[str, float]]:
    """Return the metrics in the run's folder, without times."""
    lines = (config.out / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if "second" not in k} for line in lines]


def assert_metrics_close(found: TrainingConfig, expected: TrainingConfig) -> None:
    for ours, theirs in zip(written_metrics(found), written_metrics(expected), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4)


def assert_weights_close(found: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-4) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=0, atol=tolerance), name
