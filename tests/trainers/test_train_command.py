"""`train` and `sft` as the command line calls them."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arboretum.cli import main
from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.config.cli_options import SFTOptions, TrainOptions
from arboretum.trainers.config.settings import ExpertConfig, HardwareConfig, LoraConfig, ValidationConfig
from arboretum.trainers.train import export_checkpoint, sft, train

NOWHERE = "/nowhere/model"  # a model that nobody may try to load


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("gripo", "unknown recipe 'gripo'; did you mean"),
        ("grpo --env TextSokobann-v0", "unknown environment"),
        ("grpo --set sampler.rollouts=1", "sampler.rollouts is 1"),
        ("grpo --set sampler.rollouts", "--set takes key=value"),
        ("grpo --set sampler.rolouts=4", "unknown setting 'sampler.rolouts'; did you mean"),
        ("ppo --set critic=null", "needs a critic"),
        ("grpo --dialogue thinking", "unknown dialogue"),
        ("grpo --dialogue-arg max_turn=3", "max_turn"),
        ("grpo --split training", "unknown split"),
        ("grpo --env-arg colour=red", "unknown option"),
        ("grpo --env TextBandit-v0", "unknown split"),
        ("grpo --env TextBandit-v0 --validation.split test", "asks for 64 tasks"),
        (
            "grpo --env TextBandit-v0 --validation.split train --validation.tasks 4",
            "validation would use training tasks",
        ),
        ("grpo --split valid --tasks 64", "validation would use training tasks: splits 'valid' and 'valid'"),
        ("grpo --split None", "validation would use training tasks: splits None and 'valid'"),
        ("grpo --monitor.window 1", "monitor.window must be at least 2"),
        ("grpo --lora --lora.rank 0", "lora.rank must be at least 1"),
        ("grpo --microbatch-tokens 0", "microbatch_tokens must be at least 1"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_loaded(
    arguments: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, *rest = arguments.split()
    world = [] if "--env" in rest else ["--env", "TextFrozenLake-v0"]
    with pytest.raises(SystemExit) as ended:
        main(["train", recipe, *world, "--model", NOWHERE, "--out", str(tmp_path / "run"), *rest])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.startswith("arboretum: ") and complaint in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def told(kind: Any, arguments: str) -> Any:
    """The options that a command line makes."""
    import tyro

    model = [] if "--model" in arguments else ["--model", NOWHERE]
    return tyro.cli(kind, args=["--env", "TextFrozenLake-v0", *model, *arguments.split()])


def test_every_setting_of_a_training_run_can_be_said() -> None:
    from arboretum.trainers.algorithms.recipes import get_recipe
    from arboretum.trainers.config.run import TrainingConfig
    from arboretum.trainers.config.settings import DialogueConfig, EnvConfig
    from arboretum.trainers.monitor import Monitor

    run = told(
        TrainOptions,
        "--env-arg size=5 --env-arg map=null --split test --tasks 3 --seed 7 --out there"
        " --dialogue react --dialogue-arg max_turns=4 --dialogue-arg show_reward=false --template qwen3"
        " --device cpu --precision bfloat16 --gradient-checkpointing --microbatch-tokens 99 --in-flight 5"
        " --lora --lora.rank 4 --lora.alpha 8 --lora.targets q_proj"
        " --validation.every 3 --validation.tasks 4 --validation.split valid --validation.temperature 0"
        " --validation.repeats 2 --monitor.window 4 --monitor.variance 0.4 --monitor.gradient 9"
        " --checkpoint-every 2 --tracker tensorboard --tracker wandb"
        " --set sampler.rollouts=4 --set objective.clip_high=3e-1",
    ).config("grpo")
    assert run == TrainingConfig(
        get_recipe("grpo").with_settings({"sampler.rollouts": 4, "objective.clip_high": 0.3}),
        EnvConfig("TextFrozenLake-v0", {"size": 5, "map": None}, "test", 3),
        NOWHERE,
        Path("there"),
        7,
        DialogueConfig("react", {"max_turns": 4, "show_reward": False}, "qwen3"),
        HardwareConfig("cpu", "bfloat16", True, LoraConfig(4, 8, "q_proj"), 99, 5),
        ValidationConfig(3, 4, "valid", 0.0, 2),
        Monitor(4, 0.4, gradient=9.0),
        2,
        ("tensorboard", "wandb"),
    )


def test_every_setting_of_a_warm_start_can_be_said() -> None:
    config = told(
        SFTOptions,
        "--episodes 9 --epochs 3 --batch 2 --lr 0.1 --warmup 1 --weight-decay 0.5 --env-arg size=5"
        " --expert.noise 0.2 --expert.actions-per-turn 1 --expert.thoughts none --expert.keep all",
    ).config()
    assert (config.sft.episodes, config.sft.epochs, config.sft.batch, config.sft.lr) == (9, 3, 2, 0.1)
    assert (config.sft.warmup, config.sft.weight_decay) == (1, 0.5)
    assert config.env.kwargs == {"size": 5}
    assert config.expert == ExpertConfig(0.2, 1, "none", "all")
    assert config.out == Path("runs/sft-TextFrozenLake-v0-0") and config.hardware.lora is None


@pytest.mark.parametrize("verb", ["train", "sft"])
def test_the_help_fits_a_terminal_and_says_each_thing_once(verb: str) -> None:
    """In a process of its own: how wide the help is depends on the terminal."""
    env = {**os.environ, "COLUMNS": "80"}
    command = [sys.executable, "-m", "arboretum.cli", verb, "--help"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    flags = re.findall(r"^│ (--[a-z][\w.-]*)", done.stdout, re.MULTILINE)
    assert len(flags) == len(set(flags)) and {"--env-arg", "--lora.rank", "--microbatch-tokens"} <= set(flags)
    text = " ".join(line.strip("│ ") for line in lines)
    described = re.findall(
        r"(?:^| )--[a-z][\w.-]*(?:, --no-[\w.-]+)?(?: \S+)? +(.*?)\((?:default|required|repeat)", text
    )
    assert len(described) == len(flags) and len(set(described)) == len(described) and all(described)
    optional = [flag for flag in flags if flag not in ("--env", "--model")]
    assert text.count("(default: ") + text.count("(repeatable)") == len(optional)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: HardwareConfig(precision="float16"), "precision"),  # type: ignore[arg-type]
        (lambda: HardwareConfig(microbatch_tokens=0), "microbatch_tokens"),
        (lambda: ValidationConfig(every=-1), "validation.every"),
        (lambda: ExpertConfig(noise=1.5), "noise"),
        (lambda: ExpertConfig(keep="best"), "keep"),  # type: ignore[arg-type]
    ],
)
def test_impossible_values(make: Any, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        make().check()


def test_a_warm_start_on_an_unknown_world(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown environment"):
        sft(SFTOptions("TextSokobann-v0", NOWHERE, tmp_path).config(), console=quiet())


@pytest.mark.heavy
def test_from_a_random_model_to_a_trained_one(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum[lm]'")
    from arboretum.eval.bench.tiny import make_tiny_model

    torch.set_num_threads(1)
    console = quiet()
    model = make_tiny_model(tmp_path / "tiny")
    warm, run = tmp_path / "warm", tmp_path / "run"
    common = "--device cpu --dialogue no_think --dialogue-arg max_turns=2 --dialogue-arg show_reward=false"
    common += " --dialogue-arg max_actions_per_turn=1"
    shown = f"--model {model} --out {warm} {common} --episodes 32 --epochs 1 --batch 8 --expert.noise 0.5"
    assert sft(told(SFTOptions, f"{shown} --expert.keep all").config(), console=console) == 0
    assert (warm / "model" / "model.safetensors").exists()

    settings = (
        f"--model {warm / 'model'} --out {run} {common} --validation.every 1 --validation.tasks 2"
        " --set sampler.prompts=2 --set sampler.rollouts=2 --set sampler.reply_tokens=8"
        " --set optimization.episodes_per_step=4"
    )
    asked = told(TrainOptions, f"{settings} --set optimization.updates=2").config("grpo")
    assert train(asked, console=console) == 0
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "update 2 of 2" in text and "held out" in text and str(run / "model") in text
    assert json.loads((run / "run.json").read_text())["recipe"]["name"] == "grpo"
    assert (run / "model" / "config.json").exists()

    with pytest.raises(ConfigurationError, match="continue it with --resume"):
        train(asked, console=console)
    other = told(TrainOptions, f"{settings} --set optimization.updates=2 --set objective.clip_high=0.3").config(
        "grpo"
    )
    with pytest.raises(ConfigurationError, match=r"another recipe \(objective.clip_high was 0.2 and is 0.3\)"):
        train(other, resume=True, console=console)
    longer = told(TrainOptions, f"{settings} --set optimization.updates=3").config("grpo")
    assert train(longer, resume=True, console=console) == 0
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["update"] for line in lines] == [0, 1, 2, 3]
    with pytest.raises(ConfigurationError, match="holds no checkpoint"):
        export_checkpoint(tmp_path / "nothing")
