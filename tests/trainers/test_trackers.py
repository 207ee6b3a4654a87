"""Trackers receive every metric in metrics.jsonl; TensorBoard's own reader reads them back."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

for module in ("torch", "accelerate"):
    pytest.importorskip(module, reason="needs torch and accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.commands.train import train
from arboretum.trainers.config.run import TrainingConfig

pytestmark = pytest.mark.heavy


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def test_tensorboard_receives_every_metric_of_every_update(run_of: Callable[..., TrainingConfig]) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install 'arboretum-rl[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = run_of("grpo", {"optimization.updates": 3}, trackers=("tensorboard",))
    assert train(config, console=quiet()) == 0
    written = [json.loads(line) for line in (config.out / "metrics.jsonl").read_text().splitlines()]
    folder = config.out / "trackers"
    events = EventAccumulator(str(folder))
    events.Reload()
    found = {
        (scalar.step, tag): scalar.value for tag in events.Tags()["scalars"] for scalar in events.Scalars(tag)
    }
    expected = {(int(record["update"]), name): value for record in written for name, value in record.items()}
    assert found.keys() == expected.keys() and len(expected) > 60
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-6, abs=1e-30), key  # Event files hold float32.
    settings = next(folder.rglob("hparams.yml")).read_text()
    assert "recipe.sampler.rollouts: 4" in settings and "monitor.action: warn" in settings


@pytest.mark.parametrize(
    ("tracker", "message"),
    [("tensorbord", "unknown tracker 'tensorbord'; did you mean tensorboard"), ("wandb", "pip install wandb")],
)
def test_missing_tracker_is_reported_before_anything_is_loaded(
    tracker: str, message: str, run_of: Callable[..., TrainingConfig], tmp_path: Path
) -> None:
    if tracker == "wandb":
        from accelerate.utils import is_wandb_available

        if is_wandb_available():
            pytest.skip("wandb is installed")
    config = run_of("grpo", trackers=(tracker,))
    with pytest.raises(ConfigurationError, match=message):
        train(config, console=quiet())
    assert not config.out.exists()
