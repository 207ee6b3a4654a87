"""`--resume FOLDER` continues a run with its stored settings, and refuses settings that cannot change."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from arboretum.cli import main
from arboretum.trainers.algorithms.recipes import RECIPES, get_recipe
from arboretum.trainers.checkpoints.run_folder import claim_run_folder, read_config
from arboretum.trainers.checkpoints.stored_config import resolve_sft_config, resolve_training_config
from arboretum.trainers.config.cli_options import SFTOptions, TrainOptions, given_options
from arboretum.trainers.config.run import SFTConfig, TrainingConfig
from arboretum.trainers.config.settings import (
    DialogueConfig,
    EnvConfig,
    ExpertConfig,
    HardwareConfig,
    LoraConfig,
    SFTSettings,
    ValidationConfig,
)
from arboretum.trainers.monitor import Monitor

for module in ("torch", "accelerate"):
    pytest.importorskip(module, reason="needs torch and accelerate: pip install 'arboretum-rl[lm]'")

MODEL = "/nowhere/model"  # Loading it would fail.
ENV = EnvConfig("TextFrozenLake-v0", {"size": 5}, "test", 30)
DIALOGUE = DialogueConfig("no_think", {"show_reward": False})
HARDWARE = HardwareConfig("cpu", lora=LoraConfig(rank=4), microbatch_tokens=999)


def training(out: Path) -> TrainingConfig:
    """Return a configuration in which hardly a setting has its default."""
    recipe = RECIPES["grpo"].with_settings({"sampler.rollouts": 4, "optimization.updates": 6})
    validation = ValidationConfig(3, 8, temperature=0.0)
    return TrainingConfig(
        recipe, ENV, MODEL, out, 7, DIALOGUE, HARDWARE, validation, Monitor(4), 2, ("tensorboard",), 3
    )


def fine_tuning(out: Path) -> SFTConfig:
    """Return a configuration in which hardly a setting has its default."""
    sft = SFTSettings(episodes=9, lr=0.1)
    return SFTConfig(ENV, MODEL, out, 7, DIALOGUE, HARDWARE, ExpertConfig(0.2), sft, checkpoint_every=5)


def start(config: TrainingConfig | SFTConfig) -> None:
    """Write the settings of a run, and an empty checkpoint."""
    claim_run_folder(config, resume=False)
    (config.out / "checkpoints" / "update-000002").mkdir(parents=True)


def run_command(command: str) -> int:
    """Run a command of `arboretum`, and return its exit status."""
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert isinstance(ended.value.code, int)
    return ended.value.code


def parse(kind: type[TrainOptions] | type[SFTOptions], arguments: str) -> TrainingConfig | SFTConfig:
    """Return the configuration of a new run that a command line describes."""
    import tyro

    if kind is SFTOptions:
        return tyro.cli(SFTOptions, args=arguments.split()).config()
    recipe, *rest = arguments.split()
    return tyro.cli(TrainOptions, args=rest).config(recipe)


def error_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one sentence with which a command ends."""
    assert run_command(command) == 2
    error = capsys.readouterr().err
    assert error.startswith("arboretum: ") and error.count("\n") == 1
    return error


# ---------------------------------------------------------------------- settings


def test_folder_alone_restores_every_setting_after_it_was_moved(tmp_path: Path) -> None:
    for config in (training(tmp_path / "train"), fine_tuning(tmp_path / "sft")):
        start(config)
        moved = config.out.rename(tmp_path / f"moved-{config.out.name}")
        if isinstance(config, TrainingConfig):
            resumed = resolve_training_config(None, TrainOptions(resume=moved))
        else:
            resumed = resolve_sft_config(SFTOptions(resume=moved))
        assert resumed == dataclasses.replace(config, out=moved)


