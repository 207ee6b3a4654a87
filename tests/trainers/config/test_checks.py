"""Settings that cannot work are rejected before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arboretum.cli import main
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.frozenlake import FrozenLake
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.config.run import SFTConfig, TrainingConfig
from arboretum.trainers.config.settings import (
    EnvConfig,
    ExpertConfig,
    HardwareConfig,
    SteppingConfig,
    ValidationConfig,
)
from arboretum.trainers.monitor import Monitor

MODEL = "/nowhere/model"  # Loading it would fail.
LAKE = "--env TextFrozenLake-v0"


def error_of(command: str, out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one sentence with which a command ends."""
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--model", MODEL, "--out", str(out)])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.startswith("arboretum: ") and error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (f"gripo {LAKE}", "unknown recipe 'gripo'; did you mean"),
        ("grpo --env TextSokobann-v0", "unknown environment"),
        (f"grpo {LAKE} --set sampler.rollouts=1", "sampler.rollouts is 1"),
        (f"grpo {LAKE} --set sampler.rollouts", "--set takes key=value"),
        (f"grpo {LAKE} --set sampler.rolouts=4", "unknown setting 'sampler.rolouts'; did you mean"),
        (f"grpo {LAKE} --set lr=1", "unknown setting 'lr'; did you mean optimization.lr?"),
        (f"ppo {LAKE} --set critic=null", "needs a critic"),
        (f"grpo {LAKE} --dialogue thinking", "unknown dialogue"),
        (f"grpo {LAKE} --dialogue-arg max_turn=3", "max_turn"),
        (f"grpo {LAKE} --split training", "unknown split"),
        (f"grpo {LAKE} --env-arg colour=red", "unknown option"),
        ("grpo --env TextBandit-v0", "validation.split: unknown split 'valid'; known: train, test"),
        (
            f"tree_grpo {LAKE} --set sampler.prompts=2",
            "only 2 prompts × 6 rollouts = 12 episodes; lower it, or set it to null",
        ),
        (
            "grpo --env TextBandit-v0 --validation.split test --validation.tasks 64",
            "asks for 64 tasks, but TextBandit-v0 has only",
        ),
        (
            "grpo --env TextBandit-v0 --validation.split train --validation.tasks 4",
            "validation would use training tasks",
        ),
        (
            f"grpo {LAKE} --split valid --tasks 64",
            "validation would use training tasks: splits 'valid' and 'valid'",
        ),
        (f"grpo {LAKE} --split None", "validation would use training tasks: splits None and 'valid'"),
        (f"grpo {LAKE} --engine vllm-server", "engine = vllm-server and base_url go together"),
        (f"grpo {LAKE} --base-url http://127.0.0.1:8000/v1", "engine = vllm-server and base_url go together"),
        (f"grpo {LAKE} --engine vllm-server --base-url localhost:8000", "looks like http://host:port, not"),
        (f"grpo {LAKE} --engine vllm-server --base-url http://me:key@host/v1", "http://host/v1 must not contain"),
        (f"grpo {LAKE} --engine vllm-server --base-url http://a/v1,http://a/v1", "base_url names a server twice"),
        (f"grpo {LAKE} --monitor.window 1", "monitor.window must be at least 2"),
        (f"grpo {LAKE} --lora --lora.rank 0", "lora.rank must be at least 1"),
        (f"grpo {LAKE} --microbatch-tokens 0", "--microbatch-tokens must be at least 1"),
        (f"grpo {LAKE} --checkpoint-every 0", "--checkpoint-every must be at least 1"),
        (
            "grpo --env TextSearchQA-v0 --env-arg dataset=encyclopedia --env-arg retriever=http://127.0.0.1:9",
            "the retrieval server at http://127.0.0.1:9/retrieve cannot be reached (Connection refused); start it",
        ),
        (f"grpo {LAKE} --checkpoint-keep 0", "--checkpoint-keep must be at least 1"),
    ],
)
def test_training_run_that_cannot_work_is_rejected_before_anything_is_loaded(
    arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_of(f"train {arguments}", tmp_path / "run", capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--env TextSokobann-v0", "unknown environment"),
        (f"{LAKE} --lr 0", "--lr must be above 0"),
        (f"{LAKE} --expert.noise 2", "--expert.noise must be between 0 and 1"),
    ],
)
def test_fine_tuning_that_cannot_work_is_rejected_before_anything_is_loaded(
    arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_of(f"sft {arguments}", tmp_path / "run", capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (HardwareConfig(precision="float16"), "precision"),  # type: ignore[arg-type]
        (HardwareConfig(microbatch_tokens=0), "--microbatch-tokens"),
        (ValidationConfig(every=-1), "validation.every"),
        (SteppingConfig("auto", ray_workers=0), "--ray-workers"),
        (SteppingConfig(ray_workers=2), "--ray-workers has no effect without --ray"),
        (SteppingConfig(step_timeout=0.0), "--step-timeout must be above 0"),
        (ExpertConfig(noise=1.5), "noise"),
        (ExpertConfig(keep="best"), "keep"),  # type: ignore[arg-type]
    ],
)
def test_value_out_of_range_is_rejected_with_the_name_of_its_setting(settings: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        settings.check()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hardware": HardwareConfig(precision="bf16")}, "precision"),  # type: ignore[arg-type]
        ({"hardware": HardwareConfig(engine="vLLM")}, "engine"),  # type: ignore[arg-type]
        ({"env": EnvConfig("TextFrozenLake-v0", tasks=0)}, "tasks"),
        ({"monitor": Monitor(action="roll-back")}, "monitor.action"),  # type: ignore[arg-type]
        ({"checkpoint_every": 0}, "--checkpoint-every"),
    ],
)
def test_trainers_check_values_before_loading_anything(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
    from arboretum.trainers.sft import SFTTrainer
    from arboretum.trainers.trainer import Trainer

    common: dict[str, Any] = {"env": EnvConfig("TextFrozenLake-v0"), "model": "/nowhere", "out": tmp_path}
    with pytest.raises(ConfigurationError, match=message):
        Trainer(TrainingConfig(RECIPES["grpo"], **{**common, **settings}))
    if "monitor" not in settings:
        with pytest.raises(ConfigurationError, match=message):
            SFTTrainer(SFTConfig(**{**common, **settings}))


def test_trees_and_redraws_need_an_environment_that_can_be_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FrozenLake, "snapshot", None)

    def config(recipe: str, **settings: object) -> TrainingConfig:
        changed = RECIPES[recipe].with_settings({f"credit.{name}": one for name, one in settings.items()})
        return TrainingConfig(changed, EnvConfig("TextFrozenLake-v0"), MODEL, tmp_path)

    for forking in (config("tree_grpo"), config("grove", redraws=8)):
        with pytest.raises(ConfigurationError, match=r"Lake-v0 cannot be forked: it has no snapshot\(\)"):
            forking.check()
    config("grpo").check()
    config("grove").check()
    monkeypatch.setattr(FrozenLake, "deterministic", True)
    config("tree_grpo").check()
