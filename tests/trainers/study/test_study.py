"""Studies: validation of their files, results table, and a small study from end to end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.config.settings import EnvConfig
from arboretum.trainers.study.definition import Study, Trial, load_study, parse_study, study_names
from arboretum.trainers.study.table import WARM_START, make_rows, render_table, to_markdown
from arboretum.trainers.study.trials import RESULT, evaluate_references

LAKE = EnvConfig("TextFrozenLake-v0", {"observation_format": "grid", "success_rate": 1.0})
STUDY = Study("two", "a test", "sapling", {"Lake": LAKE}, {"grpo": {}, "rloo": {}}, seeds=2, tasks=4, repeats=2)


@pytest.mark.parametrize("name", study_names())
def test_shipped_studies_pass_their_check(name: str) -> None:
    study = load_study(name)
    study.check()
    assert len(list(study.trials())) == len(study.envs) * len(study.recipes) * study.seeds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", "expected a mapping"),
        ("name: x\n", "`model` is missing"),
        ("name: x\nmodels: y\n", "unknown key 'models'; did you mean"),
        ("name: x\nmodel: y\nenvs: [{name: A}]\nrecipes: {grpo: {}}\n", "environment 1: `id` is missing"),
        ("name: x\nmodel: y\nenvs: [{name: A, id: B}]\nrecipes: {gripo: {}}\n", "unknown recipe"),
        (
            "name: x\nmodel: y\nenvs: [{name: A, id: B}]\nrecipes: {grpo: {sampler.rollouts: 1}}\n",
            "rollouts is 1",
        ),
        ("name: x\nmodel: y\nenvs: [{name: A, id: B}]\nrecipes: {grpo: {}}\nseeds: 0\n", "seeds must be"),
    ],
)
def test_invalid_study_file_is_rejected(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_study(text, "mine.yaml")


def test_unknown_study_is_rejected_with_nearest_names() -> None:
    with pytest.raises(ConfigurationError, match="ragen-mini"):
        load_study("ragen")


def write_result(out: Path, trial: Trial | None, sampled: str, greedy: str) -> None:
    """Write the result of a trial, or of the warm start for None.

    Args:
        out: Folder of the study.
        trial: Trial of `STUDY`.
        sampled: Successes of the two sampled episodes of each of the tasks a, b, c, d, as in "10 00 11 01".
        greedy: Success of the greedy episode of each task, as in "1010".
    """
    episodes = [[digit == "1" for digit in task] for task in sampled.split()]
    outcomes = {
        "sampled": dict(zip("abcd", episodes, strict=True)),
        "greedy": {task: [digit == "1"] for task, digit in zip("abcd", greedy, strict=True)},
    }
    path = out / "warm-start-Lake.json" if trial is None else out / trial.folder / RESULT
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"updates": 1, "outcomes": outcomes}))


def test_gain_over_the_warm_start_is_paired_by_task(tmp_path: Path) -> None:
    write_result(tmp_path, None, "10 00 00 00", "1000")
    write_result(tmp_path, Trial("Lake", "grpo", 0), "11 11 10 10", "1111")
    write_result(tmp_path, Trial("Lake", "grpo", 1), "11 10 11 00", "1111")
    warm, grpo = make_rows(STUDY, tmp_path, {})
    assert (warm.policy, warm.runs, warm.sampled.value, warm.gain) == (WARM_START, 0, 1 / 8, None)
    assert (grpo.policy, grpo.runs, grpo.sampled.value) == ("grpo", 2, 11 / 16)
    assert (grpo.lowest, grpo.highest) == (5 / 8, 6 / 8)
    assert grpo.gain is not None and grpo.gain.difference.value == pytest.approx(11 / 16 - 1 / 8)
    # By hand: the tasks gain 1/2, 3/4, 3/4 and 1/4. Of the 16 sign patterns, only all plus and all minus give a
    # mean at least as far from zero.
    assert grpo.gain.p_value == 2 / 16 and not grpo.is_improvement
    assert grpo.gain_greedy is not None and grpo.gain_greedy.difference.value == 3 / 4
    assert "| Lake | grpo | 2 | 69% [" in to_markdown(STUDY, [warm, grpo])


def test_table_with_the_longest_recipe_name_fits_80_columns(tmp_path: Path) -> None:
    recipe = max(RECIPES, key=len)
    study = replace(STUDY, recipes={recipe: {}})
    write_result(tmp_path, None, "00 00 00 00", "0000")
    for seed in range(2):
        write_result(tmp_path, Trial("Lake", recipe, seed), "11 11 11 11", "1111")
    (gained,) = [row for row in make_rows(study, tmp_path, {}) if row.gain]
    assert gained.gain is not None
    widest = replace(
        gained, gain=gained.gain._replace(p_value=0.01), gain_greedy=gained.gain._replace(p_value=0.01)
    )
    text = StringIO()
    Console(file=text, width=80).print(render_table(study, [widest]))
    assert text.getvalue().count("+100*") == 2 and f" {recipe} " in text.getvalue()
    assert "…" not in text.getvalue() and max(map(len, text.getvalue().splitlines())) <= 80


def test_reference_agents_run_on_the_same_tasks() -> None:
    outcomes = evaluate_references(replace(STUDY, tasks=16), LAKE)
    random, expert = outcomes["random"]["sampled"], outcomes["expert"]["sampled"]
    assert random.keys() == expert.keys()
    assert all(all(episodes) and len(episodes) == 2 for episodes in expert.values())
    assert not all(all(episodes) for episodes in random.values())


def successes(metrics: str) -> list[float | None]:
    """Return the success rate of every record of a metrics.jsonl."""
    return [json.loads(line).get("success") for line in metrics.splitlines()]


@pytest.fixture
def small(warm_model: Path) -> Study:
    """Study of two trials with two updates each, from a tiny model."""
    settings: dict[str, object] = {
        "sampler.prompts": 2,
        "sampler.rollouts": 4,
        "sampler.reply_tokens": 12,
        "optimization.updates": 2,
        "optimization.episodes_per_step": 8,
    }
    recipes: dict[str, dict[str, object]] = {"grpo": {}}
    return Study(
        "small", "", str(warm_model), {"Lake": LAKE}, recipes, settings, seeds=2, tasks=8, validation_every=1
    )


@pytest.mark.heavy
def test_repeated_study_runs_missing_trials_only(small: Study, tmp_path: Path) -> None:
    from arboretum.trainers.study.runner import run_study

    def run(study: Study) -> tuple[int, str]:
        text = StringIO()
        status = run_study(study, tmp_path, workers=2, console=Console(file=text, width=80))
        return status, text.getvalue()

    status, output = run(small)
    assert status == 0 and "3 of 3" in output and "warm start" in output
    folder = tmp_path / "lake" / "grpo-1"
    assert (folder / "report.html").exists() and len((folder / "metrics.jsonl").read_text().splitlines()) == 3
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [row["policy"] for row in summary] == ["random", "expert", "warm start", "grpo"]
    assert {row["env"] for row in summary} == {"Lake"} and summary[3]["runs"] == 2
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    (tmp_path / "lake" / "grpo-0" / RESULT).unlink()
    first = (tmp_path / "lake" / "grpo-0" / "metrics.jsonl").read_text()
    status, output = run(small)
    assert status == 0 and "1 of 1: grpo on Lake, seed 0 done" in output
    assert (folder / RESULT).stat().st_mtime_ns == before[folder / RESULT]
    again = (tmp_path / "lake" / "grpo-0" / "metrics.jsonl").read_text()
    assert successes(first) == successes(again)
    with pytest.raises(ConfigurationError, match="another value of 'tasks'"):
        run(replace(small, tasks=9))


@pytest.mark.heavy
def test_failed_trial_is_reported_and_the_others_are_kept(small: Study, tmp_path: Path) -> None:
    from arboretum.trainers.study.runner import run_study

    blocked = tmp_path / "lake" / "grpo-0"
    blocked.parent.mkdir()
    blocked.write_text("a file instead of the trial's folder")
    text = StringIO()
    status = run_study(small, tmp_path, workers=1, console=Console(file=text, width=200))
    assert status == 1 and "Failed: grpo on Lake, seed 0: " in text.getvalue()
    assert (tmp_path / "lake" / "grpo-1" / RESULT).exists()


@pytest.mark.heavy
def test_interrupted_study_prints_the_results_so_far(warm_model: Path, tmp_path: Path) -> None:
    definition = tmp_path / "mine.yaml"
    definition.write_text(
        f"name: mine\nmodel: {warm_model}\nenvs: [{{name: Lake, id: TextFrozenLake-v0}}]\n"
        "recipes: {grpo: {}}\nsettings: {sampler.reply_tokens: 12, optimization.updates: 1000}\ntasks: 8\n"
    )
    out = tmp_path / "out"
    command = [sys.executable, "-m", "arboretum.cli", "study", str(definition), "--out", str(out)]
    study = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # The children of a background shell ignore SIGINT unless the handler is restored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    deadline = time.monotonic() + 240
    while not (out / "warm-start-Lake.json").exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    study.send_signal(signal.SIGINT)
    output, _ = study.communicate(timeout=60)
    assert study.returncode == 130
    assert "Interrupted:" in output and "warm start" in output and "Traceback" not in output
