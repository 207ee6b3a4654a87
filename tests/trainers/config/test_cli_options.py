"""Options of `arboretum train` and `arboretum sft`: every setting has one, and missing ones are named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from arboretum.cli import main
from arboretum.trainers.algorithms.recipes import get_recipe
from arboretum.trainers.config.cli_options import SFTOptions, TrainOptions
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import (
    DialogueConfig,
    EnvConfig,
    ExpertConfig,
    HardwareConfig,
    LoraConfig,
    SFTSettings,
    SteppingConfig,
    ValidationConfig,
)
from arboretum.trainers.monitor import Monitor

MODEL = "/nowhere/model"  # Loading it would fail.


def parse(kind: Any, arguments: str) -> Any:
    """Return the options that a command line on FrozenLake gives."""
    import tyro

    return tyro.cli(kind, args=["--env", "TextFrozenLake-v0", "--model", MODEL, *arguments.split()])


def test_every_setting_of_a_training_run_has_an_option() -> None:
    config = parse(
        TrainOptions,
        "--env-arg size=5 --env-arg map=null --split test --tasks 3 --seed 7 --out there"
        " --dialogue react --dialogue-arg max_turns=4 --dialogue-arg show_reward=false --template qwen3"
        " --device cpu --precision bfloat16 --gradient-checkpointing --microbatch-tokens 99 --share-prefixes True"
        " --in-flight 5 --engine vllm-server --base-url http://a/v1 --vllm-memory 0.5"
        " --lora --lora.rank 4 --lora.alpha 8 --lora.targets q_proj"
        " --validation.every 3 --validation.tasks 4 --validation.split valid --validation.temperature 0"
        " --validation.repeats 2 --monitor.window 4 --monitor.variance 0.4 --monitor.gradient 9"
        " --checkpoint-every 2 --checkpoint-keep 4 --tracker tensorboard --tracker wandb"
        " --ray auto --ray-workers 3 --step-timeout 2.5"
        " --set sampler.rollouts=4 --set objective.clip_high=3e-1",
    ).config("grpo")
    assert config == TrainingConfig(
        get_recipe("grpo").with_settings({"sampler.rollouts": 4, "objective.clip_high": 0.3}),
        EnvConfig("TextFrozenLake-v0", {"size": 5, "map": None}, "test", 3),
        MODEL,
        Path("there").absolute(),
        7,
        DialogueConfig("react", {"max_turns": 4, "show_reward": False}, "qwen3"),
        HardwareConfig(
            "cpu", "bfloat16", True, LoraConfig(4, 8, "q_proj"), 99, True, 5, "vllm-server", "http://a/v1", 0.5
        ),
        ValidationConfig(3, 4, "valid", 0.0, 2),
        Monitor(4, 0.4, gradient=9.0),
        2,
        ("tensorboard", "wandb"),
        4,
        stepping=SteppingConfig("auto", 3, 2.5),
    )


def test_every_setting_of_fine_tuning_has_an_option() -> None:
    config = parse(
        SFTOptions,
        "--episodes 9 --epochs 3 --batch 2 --lr 0.1 --warmup 1 --weight-decay 0.5 --env-arg size=5"
        " --expert.noise 0.2 --expert.actions-per-turn 1 --expert.thoughts none --expert.keep all",
    ).config()
    assert config.sft == SFTSettings(9, 3, 2, 0.1, 1, 0.5)
    assert config.env.kwargs == {"size": 5}
    assert config.expert == ExpertConfig(0.2, 1, "none", "all")
    assert config.out == Path("runs/sft-TextFrozenLake-v0-0").absolute() and config.hardware.lora is None


@pytest.mark.parametrize("option", ["--engine vllm", "--base-url URL", "--vllm-memory 1", "--share-prefixes True"])
def test_fine_tuning_rejects_options_of_sampling(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sft", "--env", "TextFrozenLake-v0", "--model", MODEL, *option.split()])
    assert ended.value.code == 2 and f"Unrecognized options: {option.split()[0]}" in capsys.readouterr().err
    config = parse(SFTOptions, "--in-flight 5 --device cpu").config()
    assert config.hardware == HardwareConfig("cpu", in_flight=5)


def test_resumed_run_keeps_its_servers_unless_it_samples_without_them() -> None:
    stored = parse(TrainOptions, "--engine vllm-server --base-url http://a/v1,http://b/v1").config("grpo")
    kept = parse(TrainOptions, "--in-flight 8").config(None, stored).hardware
    assert kept.server_urls == ("http://a/v1", "http://b/v1") and kept.in_flight == 8
    moved = parse(TrainOptions, "--base-url http://c/v1").config(None, stored).hardware
    assert moved.server_urls == ("http://c/v1",)
    without = parse(TrainOptions, "--engine transformers").config(None, stored, {"engine"}).hardware
    assert without.engine == "transformers" and without.server_urls == ()


def test_part_of_a_recipe_is_replaced_by_its_name() -> None:
    recipe = parse(TrainOptions, "--set selector.name=uncertainty --set selector.amount=0.5").config("grpo").recipe
    assert recipe.selector == get_recipe("starpo_s").with_settings({"selector.amount": 0.5}).selector


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train grpo --model sapling", "pass --env, such as TextSokoban-v0"),
        ("train grpo --env TextSokoban-v0", "pass --model, such as sapling"),
        ("train --env TextSokoban-v0 --model sapling", "name a recipe (ppo, "),
        ("train", "name a recipe (ppo, "),
        ("sft --model sapling", "pass --env, such as TextSokoban-v0"),
        ("sft --env TextSokoban-v0", "pass --model, such as sapling"),
        ("train grpo --env TextSokoban-v0 --model sapling --lora.rank 4", "no effect without --lora"),
        ("train grpo --env TextSokoban-v0 --model sapling --lora.rank 64", "no effect without --lora"),
        ("sft --env TextSokoban-v0 --model sapling --lora.alpha 4", "no effect without --lora"),
        (
            "train grpo --env TextSokoban-v0 --model sapling --out here --set objective.terms=[surgical]",
            "the credit 'group' finds none; set credit.name=cognitive",
        ),
        ("train --resume there --out elsewhere", "no run to resume"),
        ("train grpo --env X --model Y --resume there --out elsewhere", "pass only --resume"),
    ],
)
def test_missing_or_contradictory_option_is_reported_in_one_sentence(
    command: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.startswith("arboretum: ") and message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "train grpo --lr 3e-4",
            "--lr is a setting of the recipe, not an option; pass --set optimization.lr=3e-4",
        ),
        ("train grpo --updates=5", "--updates is a setting .* pass --set optimization.updates=5."),
        ("train grpo --reply-tokens 9", "--reply-tokens is a setting .* pass --set sampler.reply_tokens=9."),
        ("train grpo --objective.kl.coef 0", "--objective.kl.coef is .* pass --set objective.kl.coef=0."),
        ("train grpo --think --seed 1", "--think is a setting .* pass --set sampler.think=VALUE."),
        ("train ppo --lr 3e-4", "pass --set critic.lr=3e-4 or --set optimization.lr=3e-4."),
        ("train --resume runs/a --updates 5", "pass --set optimization.updates=5."),
    ],
)
def test_setting_given_as_an_option_is_answered_with_the_command_that_sets_it(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("arguments", ["grpo TextSokoban-v0", "TextSokoban-v0 --seed 1"])
def test_environment_without_its_option_is_answered_with_the_option(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", *arguments.split()])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "arboretum: TextSokoban-v0 is an environment, not a recipe; pass --env TextSokoban-v0.\n"
    )


def test_setting_of_a_recipe_of_one_s_own_is_answered_with_its_path(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "from arboretum.trainers import get_recipe\nMINE = get_recipe('ppo')\n"
    (tmp_path / "recipes_of_mine.py").write_text(code, encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["train", "recipes_of_mine:MINE", "--gamma", "1"])
    # GRPO's credit has no such setting.
    assert (
        "--gamma is a setting of the recipe, not an option; pass --set credit.gamma=1" in capsys.readouterr().err
    )


def test_option_that_is_no_setting_either_is_compared_with_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "grpo", "--validation.task", "5"])
    assert "--validation.tasks" in capsys.readouterr().err
