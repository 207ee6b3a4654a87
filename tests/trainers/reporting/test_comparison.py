"""`arboretum compare`: training runs side by side."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from arboretum.cli import main
from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.config.run import SFTConfig, TrainingConfig
from arboretum.trainers.config.serialize import to_plain
from arboretum.trainers.config.settings import DialogueConfig, EnvConfig, ValidationConfig
from arboretum.trainers.reporting.comparison import compare_runs, write_comparison
from arboretum.trainers.reporting.report import run_kind


def validation(update: int, success: float) -> dict[str, float]:
    return {
        "update": update,
        "validation/success": success,
        "validation/low": success - 0.1,
        "validation/high": success + 0.1,
        "validation/return": success,
    }


def write_run(
    folder: Path, recipe: str, changes: dict[str, object], history: list[dict[str, float]], **options: Any
) -> Path:
    settings = RECIPES[recipe].with_settings({"optimization.updates": 20, **changes})
    config = TrainingConfig(settings, EnvConfig("TextFrozenLake-v0"), "M", folder, **options)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(to_plain(config)))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in history))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two finished runs and one in progress, which differ in a learning rate, the recipe and the seed."""
    training = [{"update": t, "success": t / 20, "entropy": 1.0 + t} for t in range(1, 21)]
    training[9] |= validation(10, 0.7)
    training[19] |= validation(20, 0.6)
    first = write_run(tmp_path / "a" / "run", "grpo", {}, [validation(0, 0.3), *training])
    second = write_run(tmp_path / "b" / "run", "grpo", {"optimization.lr": 0.25}, training[:5], seed=3)
    third = write_run(
        tmp_path / "c" / "other",
        "ppo",
        {},
        [
            validation(0, 0.3),
            *training,
        ],
    )
    return [first, second, third]


def test_differing_settings_validations_and_names_are_compared(runs: list[Path]) -> None:
    comparison = compare_runs(runs)
    assert comparison.names == ["a/run", "b/run", "c/other"]
    assert comparison.differences["recipe.optimization.lr"][1] == "0.25"
    assert comparison.differences["seed"] == ["0", "3", "0"]
    assert comparison.differences["recipe.name"] == ["grpo", "grpo", "ppo"]
    assert not {"out", "model", "recipe.about", "env.id"} & set(comparison.differences)
    first, second, _ = comparison.validations
    assert (first.done, first.total, second.done) == (20, 20, 5)
    assert first.before is not None and first.best is not None and first.last is not None
    assert (first.before.update, first.best.update, first.last.update) == (0, 10, 20)
    assert first.last.success == pytest.approx((0.6, 0.5, 0.7))
    assert second.before is second.best is second.last is None
    assert comparison.caution == ""


def test_command_prints_tables_and_curves_in_80_columns_and_writes_a_page(
    runs: list[Path], tmp_path: Path
) -> None:
    page = tmp_path / "comparison.html"
    command = [sys.executable, "-m", "arboretum.cli", "compare", *map(str, runs), "--out", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if str(page) not in line]
    assert max(map(len, lines)) <= 80
    text = done.stdout
    assert re.search(r"optimization\.lr +1e-06 +0\.25 +1e-06", text)
    assert "⠒A⠒ a/run" in text and "⠒C⠒ c/other" in text and "update 20" in text and text.count("●") >= 3
    drawn = "\n".join(line.partition("│")[2] or line.partition("┤")[2] for line in lines)
    assert [drawn.count(letter) for letter in "ABC"] == [1, 1, 1]  # at the ends of the lines
    assert re.search(
        r"a/run +30\.0 \[20\.0, 40\.0\] +70\.0 \[60\.0, 80\.0\] \(10\) +60\.0 \[50\.0, 70\.0\] \(20\)", text
    )
    assert re.search(r"b/run, 5 of 20 +– +– +–", text)


def test_page_overlays_the_curves_of_all_runs_in_their_colors(runs: list[Path], tmp_path: Path) -> None:
    write_comparison(compare_runs(runs), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    charts = re.findall(r"<h3>([^<]*)</h3>.*?(<svg.*?</svg>)", page, re.DOTALL)
    drawn = {
        title: re.findall(r'<polyline points="([^"]*)" style="stroke:var\(--s(\d)\)', svg) for title, svg in charts
    }
    assert [color for _, color in drawn["Success: training"]] == ["1", "2", "3"]
    assert [color for _, color in drawn["Success: held out"]] == ["1", "3"]  # the second run has no validation
    assert [len(points.split()) for points, _ in drawn["Success: training"]] == [20, 5, 20]
    assert [len(points.split()) for points, _ in drawn["Success: held out"]] == [3, 3]
    assert [len(points.split()) for points, _ in drawn["Entropy"]] == [20, 5, 20]
    assert "20.0 to 40.0" in page and "recipe.optimization.lr" in page
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page)


