"""Comparisons of recipes with a baseline, and collapse, against learning curves written by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from arboretum.trainers.config.settings import EnvConfig
from arboretum.trainers.monitor import Monitor
from arboretum.trainers.study.collapse import find_collapse
from arboretum.trainers.study.definition import Study, StudyEnv, Trial
from arboretum.trainers.study.results import make_rows
from arboretum.trainers.study.table import to_markdown
from arboretum.trainers.study.tables import make_tables
from arboretum.trainers.study.trials import trial_path

STUDY = Study(
    "two",
    "a test",
    "sapling",
    {"Lake": StudyEnv(EnvConfig("TextFrozenLake-v0"))},
    {"grpo": {}, "grove": {}},
    seeds=3,
    tasks=4,
    repeats=1,
    samples=0,
    baseline="grpo",
    collapse=True,
)


def write(out: Path, recipe: str, seed: int, rates: Sequence[float], tokens: float, solved: str = "1000") -> None:
    """Write a finished run that generates `tokens` per update, validated after each."""
    path = trial_path(out, Trial("Lake", recipe, seed))
    path.parent.mkdir(parents=True)
    successes = {task: [digit == "1"] for task, digit in zip("abcd", solved, strict=True)}
    result = {"updates": len(rates) - 1, "generated_tokens": tokens * (len(rates) - 1), "cpu_seconds": 1.0}
    path.write_text(json.dumps({**result, "outcomes": {"sampled": successes, "greedy": successes}}))
    records = [
        {"update": n, "validation/success": rate, **({"sampled_tokens": tokens, "success": rate} if n else {})}
        for n, rate in enumerate(rates)
    ]
    (path.parent / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_recipes_are_compared_with_the_baseline_run_by_run_at_equal_tokens(tmp_path: Path) -> None:
    for seed, end in enumerate((0.4, 0.6, 0.8)):
        write(tmp_path, "grpo", seed, (0.2, end), tokens=100, solved="1000")
        # Twice the tokens per update: at 100 tokens these curves are half-way between their two validations.
        write(tmp_path, "grove", seed, (0.2, end + 0.2 + 0.1 * seed), tokens=200, solved="1110")
    grpo, grove = make_rows(STUDY, tmp_path)
    # Areas by hand: those of the baseline are the means of start and end, 0.3, 0.4 and 0.5; those of the other
    # recipe go up to (start + end) / 2, so 0.3, 0.375 and 0.45 for ends of 0.6, 0.9 and 1.2.
    assert grpo.area is not None and grove.area is not None and grpo.area_gains == {}
    assert (grpo.area.value, grove.area.value) == pytest.approx((0.4, 0.375))
    gain = grove.area_gains["baseline"].result
    # Differences 0, -0.025, -0.05: mean -0.025, deviation 0.025, and 4.302653 is t's quantile at 2 degrees.
    half = 4.302653 * 0.025 / 3**0.5
    assert gain.difference == pytest.approx((-0.025, -0.025 - half, -0.025 + half), abs=1e-6)
    assert gain.p_value == pytest.approx(0.2254, abs=1e-4)
    assert (gain.only_a, gain.only_b) == (0, 2)
    assert grove.gains["baseline"].result.difference.value == 0.5 and "baseline" not in grpo.gains
    texts = [to_markdown(table) for table in make_tables(STUDY, [grpo, grove])]
    assert "grpo: over the runs of grpo with the same seeds" in texts[0] and "| +50" in texts[0]
    assert "learning at equal generated tokens" in texts[1] and "| -2.5 |" in texts[1]


def test_area_of_a_run_that_failed_is_not_compared(tmp_path: Path) -> None:
    for seed in range(2):
        write(tmp_path, "grpo", seed, (0.2, 0.4), tokens=100)
    write(tmp_path, "grove", 1, (0.2, 0.6), tokens=100)
    grove = make_rows(STUDY, tmp_path)[1]
    assert grove.area is not None and grove.area.value == pytest.approx(0.4) and grove.area_gains == {}


def history(success: Sequence[float], deviation: Sequence[float]) -> list[dict[str, float]]:
    """Return metrics of a run, with entropies that follow the deviations of returns."""
    return [
        {"update": n, "success": rate, "return": rate, "group_return_std": std, "entropy": std, "grad_norm": 1.0}
        for n, (rate, std) in enumerate(zip(success, deviation, strict=True), 1)
    ]


def test_collapse_is_a_lasting_fall_and_a_warning_comes_before() -> None:
    monitor = Monitor(window=2)
    # Success dips once and recovers, then falls for good; returns stop to differ four updates before.
    success = [0.5, 0.6, 0.1, 0.1, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.2, 0.0, 0.0]
    deviation = [0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.0, 0.0]
    found = find_collapse(history(success, deviation), monitor)
    assert found is not None and (found.updates, found.peak, found.last) == (13, 0.6, 0.0)
    # Moving averages of two: 0.6, 0.4 and 0.1 at updates 10, 11 and 12; half the peak is 0.3.
    assert found.fell == 12
    assert found.warning is not None and found.warning.update == 8 and found.trap is not None
    steady = find_collapse(history([0.5] * 13, [0.4] * 13), monitor)
    assert steady is not None and steady.fell is None and steady.warning is None
    assert find_collapse(history([0.5], [0.4]), monitor) is None
    never = find_collapse(history([0.0] * 13, [0.0] * 13), monitor)
    assert never is not None and never.fell is None


def test_table_of_collapse_shows_every_run(tmp_path: Path) -> None:
    steady, falling = [0.5] * 21, [0.5] * 8 + [0.0] * 13
    for seed in range(3):
        write(tmp_path, "grpo", seed, falling if seed else steady, tokens=10)
        write(tmp_path, "grove", seed, steady, tokens=10)
    rows = make_rows(STUDY, tmp_path)
    text = to_markdown(next(table for table in make_tables(STUDY, rows) if "collapse" in table.title))
    # The average over ten updates starts at 0.35, with seven of 0.5; with three, at update 14, it is below half.
    assert "| Lake | grpo | 3 | 20 | 40% | 17% | 2 of 3 | - 14 14 | - - - |" in text
    assert "| Lake | grove | 3 | 20 | 50% | 50% | 0 of 3 | - - - | - - - |" in text
