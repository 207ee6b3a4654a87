"""A run is not resumed on other data, and comparisons of runs on different data say so."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arboretum.cli import main
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.frozenlake import FrozenLake
from arboretum.envs.registry import make_env
from arboretum.envs.sokoban.env import Sokoban
from arboretum.eval.planning import describe_tasks
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.checkpoints.run_folder import claim_run_folder, read_config, undo_if_refused
from arboretum.trainers.config.run import SFTConfig, TrainingConfig
from arboretum.trainers.config.serialize import to_plain
from arboretum.trainers.config.settings import EnvConfig, ValidationConfig
from arboretum.trainers.reporting.comparison import compare_runs
from arboretum.trainers.reporting.report import describe_training
from arboretum.trainers.study.definition import Study, StudyEnv
from arboretum.trainers.study.runner import claim_folder, run_study

BOXOBAN = EnvConfig("TextBoxoban-v0")
FIX = "restore the data, with ARBORETUM_DATA set or unset as it was, or start again in another --out."


def training(out: Path, env: EnvConfig = BOXOBAN, **options: Any) -> TrainingConfig:
    return TrainingConfig(RECIPES["grpo"], env, "sapling", out, **options)


def fine_tuning(out: Path) -> SFTConfig:
    return SFTConfig(BOXOBAN, "sapling", out)


def start(config: TrainingConfig | SFTConfig) -> bytes:
    """Write the settings of a run, and an empty checkpoint; return the settings."""
    claim_run_folder(config, resume=False)
    (config.out / "checkpoints" / "update-000002").mkdir(parents=True)
    return (config.out / "run.json").read_bytes()


def write_levels(path: Path, count: int, column: int = 1) -> None:
    """Write a file of up to eight levels, which differ in the column of the player, `column` in the first."""
    levels = []
    for number in range(count):
        rows = ["##########", *["#   $.   #"] * 4, *["#        #"] * 4, "##########"]
        place = (column - 1 + number) % 8 + 1
        rows[6] = rows[6][:place] + "@" + rows[6][place + 1 :]
        levels.append(f"; {number}\n" + "\n".join(rows) + "\n\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(levels))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with files of levels, at which `ARBORETUM_DATA` points."""
    folder = tmp_path / "data" / "boxoban"
    write_levels(folder / "medium" / "train" / "000.txt", 8)
    write_levels(folder / "medium" / "valid" / "000.txt", 3)
    write_levels(folder / "medium" / "test" / "000.txt", 3)
    monkeypatch.setenv("ARBORETUM_DATA", str(tmp_path / "data"))
    return folder


