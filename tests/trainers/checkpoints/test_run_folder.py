"""A run never takes over the folder of another run, and lost settings can be passed again."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import arboretum
from arboretum.cli import main
from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.checkpoints.run_folder import claim_run_folder, read_config, sole_writer, undo_if_refused
from arboretum.trainers.config.run import SFTConfig, TrainingConfig
from arboretum.trainers.config.serialize import from_plain, to_plain
from arboretum.trainers.config.settings import EnvConfig, HardwareConfig, LoraConfig

LAKE = EnvConfig("TextFrozenLake-v0")


def training(out: Path) -> TrainingConfig:
    return TrainingConfig(RECIPES["grpo"], LAKE, "sapling", out)


def fine_tuning(out: Path) -> SFTConfig:
    return SFTConfig(LAKE, "sapling", out)


def start(config: TrainingConfig | SFTConfig, *, model: bool = False, checkpoint: int | None = None) -> None:
    """Write the files that a run leaves in its folder: its settings, and a model or a checkpoint."""
    claim_run_folder(config, resume=False)
    if checkpoint is not None:
        (config.out / "checkpoints" / f"update-{checkpoint:06d}").mkdir(parents=True)
    if model:
        (config.out / "model").mkdir()


@pytest.mark.parametrize(("first", "second"), [(fine_tuning, training), (training, fine_tuning)])
@pytest.mark.parametrize("result", [{"model": True}, {"checkpoint": 3}])
def test_folder_of_another_kind_of_run_is_left_unchanged(
    first: Callable[[Path], Any], second: Callable[[Path], Any], result: dict[str, Any], tmp_path: Path
) -> None:
    """Training into the folder of its own warm start would replace the model that it starts from."""
    start(first(tmp_path), **result)
    before = (tmp_path / "run.json").read_bytes()
    for resume in (False, True):
        with pytest.raises(ConfigurationError, match="another kind of run"):
            claim_run_folder(second(tmp_path), resume=resume)
    assert (tmp_path / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    ["train grpo --env TextFrozenLake-v0 --model sapling", "sft --env TextFrozenLake-v0 --model sapling", "train"],
)
def test_folder_that_another_process_writes_is_refused(
    arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    start(training(folder), checkpoint=3)
    before = (folder / "run.json").read_bytes()
    option = "--resume" if arguments == "train" else "--out"
    with FileLock(folder / ".lock"), pytest.raises(SystemExit) as ended:
        main([*arguments.split(), option, str(folder)])
    sentence = f"arboretum: {folder}: another process is writing this run; wait for it, or choose another --out."
    assert ended.value.code == 2 and capsys.readouterr().err.splitlines()[-1] == sentence
    assert (folder / "run.json").read_bytes() == before


def test_training_from_python_in_a_folder_that_another_process_writes_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    start(training(folder), checkpoint=3)
    before = (folder / "run.json").read_bytes()
    for options in ({"resume": folder}, {"recipe": "grpo", "env": LAKE.id, "model": "sapling", "out": folder}):
        with (
            FileLock(folder / ".lock"),
            pytest.raises(ConfigurationError, match="another process is writing this run"),
        ):
            arboretum.train(**options)  # type: ignore[arg-type]
    assert (folder / "run.json").read_bytes() == before


@pytest.mark.parametrize("arguments", ["trees", "trees --gradients 2", "credit"])
def test_study_in_a_folder_that_another_process_writes_is_refused(
    arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FileLock(tmp_path / ".lock"), pytest.raises(SystemExit) as ended:
        main(["study", *arguments.split(), "--out", str(tmp_path)])
    assert ended.value.code == 2 and f"{tmp_path}: another process is writing this run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows deletes no file that is open")
def test_process_that_waits_for_the_end_of_a_run_locks_out_a_third_one(tmp_path: Path) -> None:
    """The lock's file was deleted at the end of the run, after which two processes held it."""
    import fcntl

    with sole_writer(tmp_path):
        second = (tmp_path / ".lock").open()
    with second:
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(ConfigurationError, match="another process is writing"), sole_writer(tmp_path):
            pass


