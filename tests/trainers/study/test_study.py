"""Studies: what their files may say, what their tables tell, and a small one from end to end."""

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
from arboretum.trainers.config.settings import EnvConfig
from arboretum.trainers.study.definition import Study, Trial, load_study, parse_study, study_names
from arboretum.trainers.study.table import WARM, drawn, markdown, rows
from arboretum.trainers.study.trials import RESULT, evaluate_references

LAKE = EnvConfig("TextFrozenLake-v0", {"observation_format": "grid", "success_rate": 1.0})
STUDY = Study("two", "a test", "sapling", {"Lake": LAKE}, {"grpo": {}, "rloo": {}}, seeds=2, tasks=4, repeats=2)


@pytest.mark.parametrize("name", study_names())
def test_shipped_studies_can_work(name: str) -> None:
    study = load_study(name)
    study.check()
    assert len(list(study.trials())) == len(study.envs) * len(study.recipes) * study.seeds


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- a\n", "expected a mapping"),
        ("name: x\n", "`model` is missing"),
        ("name: x\nmodels: y\n", "unknown key 'models'; did you mean"),
        ("name: x\nmodel: y\nenvs: [{name: A}]\nrecipes: {grpo: {}}\n", "does not describe a study"),
        ("name: x\nmodel: y\nenvs: [{name: A, id: B}]\nrecipes: {gripo: {}}\n", "unknown recipe"),
        (
            "name: x\nmodel: y\nenvs: [{name: A, id: B}]\nrecipes: {grpo: {sampler.rollouts: 1}}\n",
            "rollouts is 1",
        ),
        ("name: x\nmodel: y\nenvs: [{name: A, id: B}]\nrecipes: {grpo: {}}\nseeds: 0\n", "seeds must be"),
    ],
)
def test_a_file_that_describes_no_study_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        parse_study(text, "mine.yaml")


def test_an_unknown_study_names_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="ragen-mini"):
        load_study("ragen")


def put(out: Path, trial: Trial | None, sampled: str, greedy: str) -> None:
    """Write a result: for each of the tasks a, b, c, d the outcomes of two plays, as in "10 00 11 01"."""
    plays = [[digit == "1" for digit in task] for task in sampled.split()]
    outcomes = {
        "sampled": dict(zip("abcd", plays, strict=True)),
        "greedy": {task: [digit == "1"] for task, digit in zip("abcd", greedy, strict=True)},
    }
    path = out / "warm-start-Lake.json" if trial is None else out / trial.folder / RESULT
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"updates": 1, "outcomes": outcomes}))


def test_the_table_compares_with_the_warm_start_task_by_task(tmp_path: Path) -> None:
    put(tmp_path, None, "10 00 00 00", "1000")
    put(tmp_path, Trial("Lake", "grpo", 0), "11 11 10 10", "1111")
    put(tmp_path, Trial("Lake", "grpo", 1), "11 10 11 00", "1111")
    warm, grpo = rows(STUDY, tmp_path, {})
    assert (warm.who, warm.runs, warm.sampled.value, warm.gain) == (WARM, 0, 1 / 8, None)
    assert (grpo.who, grpo.runs, grpo.sampled.value) == ("grpo", 2, 11 / 16)
    assert (grpo.lowest, grpo.highest) == (5 / 8, 6 / 8)
    assert grpo.gain is not None and grpo.gain.difference.value == pytest.approx(11 / 16 - 1 / 8)
    # By hand: the tasks gain 1/2, 3/4, 3/4 and 1/4, so that of the 16 patterns of signs only all plus and all
    # minus give a mean as far from zero.
    assert grpo.gain.p_value == 2 / 16 and not grpo.better
    assert grpo.gain_greedy is not None and grpo.gain_greedy.difference.value == 3 / 4
    assert "| Lake | grpo | 2 | 69% [" in markdown(STUDY, [warm, grpo])