@pytest.mark.parametrize("configure", [training, fine_tuning])
def test_run_on_files_is_not_resumed_on_generated_tasks(
    configure: Callable[[Path], Any], files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(tmp_path / "run")
    before = start(config)
    claim_run_folder(config, resume=True)
    assert (config.out / "run.json").read_bytes() == before
    monkeypatch.delenv("ARBORETUM_DATA")
    with pytest.raises(ConfigurationError) as refused, undo_if_refused(config):
        claim_run_folder(config, resume=True)
    sentence = f"{config.out}: was started on other data (train.TextBoxoban-v0 was "
    assert str(refused.value).startswith(f"{sentence}\"the benchmark's files (8 tasks, digest ")
    assert str(refused.value).endswith(f" and is 'generated levels'); {FIX}")
    assert (config.out / "run.json").read_bytes() == before


def test_command_refuses_files_for_a_run_on_generated_tasks(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("torch", "accelerate"):
        pytest.importorskip(module, reason="needs torch and accelerate: pip install 'arboretum-rl[lm]'")
    with monkeypatch.context() as without:
        without.delenv("ARBORETUM_DATA")
        before = start(training(tmp_path / "run"))
    with pytest.raises(SystemExit) as ended:
        main(["train", "--resume", str(tmp_path / "run")])
    error = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2
    assert error.startswith(f"arboretum: {tmp_path / 'run'}: was started on other data (train.TextBoxoban-v0 was ")
    assert "was 'generated levels' and is \"the benchmark's files (8 tasks, " in error and error.endswith(FIX)
    assert (tmp_path / "run" / "run.json").read_bytes() == before


@pytest.mark.parametrize(("split", "count", "column"), [("train", 8, 2), ("train", 7, 1), ("valid", 3, 2)])
def test_run_is_not_resumed_on_an_edited_file(
    split: str, count: int, column: int, files: Path, tmp_path: Path
) -> None:
    config = training(tmp_path / "run")
    start(config)
    write_levels(files / "medium" / split / "000.txt", count, column)
    name = {"valid": "validation"}.get(split, split)
    with pytest.raises(ConfigurationError, match=rf"was started on other data \({name}\.TextBoxoban-v0 was"):
        claim_run_folder(config, resume=True)


def test_validation_data_of_a_run_without_validation_is_not_compared(files: Path, tmp_path: Path) -> None:
    config = training(tmp_path / "run", validation=ValidationConfig(every=0))
    start(config)
    write_levels(files / "medium" / "valid" / "000.txt", 2)
    claim_run_folder(config, resume=True)
    assert list(json.loads((config.out / "run.json").read_text())["data"]) == ["train"]


def test_run_of_an_older_version_is_resumed_on_any_data(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = training(tmp_path / "run")
    settings = json.loads(start(config))
    del settings["data"]
    (config.out / "run.json").write_text(json.dumps(settings))
    monkeypatch.delenv("ARBORETUM_DATA")
    claim_run_folder(dataclasses.replace(config, checkpoint_every=3), resume=True)
    assert "data" not in json.loads((config.out / "run.json").read_text())
    assert read_config(config.out, TrainingConfig).checkpoint_every == 3


def test_data_is_stored_beside_the_settings_and_shown_in_the_report(files: Path, tmp_path: Path) -> None:
    large = EnvConfig("TextSokoban-v0", name="large")
    config = training(tmp_path / "run", mixture=(large, dataclasses.replace(BOXOBAN, name="box", tasks=2)))
    data = json.loads(start(config))["data"]
    assert {use: list(named) for use, named in data.items()} == {
        use: ["TextBoxoban-v0", "box"] for use in ("train", "validation")
    }
    assert read_config(config.out, TrainingConfig) == config
    shown = describe_training(config.out)["settings"]
    assert shown["data.validation.box"].startswith("the benchmark's files (3 tasks, digest ")


def test_tasks_that_are_generated_by_definition_are_not_described(tmp_path: Path) -> None:
    assert "data" not in json.loads(start(training(tmp_path / "run", EnvConfig("TextSokoban-v0"))))


class Live(FrozenLake):
    """Lakes whose first observation differs each time, as that of a page on the web."""

    openings = itertools.count()

    def __init__(self, count: int) -> None:
        super().__init__(split="train")
        self.tasks = [f"train/{number}" for number in range(count)]

    def reset(self, **options: Any) -> Any:
        observation, info = super().reset(**options)
        return f"{next(self.openings)} visitors\n{observation}", info


def test_observations_that_do_not_repeat_are_not_those_of_other_data() -> None:
    described = describe_tasks(Live(4))
    assert described is not None and "4 tasks, digest" in described
    assert describe_tasks(Live(4)) == described != describe_tasks(Live(5))


def test_digest_of_many_tasks_opens_few(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_env("TextSokoban-v0")
    opened: list[str] = []
    open_task = Sokoban._open
    monkeypatch.setattr(Sokoban, "_open", lambda self, task: [opened.append(task), open_task(self, task)][1])
    monkeypatch.setattr(env, "tasks", [f"train/{number}" for number in range(800_000)])
    described = describe_tasks(env)
    assert described is not None and described.startswith("tasks of the environment (800,000 tasks, digest ")
    assert 32 <= len(opened) <= 40 and "train/0" in opened and max(map(len, opened)) == len("train/700000")


def test_comparison_names_other_data_and_marks_validations_on_it(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [tmp_path / name for name in ("a", "b", "edited", "generated", "older")]
    for folder in runs[:2]:
        start(training(folder))
    write_levels(files / "medium" / "train" / "000.txt", 5)
    start(training(runs[2]))
    monkeypatch.delenv("ARBORETUM_DATA")
    settings = start(training(runs[3]))
    start(training(runs[4]))
    (runs[4] / "run.json").write_text(json.dumps({k: v for k, v in json.loads(settings).items() if k != "data"}))

    def compare(*folders: Path) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["compare", *map(str, folders)])
        assert ended.value.code == 0
        return " ".join(capsys.readouterr().out.split())

    assert "All settings are the same." in compare(runs[0], runs[1])
    assert "All settings are the same." in compare(runs[0], runs[4])
    shown = compare(runs[0], runs[3])
    assert "data.train.TextBoxoban-v0 the benchmark's files" in shown and "generated levels" in shown
    assert "The validations differ in data.validation.TextBoxoban-v0, so their rates are not comparable." in shown
    other_training_tasks = compare_runs([runs[0], runs[2]])
    assert list(other_training_tasks.differences) == ["data.train.TextBoxoban-v0"]
    assert other_training_tasks.caution == ""


def test_study_goes_on_only_with_the_data_of_its_results(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("torch", "accelerate"):
        pytest.importorskip(module, reason="needs torch and accelerate: pip install 'arboretum-rl[lm]'")
    out = tmp_path / "study"
    study = Study("x", "", "sapling", {"Boxes": StudyEnv(BOXOBAN)}, {"grpo": {}}, tasks=3, validation_tasks=2)
    claim_folder(study, out)
    before = (out / "study.json").read_bytes()
    assert list(json.loads(before)["data"]) == ["train", "test", "validation"]
    claim_folder(study, out)
    write_levels(files / "medium" / "test" / "000.txt", 3, 2)
    with pytest.raises(ConfigurationError, match=r"study: was started on other data \(test\.Boxes was .* and is"):
        claim_folder(study, out)
    monkeypatch.delenv("ARBORETUM_DATA")
    with pytest.raises(ConfigurationError) as refused:
        run_study(study, out, console=Console(file=StringIO()))
    assert f"{out}: was started on other data (train.Boxes was " in str(refused.value)
    assert str(refused.value).endswith(f" and is 'generated levels'); {FIX}")
    claim_folder(study, out, is_done=True)
    assert (out / "study.json").read_bytes() == before


def test_study_of_an_older_version_goes_on_without_data(files: Path, tmp_path: Path) -> None:
    study = Study("x", "", "sapling", {"Boxes": StudyEnv(BOXOBAN)}, {"grpo": {}})
    (tmp_path / "study.json").write_text(json.dumps(to_plain(study)))
    claim_folder(study, tmp_path)
    assert "data" not in json.loads((tmp_path / "study.json").read_text())


def test_environment_that_cannot_open_its_tasks_is_named_with_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed_env.py").write_text(
        "from arboretum.envs.bandit import Bandit\n"
        "class Closed(Bandit):\n"
        "    def _open(self, task):\n"
        "        raise OSError('no server')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    message = (
        r"closed_env:Closed cannot open its tasks: OSError: no server \(closed_env.py, line 4, in Closed._open\)"
    )
    with pytest.raises(ConfigurationError, match=message):
        start(training(tmp_path / "run", EnvConfig("closed_env:Closed"), validation=ValidationConfig(0)))
