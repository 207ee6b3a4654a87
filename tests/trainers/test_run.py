"""Whose folder it is: a run's folder is never taken over by another run, and what was lost can be told again."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.checkpoints.run_folder import claim_run_folder
from arboretum.trainers.config.resolve import resolve_dialogue
from arboretum.trainers.config.run import SFTConfig, TrainingConfig
from arboretum.trainers.config.settings import DialogueConfig, EnvConfig

LAKE = EnvConfig("TextFrozenLake-v0")


def run(out: Path) -> TrainingConfig:
    return TrainingConfig(RECIPES["grpo"], LAKE, "sapling", out)


def sft_config(out: Path) -> SFTConfig:
    return SFTConfig(LAKE, "sapling", out)


def begin(one: TrainingConfig | SFTConfig, *, model: bool = False, checkpoint: int | None = None) -> None:
    """Leave in a run's folder what it would leave there."""
    claim_run_folder(one, resume=False)
    if checkpoint is not None:
        (one.out / "checkpoints" / f"update-{checkpoint:06d}").mkdir(parents=True)
    if model:
        (one.out / "model").mkdir()


@pytest.mark.parametrize(("first", "second"), [(sft_config, run), (run, sft_config)])
@pytest.mark.parametrize("left", [{"model": True}, {"checkpoint": 3}])
def test_a_folder_of_another_kind_of_run_is_left_alone(
    first: Callable[[Path], Any], second: Callable[[Path], Any], left: dict[str, Any], tmp_path: Path
) -> None:
    """Above all the warm start: training into its folder would replace the model that it starts from."""
    begin(first(tmp_path), **left)
    before = (tmp_path / "run.json").read_bytes()
    for resume in (False, True):
        with pytest.raises(ConfigurationError, match="another kind of run"):
            claim_run_folder(second(tmp_path), resume=resume)
    assert (tmp_path / "run.json").read_bytes() == before


@pytest.mark.parametrize("kind", [run, sft_config])
@pytest.mark.parametrize("left", [{"model": True}, {"checkpoint": 3}])
def test_what_has_begun_is_only_resumed_and_only_as_it_was(
    kind: Callable[[Path], Any], left: dict[str, Any], tmp_path: Path
) -> None:
    begin(kind(tmp_path), **left)
    with pytest.raises(ConfigurationError, match="continue it with --resume"):
        claim_run_folder(kind(tmp_path), resume=False)
    with pytest.raises(ConfigurationError, match="started with another seed"):
        claim_run_folder(dataclasses.replace(kind(tmp_path), seed=7), resume=True)
    claim_run_folder(kind(tmp_path), resume=True)


def test_a_model_of_nobodys_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigurationError, match="a model that belongs to no run"):
        claim_run_folder(run(tmp_path), resume=True)


@pytest.mark.parametrize("content", ["", '{"recipe":', "null", "3", "[]"])
def test_settings_that_were_lost_can_be_told_again(content: str, tmp_path: Path) -> None:
    begin(run(tmp_path), checkpoint=3)
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(DataError, match="delete the file and pass --resume"):
        claim_run_folder(run(tmp_path), resume=True)
    (tmp_path / "run.json").unlink()
    with pytest.raises(ConfigurationError, match="continue it with --resume"):
        claim_run_folder(run(tmp_path), resume=False)
    claim_run_folder(run(tmp_path), resume=True)
    assert json.loads((tmp_path / "run.json").read_text())["recipe"]["name"] == "grpo"


def test_settings_are_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    """A run is prolonged while the disk is full (the real thing: files may not grow): what was there stays."""
    pytest.importorskip("resource", reason="limits on files exist on POSIX systems only")
    begin(run(tmp_path), checkpoint=3)
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
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    claim_run_folder(TrainingConfig(recipe, EnvConfig("TextFrozenLake-v0"), "sapling", Path(sys.argv[1])),
    resume=True)
except ConfigurationError as error:
    sys.exit(str(error))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1 and "cannot be written to (File too large)" in done.stderr
    assert (tmp_path / "run.json").read_bytes() == before


def test_what_is_said_goes_over_what_a_recipe_says() -> None:
    thinks = RECIPES["starpo"].sampler
    assert thinks.think and thinks.max_turns is not None
    assert resolve_dialogue(DialogueConfig(), thinks).name == "think"
    said = resolve_dialogue(DialogueConfig("no_think", {"max_turns": thinks.max_turns + 2}), thinks)
    assert (said.name, said.max_turns) == ("no_think", thinks.max_turns + 2)
    silent = dataclasses.replace(thinks, think=False)
    assert resolve_dialogue(DialogueConfig(), silent).name == "no_think"