@pytest.mark.parametrize(("setting", "is_end"), [("max_tokens", True), ("updates", True), ("lr", False)])
def test_ends_of_a_run_may_be_moved_when_it_is_resumed(setting: str, is_end: bool, tmp_path: Path) -> None:
    config = training(tmp_path)
    start(config, checkpoint=3)
    changed = config.recipe.with_settings({f"optimization.{setting}": {"lr": 0.5}.get(setting, 4000)})
    resumed = dataclasses.replace(config, recipe=changed)
    if is_end:
        claim_run_folder(resumed, resume=True)
    else:
        with pytest.raises(ConfigurationError, match=r"optimization\.lr was"):
            claim_run_folder(resumed, resume=True)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows reports a path below a file as missing")
@pytest.mark.parametrize("arguments", ["train grpo --env TextFrozenLake-v0", "sft --env TextFrozenLake-v0"])
@pytest.mark.parametrize("name", ["notes.txt", "notes.txt/run"])
def test_file_in_the_place_of_the_folder_is_reported(
    arguments: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    command, *rest = arguments.split()
    for options in ([*rest, "--model", "sapling", "--out"], ["--resume"]):
        with pytest.raises(SystemExit) as ended:
            main([command, *options, str(tmp_path / name)])
        lines = capsys.readouterr().err.splitlines()
        assert ended.value.code == 2
        assert lines[-1] == f"arboretum: {tmp_path / name}: is a file, or below one; name a folder."
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_report_of_a_study_is_not_replaced_by_that_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="holds a study"):
        claim_run_folder(training(tmp_path), resume=False)


@pytest.mark.parametrize("kind", [training, fine_tuning])
@pytest.mark.parametrize("resume", [False, True])
def test_folder_of_an_evaluation_run_is_left_unchanged(
    kind: Callable[[Path], Any], resume: bool, tmp_path: Path
) -> None:
    """Its episodes belong to the settings in its run.json, and could not be read without them."""
    arboretum.evaluate("TextBandit-v0", "random", limit=2, out=tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(ConfigurationError, match="holds an evaluation run"):
        claim_run_folder(kind(tmp_path), resume=resume)
    assert (tmp_path / "run.json").read_bytes() == before


@pytest.mark.parametrize("kind", [training, fine_tuning])
@pytest.mark.parametrize("result", [{"model": True}, {"checkpoint": 3}])
def test_started_run_is_only_resumed_and_only_with_its_settings(
    kind: Callable[[Path], Any], result: dict[str, Any], tmp_path: Path
) -> None:
    tmp_path = tmp_path / "my run"
    start(kind(tmp_path), **result)
    with pytest.raises(ConfigurationError, match=re.escape(f"continue it with --resume '{tmp_path}' (")):
        claim_run_folder(kind(tmp_path), resume=False)
    with pytest.raises(ConfigurationError, match="started with another seed"):
        claim_run_folder(dataclasses.replace(kind(tmp_path), seed=7), resume=True)
    claim_run_folder(kind(tmp_path), resume=True)


def test_run_is_not_resumed_with_fewer_updates_than_it_has_made(tmp_path: Path) -> None:
    config = training(tmp_path)

    def planned(updates: int) -> TrainingConfig:
        return dataclasses.replace(config, recipe=config.recipe.with_settings({"optimization.updates": updates}))

    start(planned(20), checkpoint=12)
    message = r"has made 12 updates, more than optimization.updates=11; set it to 12 or more, or leave it out\.$"
    with pytest.raises(ConfigurationError, match=message):
        claim_run_folder(planned(11), resume=True)
    assert read_config(tmp_path, TrainingConfig) == planned(20)
    claim_run_folder(planned(12), resume=True)


@pytest.mark.parametrize("kind", [training, fine_tuning])
def test_run_without_a_checkpoint_is_resumed_only_with_its_settings_but_may_start_anew(
    kind: Callable[[Path], Any], tmp_path: Path
) -> None:
    start(kind(tmp_path))
    other = dataclasses.replace(kind(tmp_path), seed=7)
    with pytest.raises(ConfigurationError, match=r"started with another seed \(it was 0 and is 7\)"):
        claim_run_folder(other, resume=True)
    with pytest.raises(ConfigurationError, match="another kind of run"):
        claim_run_folder((fine_tuning if kind is training else training)(tmp_path), resume=True)
    assert read_config(tmp_path, type(other)) == kind(tmp_path)
    claim_run_folder(other, resume=False)  # Nothing has been saved that could be lost.
    assert read_config(tmp_path, type(other)) == other


def test_another_learning_rate_of_fine_tuning_is_refused_with_both_values(tmp_path: Path) -> None:
    config = fine_tuning(tmp_path)
    claim_run_folder(config, resume=False)
    claim_run_folder(config, resume=False)  # The run has saved nothing yet that could be lost.
    start(config, checkpoint=1)
    other = dataclasses.replace(config, sft=dataclasses.replace(config.sft, lr=0.1))
    with pytest.raises(ConfigurationError, match=r"started with another sft \(lr was 1e-05 and is 0.1\)"):
        claim_run_folder(other, resume=True)


@pytest.mark.parametrize("kind", [training, fine_tuning])
def test_run_may_be_resumed_on_other_hardware(kind: Callable[[Path], Any], tmp_path: Path) -> None:
    start(kind(tmp_path), checkpoint=3)
    moved = dataclasses.replace(kind(tmp_path), hardware=HardwareConfig("cpu", "bfloat16", microbatch_tokens=99))
    claim_run_folder(moved, resume=True)
    assert read_config(tmp_path, type(moved)) == moved


def test_model_without_a_run_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigurationError, match="a model that belongs to no run"):
        claim_run_folder(training(tmp_path), resume=True)


