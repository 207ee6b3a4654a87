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
from arboretum.trainers.config.run import Lesson, Run
from arboretum.trainers.config.settings import Speech, World
from arboretum.trainers.sampling.sampler import dialogue_of

LAKE = World("TextFrozenLake-v0")


def run(out: Path) -> Run:
    return Run(RECIPES["grpo"], LAKE, "sapling", out)


def lesson(out: Path) -> Lesson:
    return Lesson(LAKE, "sapling", out)


def begin(one: Run | Lesson, *, model: bool = False, checkpoint: int | None = None) -> None:
    """Leave in a run's folder what it would leave there."""
    one.claim(resume=False)
    if checkpoint is not None:
        (one.out / "checkpoints" / f"update-{checkpoint:06d}").mkdir(parents=True)
    if model:
        (one.out / "model").mkdir()


@pytest.mark.parametrize(("first", "second"), [(lesson, run), (run, lesson)])
@pytest.mark.parametrize("left", [{"model": True}, {"checkpoint": 3}])
def test_a_folder_of_another_kind_of_run_is_left_alone(
    first: Callable[[Path], Any], second: Callable[[Path], Any], left: dict[str, Any], tmp_path: Path
) -> None:
    """Above all the warm start: training into its folder would replace the model that it starts from."""
    begin(first(tmp_path), **left)
    before = (tmp_path / "run.json").read_bytes()
    for resume in (False, True):
        with pytest.raises(ConfigurationError, match="another kind of run"):
            second(tmp_path).claim(resume=resume)
    assert (tmp_path / "run.json").read_bytes() == before


@pytest.mark.parametrize("kind", [run, lesson])
@pytest.mark.parametrize("left", [{"model": True}, {"checkpoint": 3}])
def test_what_has_begun_is_only_resumed_and_only_as_it_was(
    kind: Callable[[Path], Any], left: dict[str, Any], tmp_path: Path
) -> None:
    begin(kind(tmp_path), **left)
    with pytest.raises(ConfigurationError, match="say --resume"):
        kind(tmp_path).claim(resume=False)
    with pytest.raises(ConfigurationError, match="begun with another seed"):
        dataclasses.replace(kind(tmp_path), seed=7).claim(resume=True)
    kind(tmp_path).claim(resume=True)


def test_a_model_of_nobodys_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigurationError, match="a model that is no run's"):
        run(tmp_path).claim(resume=True)


@pytest.mark.parametrize("content", ["", '{"recipe":', "null", "3", "[]"])
def test_settings_that_were_lost_can_be_told_again(content: str, tmp_path: Path) -> None:
    begin(run(tmp_path), checkpoint=3)
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(DataError, match="delete it and say --resume"):
        run(tmp_path).claim(resume=True)
    (tmp_path / "run.json").unlink()
    with pytest.raises(ConfigurationError, match="say --resume"):
        run(tmp_path).claim(resume=False)
    run(tmp_path).claim(resume=True)
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
from arboretum.trainers.config.run import Run
from arboretum.trainers.config.settings import World
recipe = RECIPES["grpo"].changed({"optimisation.updates": 999})
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    Run(recipe, World("TextFrozenLake-v0"), "sapling", Path(sys.argv[1])).claim(resume=True)
except ConfigurationError as error:
    sys.exit(str(error))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1 and "cannot be written to (File too large)" in done.stderr
    assert (tmp_path / "run.json").read_bytes() == before


def test_what_is_said_goes_over_what_a_recipe_says() -> None:
    thinks = RECIPES["starpo"].sampler
    assert thinks.think and thinks.max_turns is not None
    assert dialogue_of(Speech(), thinks).name == "think"
    said = dialogue_of(Speech("no_think", {"max_turns": thinks.max_turns + 2}), thinks)
    assert (said.name, said.max_turns) == ("no_think", thinks.max_turns + 2)
    silent = dataclasses.replace(thinks, think=False)
    assert dialogue_of(Speech(), silent).name == "no_think"
