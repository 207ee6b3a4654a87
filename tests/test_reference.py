"""The reference pages: equal to the code, complete, and true of the files that commands write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

import arboretum
from arboretum.agents.engines.registry import ENGINES
from arboretum.cli import main
from arboretum.envs.data_sources import DATA_SOURCES
from arboretum.envs.docstrings import Field, fields_of, meanings
from arboretum.eval.file_schemas import RUN_FILE, episode_keys
from arboretum.eval.suite import load_suite, parse_suite
from arboretum.trainers.algorithms.overrides import apply_overrides
from arboretum.trainers.algorithms.recipe import Recipe
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.algorithms.registry import CREDITS, SAMPLERS, SELECTORS
from arboretum.trainers.config.serialize import flatten, to_plain
from arboretum.trainers.reporting.metric_names import SFT_METRICS, TRAINING_METRICS
from arboretum.trainers.study.parsing import parse_study
from arboretum.trainers.study.reference_definitions import STUDY_EXAMPLE, SUITE_EXAMPLE
from arboretum.trainers.study.reference_pages import reference_pages

ROOT = Path(arboretum.__file__).parent
PAGES = dict(reference_pages())


def test_stored_pages_are_up_to_date(tmp_path: Path) -> None:
    folder = ROOT / "docs" / "reference"
    assert {path.name for path in folder.iterdir()} == set(PAGES)
    for name, text in PAGES.items():
        assert (folder / name).read_text(encoding="utf-8") == text, f"docs/reference/{name}: run `make docs`"
    with pytest.raises(SystemExit) as ended:
        main(["docs", "--write", str(tmp_path)])
    assert ended.value.code == 0
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == PAGES


def rows(page: str) -> Iterator[list[str]]:
    """Yield the cells of the table rows of a page, without headings."""
    for line in PAGES[page].splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.mark.parametrize("page", PAGES)
def test_every_row_has_a_meaning_of_its_own(page: str) -> None:
    without = [cells[0] for cells in rows(page) if not cells[1 if len(cells) < 4 else 3]]
    assert not without, f"docs/reference/{page}: no meaning for {', '.join(without)}; add it to the docstring"
    references = [cells[0] for cells in rows(page) if cells[-1].startswith("See `")]
    assert not references, f"docs/reference/{page}: {', '.join(references)} refer to other docstrings"


# ---------------------------------------------------------------------- settings


def paths_of(value: Any, path: str) -> Iterator[str]:
    """Yield the paths of all settings below a dataclass, as `--set` takes them."""
    for field in fields(value):
        inner, here = getattr(value, field.name), f"{path}.{field.name}"
        if is_dataclass(inner):
            yield from paths_of(inner, here)
        elif field.init:
            yield here


def test_every_setting_of_every_recipe_and_part_is_listed() -> None:
    listed = {cells[0].strip("`") for cells in rows("settings.md")}
    parts = [field.name for field in fields(Recipe) if field.name not in ("name", "about")]
    needed = {
        path
        for recipe in RECIPES.values()
        for part in parts
        if getattr(recipe, part) is not None
        for path in paths_of(getattr(recipe, part), part)
    }
    for part, kinds in (("sampler", SAMPLERS), ("selector", SELECTORS), ("credit", CREDITS)):
        needed |= {f"{part}.{field.name}" for kind in kinds.values() for field in fields(kind)}
    assert len(needed) > 60 and needed <= listed


def test_listed_defaults_are_those_of_a_recipe_without_changes() -> None:
    grpo = flatten(to_plain(RECIPES["grpo"].optimization), "optimization")
    changed = next(cells[1] for cells in rows("settings.md") if cells[0] == "`grpo`")
    stated = {cells[0].strip("`"): cells[2].strip("`") for cells in rows("settings.md") if len(cells) == 4}
    for path, value in grpo.items():
        if f"`{path}=" not in changed:
            assert json.loads(stated[path]) == value if not isinstance(value, str) else stated[path] == value


@pytest.mark.parametrize("recipe", RECIPES)
def test_changes_of_a_recipe_can_be_set_and_change_nothing_more(recipe: str) -> None:
    """Taken as `--set` options, the listed settings of a recipe give the recipe itself."""
    from arboretum.eval.options import parse_options

    (text,) = [cells[1] for cells in rows("settings.md") if cells[0] == f"`{recipe}`"]
    settings = parse_options(re.findall(r"`([a-z_.]+=[^`]+)`", text), "--set")
    assert to_plain(apply_overrides(RECIPES[recipe], settings)) == to_plain(RECIPES[recipe])


def test_every_engine_option_is_listed() -> None:
    sections = re.split(r"^## Engine `(.+)`$", PAGES["engines.md"], flags=re.MULTILINE)[1:]
    assert sections[::2] == list(ENGINES)
    by_engine = dict(zip(sections[::2], sections[1::2], strict=True))
    assert "`cost_limit`" in by_engine["openai"] and "`prices`" in by_engine["vllm-server"]
    assert "`max_batch`" in by_engine["transformers"] and "`gpu_memory_utilization`" in by_engine["vllm"]


# ---------------------------------------------------------------------- definitions and data


def test_examples_of_definitions_are_read() -> None:
    suite = parse_suite(SUITE_EXAMPLE, "mine.yaml")
    assert [entry.name for entry in suite.entries] == ["TextSokoban-v0", "TextBandit-v0"]
    assert list(parse_study(STUDY_EXAMPLE, "mine.yaml").recipes) == ["grpo", "ppo"]


def test_every_data_source_names_an_environment_and_a_suite_of_it() -> None:
    for source in DATA_SOURCES:
        suite = load_suite(source.check.removeprefix("arboretum eval "))
        assert {entry.env for entry in suite.entries} == {source.env}
        assert f"## `{source.folder}/`" in PAGES["data.md"]


def test_docstring_entries_are_parsed_with_groups_and_continuations() -> None:
    class Base:
        """Base.

        Attributes:
            a, b: Both
                on two lines.
            c: Last.

        Text with a colon: not an entry.
        """

    class Child(Base):
        """Child.

        Args:
            c: Changed.
        """

    assert meanings(Child) == {"a": "Both on two lines.", "b": "Both on two lines.", "c": "Changed."}
    assert fields_of(Field)[0] == Field("name", "text", "required", "Name of the field.")


# ---------------------------------------------------------------------- files of real runs


def test_files_of_an_evaluation_have_the_listed_keys(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(SystemExit):
        main(["eval", "quick", "--workers", "1", "--out", str(out)])
    manifest = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert list(manifest) == list(RUN_FILE)
    lines = (out / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    keys = {key for line in lines for key in json.loads(line)}
    assert keys == set(episode_keys()) - {"trials", "exchanges", "trace"}
    listed = {cells[0].strip("`") for cells in rows("files.md")}
    turn = json.loads(lines[0])["turns"][0]
    assert set(turn) | set(turn["moves"][0]) <= listed
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert set(summary) | set(summary["lines"][0]) <= listed


def undocumented(path: Path, listed: Mapping[str, str]) -> set[str]:
    keys = {key for line in path.read_text(encoding="utf-8").splitlines() for key in json.loads(line)}
    return {key for key in keys if key not in listed and not key.startswith("term/")}


@pytest.mark.parametrize("recipe", ["ppo", "gigpo"])
def test_metrics_of_a_training_run_are_listed(recipe: str, tmp_path: Path) -> None:
    for module in ("torch", "accelerate"):
        pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum-rl[lm]'")
    settings = ["sampler.prompts=2", "sampler.rollouts=2", "sampler.reply_tokens=24", "optimization.updates=2"]
    settings += ["optimization.episodes_per_step=2", "objective.kl.coef=0.01"]
    arguments = ["train", recipe, "--env", "TextSokoban-v0", "--model", "sapling", "--dialogue", "no_think"]
    arguments += [f"--set={setting}" for setting in settings]
    arguments += ["--device", "cpu", "--validation.tasks", "2", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert undocumented(tmp_path / "run" / "metrics.jsonl", TRAINING_METRICS) == set()
    settings_of_run = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert set(settings_of_run) <= {cells[0].strip("`") for cells in rows("files.md")}


def test_metrics_of_fine_tuning_are_listed(tmp_path: Path) -> None:
    for module in ("torch", "accelerate"):
        pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum-rl[lm]'")
    arguments = ["sft", "--env", "TextSokoban-v0", "--model", "sapling", "--episodes", "8", "--batch", "4"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--epochs", "1", "--device", "cpu", "--out", str(tmp_path / "run")])
    assert ended.value.code == 0
    assert undocumented(tmp_path / "run" / "metrics.jsonl", SFT_METRICS) == set()