@pytest.mark.parametrize(
    ("kind", "name"), [(training, "metrics.jsonl"), (training, "report.html"), (fine_tuning, "metrics.jsonl")]
)
def test_files_of_somebody_else_are_not_replaced(name: str, kind: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigurationError, match=f"holds {name}, which belongs to no run; choose another --out"):
        claim_run_folder(kind(tmp_path), resume=False)
    assert (tmp_path / name).read_text() == "mine"


def test_file_that_fine_tuning_does_not_write_is_in_nobody_s_way(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    claim_run_folder(fine_tuning(tmp_path), resume=False)
    assert (tmp_path / "report.html").read_text() == "mine"


@pytest.mark.parametrize("kind", [training, fine_tuning])
def test_stored_settings_are_read_back_unchanged_from_a_moved_folder(
    kind: Callable[[Path], Any], tmp_path: Path
) -> None:
    config = dataclasses.replace(
        kind(tmp_path / "before"), seed=7, env=EnvConfig("TextFrozenLake-v0", {"size": 5})
    )
    claim_run_folder(config, resume=False)
    (tmp_path / "before").rename(tmp_path / "after")
    assert read_config(tmp_path / "after", type(config)) == dataclasses.replace(config, out=tmp_path / "after")


@pytest.mark.parametrize("recipe", [*RECIPES, None])
def test_settings_have_the_same_text_after_they_were_read(recipe: str | None, tmp_path: Path) -> None:
    """A default of 64 in the place of 64.0 became another setting of a resumed run."""
    config: Any = fine_tuning(tmp_path) if recipe is None else training(tmp_path)
    if recipe is not None:
        config = dataclasses.replace(config, recipe=RECIPES[recipe])
    config = dataclasses.replace(config, hardware=HardwareConfig(lora=LoraConfig()))
    before = to_plain(config)
    assert json.dumps(to_plain(from_plain(type(config), before))) == json.dumps(before)


def test_settings_of_another_version_are_reported_with_the_unknown_setting(tmp_path: Path) -> None:
    claim_run_folder(training(tmp_path), resume=False)
    settings = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**settings, "weather": "fine"}))
    with pytest.raises(DataError, match=r"written by another version of Arboretum .*'weather'"):
        read_config(tmp_path, TrainingConfig)