def test_settings_that_a_run_in_progress_may_change_override_the_stored_ones(tmp_path: Path) -> None:
    config = training(tmp_path / "run")
    start(config)
    options = TrainOptions(
        resume=config.out,
        set=("optimization.updates=50",),
        checkpoint_every=25,
        hardware=HardwareConfig(precision="bfloat16"),
    )
    resumed = resolve_training_config(None, options)
    assert resumed == dataclasses.replace(
        config,
        recipe=config.recipe.with_settings({"optimization.updates": 50}),
        checkpoint_every=25,
        hardware=dataclasses.replace(HARDWARE, precision="bfloat16"),
    )
    claim_run_folder(resumed, resume=True)
    assert read_config(config.out, TrainingConfig) == resumed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--seed 8", "another seed (it was 7 and is 8)"),
        ("--set objective.clip_high=0.3", "another recipe (objective.clip_high was 0.2 and is 0.3)"),
        ("--set sampler.rollouts=8", "another recipe (sampler.rollouts was 4 and is 8)"),
        ("--set optimization.lr=1", "another recipe (optimization.lr was "),
        ("--env TextSokoban-v0", "another env (id was 'TextFrozenLake-v0' and is 'TextSokoban-v0')"),
        ("--env TextBandit-v0", "another env (id was 'TextFrozenLake-v0' and is 'TextBandit-v0')"),
        ("--model other", "another model (it was '/nowhere/model' and is 'other')"),
        ("--dialogue think", "another dialogue (name was 'no_think' and is 'think')"),
        ("--validation.tasks 9", "another validation (tasks was 8 and is 9)"),
        ("--lora --lora.rank 8", "another hardware (lora.rank was 4 and is 8)"),
        ("--lora.rank 8", "another hardware (lora.rank was 4 and is 8)"),
        # values that are the defaults of a new run
        ("--seed 0", "another seed (it was 7 and is 0)"),
        ("--validation.every=10", "another validation (every was 3 and is 10)"),
        ("--lora.rank 64", "another hardware (lora.rank was 4 and is 64)"),
        ("--no-lora", "another hardware (lora was {"),
    ],
)
def test_setting_that_cannot_change_is_refused_by_name(
    options: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(
        dataclasses.replace(training(tmp_path), trackers=(), env=EnvConfig("TextFrozenLake-v0", {"p_frozen": 0.7}))
    )
    before = (tmp_path / "run.json").read_bytes()
    error = error_of(f"train --resume {tmp_path} {options}", capsys)
    assert f"{tmp_path}: was started with {message}" in error and "start a new run in another --out" in error
    assert (tmp_path / "run.json").read_bytes() == before


def test_default_number_of_held_out_tasks_may_be_named_beside_resume(tmp_path: Path) -> None:
    config = dataclasses.replace(training(tmp_path), validation=ValidationConfig(3))
    start(config)
    options = TrainOptions(resume=tmp_path, validation=ValidationConfig(tasks=256))
    resumed = resolve_training_config(None, options)
    assert resumed.validation.tasks == 256
    claim_run_folder(resumed, resume=True)


def test_default_that_is_named_overrides_a_stored_setting(tmp_path: Path) -> None:
    config = dataclasses.replace(training(tmp_path), hardware=HardwareConfig("cpu", precision="bfloat16"))
    start(config)
    options = TrainOptions(resume=tmp_path)
    names = given_options(["--precision", "float32", "--checkpoint-every=10", "--checkpoint_keep", "1"])
    assert names == {"precision", "checkpoint_every", "checkpoint_keep"}
    # Each is a spelling that the command line takes; that of nested flags is the one in their help.
    for flag in ("--no-gradient-checkpointing", "--no_gradient_checkpointing", "--gradient_checkpointing"):
        assert given_options([flag]) == {"gradient_checkpointing"}
    for flag in ("--expert.no-searching", "--expert.no_searching", "--expert.searching"):
        assert given_options([flag]) == {"expert.searching"}
    resumed = resolve_training_config(None, options, names)
    assert resumed.hardware == HardwareConfig("cpu")
    assert (resumed.checkpoint_every, resumed.checkpoint_keep) == (10, 1)
    assert resolve_training_config(None, options) == config


def test_another_recipe_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start(dataclasses.replace(training(tmp_path), trackers=()))
    error = error_of(f"train dr_grpo --resume {tmp_path}", capsys)
    assert "another recipe (name was 'grpo' and is 'dr_grpo')" in error


def test_adapters_are_not_added_to_a_run_that_trains_all_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(dataclasses.replace(training(tmp_path), hardware=HardwareConfig("cpu"), trackers=()))
    assert "another hardware (lora was None and is {" in error_of(f"train --resume {tmp_path} --lora", capsys)
    assert "no effect without --lora" in error_of(f"train --resume {tmp_path} --lora.rank 4", capsys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--seed 8", "another seed (it was 7 and is 8)"),
        ("--lr 0.5", "another sft (lr was 0.1 and is 0.5)"),
        ("--expert.keep all", "another expert (keep was 'solved' and is 'all')"),
        ("--lr 1e-5", "another sft (lr was 0.1 and is 1e-05)"),
        ("--expert.noise 0.0", "another expert (noise was 0.2 and is 0.0)"),
    ],
)
def test_setting_of_fine_tuning_that_cannot_change_is_refused_by_name(
    options: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(fine_tuning(tmp_path))
    assert f"was started with {message}" in error_of(f"sft --resume {tmp_path} {options}", capsys)


@pytest.mark.parametrize("verb", ["train", "sft"])
def test_folder_without_settings_is_refused_with_the_way_out(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoints" / "update-000002").mkdir(parents=True)
    error = error_of(f"{verb} --resume {tmp_path}", capsys)
    assert "holds no run.json" in error and "all settings of the run beside --resume" in error


@pytest.mark.parametrize(("verb", "config"), [("sft", training), ("train", fine_tuning)])
def test_folder_of_the_other_command_is_refused(
    verb: str,
    config: Callable[[Path], TrainingConfig | SFTConfig],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    start(config(tmp_path))
    assert f"a run of another kind, not of `arboretum {verb}`" in error_of(f"{verb} --resume {tmp_path}", capsys)


# ---------------------------------------------------------------------- runs


def steps(folder: Path, name: str = "update") -> list[int]:
    return [int(json.loads(line)[name]) for line in (folder / "metrics.jsonl").read_text().splitlines()]


TRAIN = (
    "grpo --env TextFrozenLake-v0 --env-arg size=3 --device cpu --dialogue no_think --dialogue-arg max_turns=2"
    " --seed 3 --validation.every 2 --validation.tasks 4 --checkpoint-every 1 --set sampler.prompts=2"
    " --set sampler.rollouts=2 --set sampler.reply_tokens=8 --set optimization.episodes_per_step=4"
    " --set optimization.updates=2"
)
SFT = (
    "--env TextFrozenLake-v0 --device cpu --dialogue no_think --seed 3 --episodes 32 --epochs 2 --batch 8"
    " --checkpoint-every 3"
)


@pytest.fixture
def interrupted_training(warm_model: Path, tmp_path: Path) -> Path:
    """Return the folder of a training run that was interrupted after its first of two updates."""
    from arboretum.trainers.trainer import Trainer

    config = parse(TrainOptions, f"{TRAIN} --model {warm_model} --out {tmp_path / 'run'}")
    claim_run_folder(config, resume=False)
    for record in Trainer(config).run():
        if record.metrics["update"] == 1:
            break
    return config.out


@pytest.fixture
def interrupted_fine_tuning(warm_model: Path, tmp_path: Path) -> Path:
    """Return the folder of a fine-tuning run that was interrupted after its fifth of eight steps."""
    from arboretum.trainers.sft import SFTTrainer

    config = parse(SFTOptions, f"{SFT} --model {warm_model} --out {tmp_path / 'run'}")
    claim_run_folder(config, resume=False)
    for record in SFTTrainer(config).run():
        if record["step"] == 5:
            break
    return config.out


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
def test_moved_training_run_continues_and_is_prolonged(
    interrupted_training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uninterrupted = tmp_path / "uninterrupted"
    settings = read_config(interrupted_training, TrainingConfig)
    moved = Path(shutil.move(interrupted_training, tmp_path / "moved"))
    assert run_command(f"train --resume {moved}") == 0
    assert steps(moved) == [0, 1, 2] and (moved / "model" / "model.safetensors").exists()
    assert f"Model: {moved / 'model'}" in capsys.readouterr().out
    assert read_config(moved, TrainingConfig) == dataclasses.replace(settings, out=moved)

    assert run_command(f"train {TRAIN} --model {settings.model} --out {uninterrupted}") == 0
    resumed, expected = (
        [
            {name: value for name, value in json.loads(line).items() if "second" not in name}
            for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        for folder in (moved, uninterrupted)
    )
    assert resumed == expected

    assert run_command(f"train --resume {moved} --set optimization.updates=3") == 0
    assert steps(moved) == [0, 1, 2, 3]


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
def test_run_without_a_reference_is_resumed_without_its_initial_model(
    warm_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, model = tmp_path / "run", tmp_path / "model"
    shutil.copytree(warm_model, model)
    assert run_command(f"train dr_{TRAIN} --model {model} --out {run}") == 0
    model.rename(tmp_path / "moved")
    assert run_command(f"train --resume {run} --set optimization.updates=3") == 0
    assert steps(run) == [0, 1, 2, 3]
    shutil.rmtree(run / "checkpoints")
    shutil.rmtree(run / "model")
    assert "there is no such folder" in error_of(f"train --resume {run}", capsys)
    (tmp_path / "moved").rename(model)
    assert run_command(f"train --resume {run}") == 0
    assert "holds no checkpoint; starting again from update 0." in capsys.readouterr().out
    assert steps(run) == [0, 1, 2, 3]


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
def test_moved_fine_tuning_run_continues_and_is_finished_once(
    interrupted_fine_tuning: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = Path(shutil.move(interrupted_fine_tuning, tmp_path / "moved"))
    assert run_command(f"sft --resume {moved}") == 0
    assert steps(moved, "step") == [*range(1, 9)] and (moved / "model" / "model.safetensors").exists()
    before = (moved / "model" / "model.safetensors").read_bytes()
    capsys.readouterr()
    assert run_command(f"sft --resume {moved}") == 0
    assert "(finished before)" in capsys.readouterr().out
    assert (moved / "model" / "model.safetensors").read_bytes() == before


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
def test_options_of_the_whole_run_replace_lost_settings_of_training(
    interrupted_training: Path, warm_model: Path
) -> None:
    settings = (interrupted_training / "run.json").read_bytes()
    (interrupted_training / "run.json").unlink()
    assert run_command(f"train {TRAIN} --model {warm_model} --resume {interrupted_training}") == 0
    assert (interrupted_training / "run.json").read_bytes() == settings
    assert steps(interrupted_training) == [0, 1, 2]


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
def test_options_of_the_whole_run_replace_lost_settings_of_fine_tuning(
    interrupted_fine_tuning: Path, warm_model: Path
) -> None:
    settings = (interrupted_fine_tuning / "run.json").read_bytes()
    (interrupted_fine_tuning / "run.json").unlink()
    assert run_command(f"sft {SFT} --model {warm_model} --resume {interrupted_fine_tuning}") == 0
    assert (interrupted_fine_tuning / "run.json").read_bytes() == settings
    assert steps(interrupted_fine_tuning, "step") == [*range(1, 9)]


def test_recipe_of_a_plugin_keeps_its_stored_settings_however_it_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from dataclasses import replace\nfrom arboretum.trainers.algorithms.recipes import RECIPES\n"
    (tmp_path / "spelled.py").write_text(source + "MINE = replace(RECIPES['grpo'], name='my_recipe')\n")
    monkeypatch.syspath_prepend(tmp_path)
    stored = dataclasses.replace(
        training(tmp_path / "run"), recipe=get_recipe("spelled:MINE").with_settings({"sampler.rollouts": 4})
    )
    options = TrainOptions(resume=tmp_path / "run")
    assert options.config("spelled:MINE", stored).recipe == stored.recipe == options.config(None, stored).recipe
