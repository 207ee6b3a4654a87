"""`arboretum.train`: training from a program, without a console, and inside a running event loop."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arboretum
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import make_env
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.algorithms.selectors import All
from arboretum.trainers.checkpoints.run_folder import claim_run_folder
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import EnvConfig

for module in ("torch", "accelerate"):
    pytest.importorskip(module, reason="needs torch and accelerate: pip install 'arboretum-rl[lm]'")

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {
    "env_args": {"size": 3},
    "dialogue": "no_think",
    "dialogue_args": {"max_turns": 2, "show_reward": False},
    "hardware": {"device": "cpu"},
    "validation": {"every": 1, "tasks": 4},
    "settings": {
        "sampler.prompts": 2,
        "sampler.rollouts": 2,
        "sampler.reply_tokens": 8,
        "optimization.episodes_per_step": 4,
        "optimization.updates": 2,
    },
}


def test_function_is_imported_when_it_is_first_used() -> None:
    code = (
        "import sys, arboretum; print('torch' in sys.modules, callable(arboretum.train), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.split() == ["False", "True", "False"]
    with pytest.raises(AttributeError, match="has no attribute 'trane'"):
        arboretum.trane  # noqa: B018


@pytest.mark.heavy
def test_training_in_a_running_event_loop_returns_metrics_and_model_silently(
    warm_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    records = []
    before = signal.getsignal(signal.SIGTERM)

    async def train() -> Any:
        return arboretum.train(
            "grpo", "TextFrozenLake-v0", warm_model, out=tmp_path / "run", on_record=records.append, **SMALL
        )

    result = asyncio.run(train())
    assert capfd.readouterr().out == "" and signal.getsignal(signal.SIGTERM) == before
    assert [record["update"] for record in result.metrics] == [0, 1, 2] and result.stopped is None
    assert [record.metrics for record in records] == list(result.metrics)
    assert [one.update for one in result.validations] == [0, 1, 2]
    assert 0 <= result.validations[0].success.low <= result.validations[0].success.value <= 1
    assert result.folder == tmp_path / "run" and (result.folder / "report.html").exists()
    assert result.model == tmp_path / "run" / "model" and (result.model / "model.safetensors").exists()

    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install pandas")
    frame = result.to_dataframe()
    assert isinstance(frame, pandas.DataFrame) and list(frame.index) == [0, 1, 2]
    assert frame.loc[2, "success"] == result.metrics[2]["success"] and frame["success"].isna()[0]

    # In a thread, and prolonged with nothing else to say.
    more = {"optimization.updates": 3}
    prolonged = asyncio.run(asyncio.to_thread(arboretum.train, resume=result.folder, settings=more))
    assert [record["update"] for record in prolonged.metrics] == [0, 1, 2, 3]
    assert prolonged.metrics[1] == result.metrics[1]
    with pytest.raises(ConfigurationError, match=r"another seed \(it was 0 and is 1\)"):
        arboretum.train(resume=result.folder, seed=1)


def test_numbers_of_numpy_are_taken_in_every_option(warm_model: Path, tmp_path: Path) -> None:
    result = arboretum.train(
        "grpo",
        (name for name in ["TextFrozenLake-v0"]),
        warm_model,
        out=tmp_path / "run",
        seed=np.int64(3),
        tasks=np.int64(5),
        env_args={"size": np.int64(3)},
        dialogue="no_think",
        dialogue_args={"max_turns": np.int64(2)},
        hardware={"device": "cpu", "in_flight": np.int64(4)},
        validation={"every": np.int64(0)},
        settings={
            "sampler.prompts": np.int64(2),
            "sampler.rollouts": 2,
            "sampler.reply_tokens": 8,
            "sampler.temperature": np.float32(0.5),
            "optimization.episodes_per_step": np.int64(4),
            "optimization.updates": np.int64(1),
        },
    )
    assert [record["update"] for record in result.metrics] == [1]
    stored = json.loads((tmp_path / "run" / "run.json").read_text())
    assert stored["seed"] == 3 and stored["env"]["tasks"] == 5 and stored["env"]["kwargs"] == {"size": 3}
    assert stored["recipe"]["sampler"]["temperature"] == 0.5 and stored["hardware"]["in_flight"] == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env": "TextFrozenLake-v0"}, "--model"),
        ({"validation": {"tusks": 3}}, "unknown setting 'validation.tusks'; did you mean"),
        ({"hardware": {"precision": "float8"}}, "hardware.precision"),
        ({"settings": {"sampler.rolouts": 4}}, "did you mean"),
        ({"seed": "seven"}, "seed is 'seven'; expected a whole number"),
        ({"tasks": "many"}, "tasks is 'many'; expected a whole number"),
        ({"split": 3}, "split is 3; expected text"),
        ({"model": "sapling", "trackers": "tensorbord"}, "unknown tracker 'tensorbord'; did you mean"),
        ({"settings": {"selector": All()}}, r"selector is All\(\); pass numbers, texts, paths"),
        ({"env": make_env("TextBandit-v0"), "model": "sapling"}, "env must be the id of an env.*, not <arboretum"),
        ({"env": [type(make_env("TextBandit-v0"))], "model": "sapling"}, "env must be the id of an env.*<class"),
        ({"env_args": {"data": Path("/no/such/folder")}}, "unknown option of TextFrozenLake-v0 .data."),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    complete = {"env": "TextFrozenLake-v0", "model": "/nowhere", "out": tmp_path / "run"}
    complete = {**complete, **options} if "env" not in options else options
    with pytest.raises(ConfigurationError, match=message):
        arboretum.train("grpo", **complete)
    assert not (tmp_path / "run").exists()


def test_adapters_are_not_added_to_a_run_that_trains_all_weights(tmp_path: Path) -> None:
    config = TrainingConfig(RECIPES["grpo"], EnvConfig("TextFrozenLake-v0"), "/nowhere", tmp_path / "run")
    claim_run_folder(config, resume=False)
    (config.out / "checkpoints" / "update-000002").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"another hardware \(lora was None and is "):
        arboretum.train(resume=config.out, lora={})