def test_the_table_fits_a_terminal_of_80_columns(tmp_path: Path) -> None:
    put(tmp_path, None, "00 00 00 00", "0000")
    for seed in range(2):
        put(tmp_path, Trial("Lake", "grpo", seed), "11 11 11 11", "1111")
    text = StringIO()
    Console(file=text, width=80).print(drawn(replace(STUDY, seeds=2), rows(STUDY, tmp_path, {})))
    assert "+100" in text.getvalue() and "…" not in text.getvalue()


def test_random_and_expert_play_the_same_tasks_within_the_same_budget() -> None:
    found = evaluate_references(replace(STUDY, tasks=16), LAKE)
    assert found["random"]["sampled"].keys() == found["expert"]["sampled"].keys()
    assert all(all(plays) and len(plays) == 2 for plays in found["expert"]["sampled"].values())
    assert not all(all(plays) for plays in found["random"]["sampled"].values())


def successes(metrics: str) -> list[float | None]:
    """Of the updates in a metrics.jsonl."""
    return [json.loads(line).get("success") for line in metrics.splitlines()]


@pytest.fixture
def small(warm_model: Path) -> Study:
    """Two runs of two updates from a tiny model."""
    settings: dict[str, object] = {
        "sampler.prompts": 2,
        "sampler.rollouts": 4,
        "sampler.reply_tokens": 12,
        "optimization.updates": 2,
        "optimization.episodes_per_step": 8,
    }
    recipes: dict[str, dict[str, object]] = {"grpo": {}}
    return Study("small", "", str(warm_model), {"Lake": LAKE}, recipes, settings, seeds=2, tasks=8, watch=1)


@pytest.mark.heavy
def test_a_study_from_end_to_end_and_once_more(small: Study, tmp_path: Path) -> None:
    from arboretum.trainers.study.runner import run_study

    def go(study: Study) -> tuple[int, str]:
        text = StringIO()
        status = run_study(study, tmp_path, workers=2, console=Console(file=text, width=80))
        return status, text.getvalue()

    status, said = go(small)
    assert status == 0 and "3 of 3" in said and "warm start" in said
    folder = tmp_path / "lake" / "grpo-1"
    assert (folder / "report.html").exists() and len((folder / "metrics.jsonl").read_text().splitlines()) == 3
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [row["who"] for row in summary] == ["random", "expert", "warm start", "grpo"] and summary[3][
        "runs"
    ] == 2
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    (tmp_path / "lake" / "grpo-0" / RESULT).unlink()
    first = (tmp_path / "lake" / "grpo-0" / "metrics.jsonl").read_text()
    status, said = go(small)
    assert status == 0 and "1 of 1: grpo on Lake, seed 0 done" in said
    assert (folder / RESULT).stat().st_mtime_ns == before[folder / RESULT]
    again = (tmp_path / "lake" / "grpo-0" / "metrics.jsonl").read_text()
    assert successes(first) == successes(again)
    with pytest.raises(ConfigurationError, match="begun with another tasks"):
        go(replace(small, tasks=9))


@pytest.mark.heavy
def test_a_run_that_fails_is_said_and_the_others_are_kept(small: Study, tmp_path: Path) -> None:
    from arboretum.trainers.study.runner import run_study

    blocked = tmp_path / "lake" / "grpo-0"
    blocked.parent.mkdir()
    blocked.write_text("a file where the run's folder should be")
    text = StringIO()
    status = run_study(small, tmp_path, workers=1, console=Console(file=text, width=200))
    assert status == 1 and "Failed: grpo on Lake, seed 0: " in text.getvalue()
    assert (tmp_path / "lake" / "grpo-1" / RESULT).exists()


@pytest.mark.heavy
def test_ctrl_c_ends_a_study_with_one_sentence_and_what_was_measured(warm_model: Path, tmp_path: Path) -> None:
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
        # A shell in the background makes its children deaf to Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    deadline = time.monotonic() + 240
    while not (out / "warm-start-Lake.json").exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    study.send_signal(signal.SIGINT)
    said, _ = study.communicate(timeout=60)
    assert study.returncode == 130
    assert "Interrupted;" in said and "warm start" in said and "Traceback" not in said