def test_name_that_is_not_unicode_is_written_with_a_replacement(runs: list[Path], tmp_path: Path) -> None:
    """A folder's name may have bytes that are no UTF-8, which Python represents by lone surrogates."""
    comparison = dataclasses.replace(compare_runs(runs), names=["a", "b\udcff", "c"])
    write_comparison(comparison, tmp_path / "page.html")
    assert "b\N{REPLACEMENT CHARACTER}" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_hostile_names_are_escaped(runs: list[Path], tmp_path: Path) -> None:
    settings = json.loads((runs[0] / "run.json").read_text())
    settings["model"] = "<script>alert(1)</script>[red]x[/red]"
    (runs[0] / "run.json").write_text(json.dumps(settings))
    comparison = compare_runs(runs)
    write_comparison(comparison, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page and html.escape(settings["model"]) in page
    assert comparison.differences["model"][0] == settings["model"]


@pytest.mark.parametrize(
    ("changes", "options", "cause"),
    [
        ({"sampler.temperature": 0.5}, {}, "recipe.sampler.temperature"),
        ({"sampler.reply_tokens": 7}, {}, "recipe.sampler.reply_tokens"),
        ({"sampler.max_turns": 7}, {}, "recipe.sampler.max_turns"),
        ({}, {"dialogue": DialogueConfig("react")}, "dialogue.name"),
        ({"sampler.temperature": 0.5}, {"validation": ValidationConfig(temperature=0.0)}, None),
        ({}, {"validation": ValidationConfig(tasks=256)}, None),
        ({"sampler.prompts": 7}, {}, None),
    ],
)
def test_validations_with_other_sampling_are_marked_as_not_comparable(
    changes: dict[str, object], options: dict[str, Any], cause: str | None, tmp_path: Path
) -> None:
    validation = options.get("validation", ValidationConfig())
    first = write_run(
        tmp_path / "a", "grpo", {}, [], validation=ValidationConfig(temperature=validation.temperature)
    )
    second = write_run(tmp_path / "b", "grpo", changes, [], **options)
    comparison = compare_runs([first, second])
    assert comparison.caution == (
        f"The validations differ in {cause}, so their rates are not comparable." if cause else ""
    )
    assert "validation.tasks" not in comparison.differences


def test_weights_matter_to_the_validations_of_mixtures_only(tmp_path: Path) -> None:
    lake = EnvConfig("TextFrozenLake-v0", name="lake")
    for name, mixture, caution in (("one", (), ""), ("two", (lake,), "differ in env.weight, so")):
        runs = [write_run(tmp_path / name / str(weight), "grpo", {}, [], mixture=mixture) for weight in (1.0, 3.0)]
        settings = json.loads((runs[1] / "run.json").read_text())
        settings["env"]["weight"] = 3.0
        (runs[1] / "run.json").write_text(json.dumps(settings))
        found = compare_runs(runs).caution
        assert caution in found and bool(caution) == bool(found)


def test_validations_on_other_tasks_are_marked_as_not_comparable(runs: list[Path], tmp_path: Path) -> None:
    other = write_run(tmp_path / "d", "grpo", {}, [validation(0, 0.5)], validation=ValidationConfig(tasks=9))
    caution = compare_runs([runs[0], other]).caution
    assert caution == "The validations differ in validation.tasks, so their rates are not comparable."


def test_runs_on_more_training_tasks_have_comparable_validations(runs: list[Path], tmp_path: Path) -> None:
    other = write_run(tmp_path / "d", "grpo", {}, [validation(0, 0.5)])
    settings = json.loads((other / "run.json").read_text())
    settings["env"]["tasks"] = 100
    (other / "run.json").write_text(json.dumps(settings))
    comparison = compare_runs([runs[0], other])
    assert comparison.differences["env.tasks"] == ["null", "100"] and comparison.caution == ""


def test_last_validation_is_not_one_of_a_policy_that_was_rolled_back(tmp_path: Path) -> None:
    collapsed = {**validation(6, 0.1), "rolled_back_to": 4}
    history = [validation(0, 0.3), validation(2, 0.4), validation(4, 0.5), collapsed]
    runs = [write_run(tmp_path / name, "grpo", {}, history) for name in "ab"]
    last = compare_runs(runs).validations[0].last
    assert last is not None and (last.update, last.success.value) == (4, 0.5)


def test_option_of_one_environment_is_one_difference(tmp_path: Path) -> None:
    plain = write_run(tmp_path / "a", "grpo", {}, [])
    sparse = write_run(tmp_path / "b", "grpo", {}, [])
    settings = json.loads((sparse / "run.json").read_text())
    settings["env"]["kwargs"] = {"reward_mode": "sparse"}
    (sparse / "run.json").write_text(json.dumps(settings))
    for folders, values in (([plain, sparse], ["–", "sparse"]), ([sparse, plain], ["sparse", "–"])):
        comparison = compare_runs(folders)
        assert comparison.differences == {"env.kwargs.reward_mode": values}
        assert "differ in env.kwargs.reward_mode, so" in comparison.caution


def test_runs_of_other_kinds_are_refused_by_name(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation, tuned, empty = tmp_path / "evaluation", tmp_path / "tuned", tmp_path / "empty"
    for folder in (evaluation, tuned, empty):
        folder.mkdir()
    (evaluation / "run.json").write_text('{"suite": {}, "agents": []}')
    (evaluation / "episodes.jsonl").write_text("")
    (tuned / "run.json").write_text(json.dumps(to_plain(SFTConfig(EnvConfig("TextFrozenLake-v0"), "M", tuned))))
    assert [run_kind(folder) for folder in (runs[0], evaluation, tuned, empty)] == [
        "training",
        "evaluation",
        "fine-tuning",
        None,
    ]
    for folder, error in (
        (
            evaluation,
            f"{runs[0]}: holds a training run, but {evaluation} an evaluation run; compare runs of one kind.",
        ),
        (tuned, f"{tuned}: holds a run of `arboretum sft`"),
        (empty, f"{empty}: holds no training run"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["compare", str(runs[0]), str(folder)])
        shown = capsys.readouterr().err
        assert ended.value.code == 2 and shown.startswith(f"arboretum: {error}") and shown.count("\n") == 1
    for folders in ([runs[0]], [runs[0], runs[0]], []):
        with pytest.raises(ConfigurationError, match="at least two different runs"):
            compare_runs(folders)