def test_part_of_a_module_that_is_not_found_is_named_with_the_fix(tmp_path: Path) -> None:
    claim_run_folder(training(tmp_path), resume=False)
    settings = json.loads((tmp_path / "run.json").read_text())
    settings["recipe"]["credit"] = {"name": "no_such_module:Mine"}
    (tmp_path / "run.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigurationError, match=r"no_such_module:Mine cannot be imported: .*; run it in"):
        read_config(tmp_path, TrainingConfig)


@pytest.mark.parametrize("content", ["", '{"recipe":', "null", "3", "[]"])
def test_damaged_settings_can_be_deleted_and_passed_again(content: str, tmp_path: Path) -> None:
    start(training(tmp_path), checkpoint=3)
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(DataError, match="delete the file and pass --resume"):
        claim_run_folder(training(tmp_path), resume=True)
    (tmp_path / "run.json").unlink()
    with pytest.raises(ConfigurationError, match="continue it with --resume"):
        claim_run_folder(training(tmp_path), resume=False)
    claim_run_folder(training(tmp_path), resume=True)
    assert json.loads((tmp_path / "run.json").read_text())["recipe"]["name"] == "grpo"


def test_full_disk_leaves_the_stored_settings_unchanged(tmp_path: Path) -> None:
    """A run is prolonged while the operating system lets no file grow."""
    pytest.importorskip("resource", reason="limits on files exist on POSIX systems only")
    start(training(tmp_path), checkpoint=3)
    before = (tmp_path / "run.json").read_bytes()
    code = """
import resource, sys
from pathlib import Path
from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.checkpoints.run_folder import claim_run_folder
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import EnvConfig
recipe = RECIPES["grpo"].with_settings({"optimization.updates": 999})
config = TrainingConfig(recipe, EnvConfig("TextFrozenLake-v0"), "sapling", Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    claim_run_folder(config, resume=True)
except ConfigurationError as error:
    sys.exit(str(error))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1 and "cannot be written to (File too large)" in done.stderr
    assert (tmp_path / "run.json").read_bytes() == before


@pytest.mark.parametrize("command", ["train grpo", "sft"])
def test_refused_start_leaves_no_folder_behind(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("accelerate")
    arguments = f"{command} --env TextFrozenLake-v0 --model sapling --device cpu --template nosuch"
    with pytest.raises(SystemExit) as ended:
        main([*arguments.split(), "--out", str(tmp_path / "runs" / "first")])
    assert ended.value.code == 2 and "unknown chat template 'nosuch'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(SystemExit):
        main([*arguments.split(), "--out", str(tmp_path / "mine")])
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == [".lock", "notes.txt"]


def test_refused_continuation_leaves_the_settings_of_the_run(tmp_path: Path) -> None:
    start(training(tmp_path), checkpoint=1)
    before = (tmp_path / "run.json").read_bytes()
    config = dataclasses.replace(training(tmp_path), checkpoint_every=3)
    with pytest.raises(ConfigurationError, match="no"), undo_if_refused(config):
        claim_run_folder(config, resume=True)
        assert (tmp_path / "run.json").read_bytes() != before
        raise ConfigurationError("no")
    assert (tmp_path / "run.json").read_bytes() == before and (tmp_path / "checkpoints").is_dir()


@pytest.mark.parametrize("other", ["checkpoint", "settings", "rank"])
def test_refused_start_leaves_what_another_process_wrote(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = training(tmp_path / "run")
    if other == "rank":
        monkeypatch.setenv("RANK", "1")
    with pytest.raises(ConfigurationError, match="no"), undo_if_refused(config):
        claim_run_folder(config, resume=False)
        if other == "checkpoint":
            (config.out / "checkpoints" / "update-000001").mkdir(parents=True)
        if other == "settings":
            claim_run_folder(dataclasses.replace(config, seed=1), resume=False)
        raise ConfigurationError("no")
    assert read_config(config.out, TrainingConfig).seed == (1 if other == "settings" else 0)
