"""Rows and tables of a study against results written by hand, and its learning curves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.config.settings import EnvConfig
from arboretum.trainers.study.curves import Curve, read_curves
from arboretum.trainers.study.definition import SUPERVISED, Study, StudyEnv, StudyLevel, Trial
from arboretum.trainers.study.evaluation import Outcomes
from arboretum.trainers.study.page import draw_curves, mean_curve, write_page
from arboretum.trainers.study.results import Row, make_rows
from arboretum.trainers.study.table import render_table, to_markdown
from arboretum.trainers.study.tables import make_tables
from arboretum.trainers.study.trials import TUNED, WARM_START, policy_path, trial_path
from arboretum.trainers.study.tuning import Tuning
from support.pages import low_contrasts, set_width

LAKE = EnvConfig("TextFrozenLake-v0", {"observation_format": "grid", "success_rate": 1.0})
STUDY = Study(
    "two",
    "a test",
    "sapling",
    {"Lake": StudyEnv(LAKE)},
    {"grpo": {}, "rloo": {}},
    seeds=2,
    tasks=4,
    repeats=2,
    samples=4,
    pass_tasks=2,
)


def outcomes(sampled: str, greedy: str, samples: str = "", **levels: str) -> Outcomes:
    """Return outcomes of the tasks a, b, c, d.

    Args:
        sampled: Successes of the sampled episodes of each task, as in "10 00 11 01".
        greedy: Success of the greedy episode of each task, as in "1010".
        samples: Successes of the samples for pass@k of the first tasks, as in "1000 0000".
        levels: Successes of the tasks of a level, for both decodings, as in "1010".
    """

    def by_task(texts: Sequence[str]) -> dict[str, list[bool]]:
        return {task: [digit == "1" for digit in text] for task, text in zip("abcd", texts, strict=False)}

    parts = {"sampled": by_task(sampled.split()), "greedy": by_task(greedy)}
    if samples:
        parts["samples"] = by_task(samples.split())
    for level, text in levels.items():
        parts |= {f"levels/{level}/{decoding}": by_task(text) for decoding in ("sampled", "greedy")}
    return parts


def write(out: Path, policy: str | Trial, found: Outcomes, **measurements: object) -> None:
    """Write the result of a trial, or of a policy that the study does not train."""
    path = policy_path(out, "Lake", policy) if isinstance(policy, str) else trial_path(out, policy)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**measurements, "outcomes": found}))


def write_curve(out: Path, trial: Trial, success: float) -> None:
    """Write the metrics of a run of one update with success on validation tasks before and after it."""
    folder = out / trial.folder
    folder.mkdir(parents=True, exist_ok=True)
    records = [
        {"update": 0, "validation/success": success},
        {"update": 1, "success": success, "sampled_tokens": 100, "validation/success": success},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def by_policy(out: Path, study: Study = STUDY) -> Mapping[str, Row]:
    return {row.policy: row for row in make_rows(study, out)}


def test_gain_over_the_warm_start_is_over_runs_and_tasks(tmp_path: Path) -> None:
    write(tmp_path, WARM_START, outcomes("10 00 00 00", "1000"))
    write(tmp_path, Trial("Lake", "grpo", 0), outcomes("11 11 10 10", "1111"), cpu_seconds=3.0)
    write(tmp_path, Trial("Lake", "grpo", 1), outcomes("11 10 11 00", "1111"), cpu_seconds=5.0)
    rows = by_policy(tmp_path)
    warm, grpo = rows[WARM_START], rows["grpo"]
    assert (warm.runs, warm.sampled.value, warm.gains) == (0, 1 / 8, {})
    assert (grpo.runs, grpo.sampled.value, grpo.details["cpu_seconds_per_run"]) == (2, 11 / 16, 4.0)
    assert (grpo.lowest, grpo.highest) == (5 / 8, 6 / 8)
    gain = grpo.gains["sampled"].result
    # By hand: the gains (R, T) are [[1/2, 1, 1/2, 1/2], [1/2, 1/2, 1, 0]]. The means of the runs are 5/8 and 1/2,
    # those of the tasks 1/2, 3/4, 3/4 and 1/4, so MS_R = 4 · 2 (1/16)² = 1/32 and MS_T = 2 (1 + 9 + 9 + 25) / 768.
    # The rest is ±[-1, 3, -5, 3] / 16, so MS_E = 2 (1 + 9 + 25 + 9) / 768, and no variance between runs is left.
    mean, ms_tasks = 9 / 16, 88 / 768
    half = 3.182446 * (ms_tasks / 8) ** 0.5
    assert gain.difference == pytest.approx((mean, mean - half, mean + half), abs=1e-6)
    assert grpo.gains["greedy"].result.difference.value == 3 / 4


def test_one_run_is_compared_over_tasks_and_the_table_says_so(tmp_path: Path) -> None:
    write(tmp_path, WARM_START, outcomes("10 00 00 00", "1000"))
    write(tmp_path, Trial("Lake", "grpo", 0), outcomes("11 11 10 10", "1111"), cpu_seconds=3.0)
    study = replace(STUDY, seeds=1)
    row = by_policy(tmp_path, study)["grpo"]
    # The tasks gain 1/2, 1, 1/2 and 1/2: all plus and all minus are the most extreme of 16 sign patterns.
    assert row.gains["sampled"].result.p_value == 2 / 16
    text = to_markdown(make_tables(study, make_rows(study, tmp_path))[0])
    assert "with one run, that run's policy is compared, not its recipe" in text
    assert "over tasks in brackets" in text and "training runs" not in text


def test_stars_are_corrected_for_the_comparisons_of_the_table(tmp_path: Path) -> None:
    tasks = 40
    study = replace(STUDY, tasks=tasks, seeds=1, repeats=1, recipes={"grpo": {}, "rloo": {}})

    def solved(count: int) -> Outcomes:
        successes = {str(task): [task < count] for task in range(tasks)}
        return {"sampled": successes, "greedy": {str(task): [True] for task in range(tasks)}}

    write(tmp_path, WARM_START, solved(10))
    write(tmp_path, Trial("Lake", "grpo", 0), solved(17))
    write(tmp_path, Trial("Lake", "rloo", 0), solved(30))
    rows = by_policy(tmp_path, study)
    # McNemar with 7 and 20 discordant pairs: 2 / 2^7 = 0.016 and 2 / 2^20; greedy decoding does not differ. Holm
    # among four comparisons: the second smallest p-value counts three times.
    gain = rows["grpo"].gains["sampled"]
    assert gain.result.p_value == 2 / 2**7 and gain.adjusted == pytest.approx(6 / 2**7)
    assert gain.is_significant and rows["rloo"].gains["sampled"].adjusted == pytest.approx(8 / 2**20)
    write(tmp_path, Trial("Lake", "grpo", 0), solved(16))
    gain = by_policy(tmp_path, study)["grpo"].gains["sampled"]
    assert gain.result.p_value == 2 / 2**6 < 0.05 and not gain.is_significant
    text = to_markdown(make_tables(study, make_rows(study, tmp_path))[0])
    assert "| Lake | grpo | 1 | 40% [" in text and "+15 |" in text and "+50* |" in text
    assert "among 4 comparisons (Holm's correction)" in text


def test_recipe_is_compared_with_the_tuned_warm_start_and_with_supervised_learning(tmp_path: Path) -> None:
    write(tmp_path, WARM_START, outcomes("10 00 00 00", "1000"))
    write(tmp_path, TUNED, {"sampled": outcomes("10 10 10 00", "")["sampled"]}, temperature=0.3)
    for seed in range(2):
        write(tmp_path, Trial("Lake", "grpo", seed), outcomes("11 11 10 10", "1111"))
        write(tmp_path, Trial("Lake", SUPERVISED, seed), outcomes("11 11 11 1" + "01"[seed], "1111"))
    rows = by_policy(tmp_path)
    assert list(rows) == [WARM_START, TUNED, SUPERVISED, "grpo"]
    gains = {name: gain.result.difference.value for name, gain in rows["grpo"].gains.items()}
    assert gains == {"sampled": 5 / 8, "tuned": 3 / 8, "supervised": 6 / 8 - 15 / 16, "greedy": 3 / 4}
    assert "supervised" not in rows[SUPERVISED].gains
    assert "| Lake | tuned, T=0.3 |" in to_markdown(make_tables(STUDY, make_rows(STUDY, tmp_path))[0])


def test_pass_at_k_and_unsolved_tasks_worked_by_hand(tmp_path: Path) -> None:
    write(tmp_path, WARM_START, outcomes("10 00 00 00", "1000", "1000 0000"))
    for seed, samples in enumerate(("1100 0000", "1110 1000")):
        write(tmp_path, Trial("Lake", "grpo", seed), outcomes("11 11 10 10", "1111", samples))
    rows = by_policy(tmp_path)
    warm, grpo = rows[WARM_START], rows["grpo"]
    assert {k: one.value for k, one in warm.passes.items()} == {1: 1 / 8, 4: 1 / 2}
    assert {k: one.value for k, one in grpo.passes.items()} == {1: 6 / 16, 4: 3 / 4}
    assert warm.unsolved is not None and warm.unsolved.value == 1 / 2
    assert grpo.unsolved is not None and grpo.unsolved.value == 1 / 4
    assert {name: gain.result.difference.value for name, gain in grpo.pass_gains.items()} == {"pass@4": 1 / 4}
    text = to_markdown(make_tables(STUDY, make_rows(STUDY, tmp_path))[1])
    assert "pass@k on 2 of these tasks" in text and "| pass@1 | pass@4 | gain | never |" in text


def test_forgetting_is_the_change_on_the_levels_of_the_warm_start(tmp_path: Path) -> None:
    study = replace(STUDY, levels={"dry": StudyLevel(LAKE), "wet": StudyLevel(LAKE)})
    write(tmp_path, WARM_START, outcomes("10 00 00 00", "1000", dry="1110", wet="1000"))
    for seed in range(2):
        write(tmp_path, Trial("Lake", "grpo", seed), outcomes("11 11 10 10", "1111", dry="1000", wet="1000"))
    row = by_policy(tmp_path, study)["grpo"]
    changes = {key: gain.result.difference.value for key, gain in row.level_gains.items()}
    assert changes["dry", "sampled"] == changes["dry", "greedy"] == -0.5 and changes["wet", "sampled"] == 0
    levels = row.to_dict()["levels"]
    assert isinstance(levels, dict) and levels["dry"]["greedy_change"]["value"] == -0.5


def test_tables_with_the_longest_names_fit_80_columns(tmp_path: Path) -> None:
    recipe = max(RECIPES, key=len)
    tuning = Tuning((1e-4, 2e-4))
    study = replace(
        STUDY, recipes={recipe: {}, "grpo": {}}, samples=16, level_tasks=4, baseline="grpo", tuning=tuning
    )
    certain = {str(task): [True] for task in range(200)}
    parts = ("sampled", "greedy", "levels/Lake/sampled", "levels/Lake/greedy")
    before: Outcomes = {part: {task: [False] for task in certain} for part in parts}
    after: Outcomes = {part: dict(certain) for part in parts}
    before["samples"], after["samples"] = (
        {"0": [False] * 16, "1": [False] * 16},
        {"0": [True] * 16, "1": [True] * 16},
    )
    write(tmp_path, WARM_START, before)
    write(tmp_path, TUNED, {part: before[part] for part in ("sampled", "samples")}, temperature=0.25)
    for seed in range(2):
        cost = {"updates": 100, "generated_tokens": 123_456, "cpu_seconds": 1234, "tuned_value": 1e-4}
        write_curve(tmp_path, Trial("Lake", recipe, seed), 1.0)
        write(tmp_path, Trial("Lake", recipe, seed), after, **cost)
        write_curve(tmp_path, Trial("Lake", "grpo", seed), 0.0)
        write(tmp_path, Trial("Lake", "grpo", seed), before, **cost)
        write(tmp_path, Trial("Lake", SUPERVISED, seed), before)
    tables = make_tables(study, make_rows(study, tmp_path))
    assert len(tables) == 4
    for table in tables:
        rows = [(replace(row, env="Lake of seven rows without thoughts"), cells) for row, cells in table.rows]
        text = StringIO()
        Console(file=text, width=80).print(render_table(replace(table, rows=rows), 80))
        assert f" {recipe} " in text.getvalue() and "+100" in text.getvalue()
        assert "…" not in text.getvalue() and max(map(len, text.getvalue().splitlines())) <= 80
        text = StringIO()
        Console(file=text, width=50).print(render_table(table, 50))
        lines = text.getvalue().splitlines()
        assert f"  {recipe}" in lines and "+100" in text.getvalue() and max(map(len, lines)) <= 50


def test_learning_curves_count_generated_tokens(tmp_path: Path) -> None:
    for seed, tokens in enumerate((100, 300)):
        folder = tmp_path / Trial("Lake", "grpo", seed).folder
        folder.mkdir(parents=True)
        records = [
            {"update": 0, "validation/success": 0.25},
            {"update": 1, "success": 0.5, "sampled_tokens": tokens},
            {"update": 2, "success": 0.5, "sampled_tokens": tokens, "validation/success": 0.5 + seed / 4},
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    curves = read_curves(STUDY, tmp_path)
    assert [point["generated_tokens"] for point in curves[1].points] == [0, 300, 600]
    assert mean_curve(curves, "generated_tokens") == [(0, 0.25), (400, 0.625)]
    assert mean_curve(curves, "update") == [(0, 0.25), (2, 0.625)]
    chart = draw_curves("Lake", "generated_tokens", curves)
    assert chart is not None and chart["lines"][0]["name"] == "grpo"
    assert chart["lines"][0]["dots"][1]["title"] == "thousand generated tokens 0.4: grpo 62.5 %"
    assert (
        draw_curves("Lake", "update", [Curve("Lake", "grpo", 0, [{"update": 1, "generated_tokens": 5}])]) is None
    )
    page = write_page(STUDY, tmp_path, [], curves).read_text(encoding="utf-8")
    assert "success by updates" in page and "success by generated tokens (in thousands)" in page


def test_page_is_readable_on_a_phone(tmp_path: Path, browser: Any) -> None:
    from selenium.webdriver.common.by import By

    write(tmp_path, WARM_START, outcomes("10 00 00 00", "1000", "1000 0000", Lake="1010"))
    write(tmp_path, Trial("Lake", "grpo", 0), outcomes("11 11 10 10", "1111", "1110 0100", Lake="1110"))
    study = replace(STUDY, seeds=1)
    points = [
        {"update": update, "generated_tokens": 500.0 * update, "validation/success": 0.25 * update}
        for update in (0, 2)
    ]
    tables = make_tables(study, make_rows(study, tmp_path))
    page = write_page(study, tmp_path, tables, [Curve("Lake", "grpo", 0, points)])
    browser.get(page.as_uri())
    for width in (1280, 390):
        for scheme in ("light", "dark"):
            set_width(browser, width, scheme)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            assert low_contrasts(browser) == {}
        rows = browser.find_elements(By.CSS_SELECTOR, "tbody tr")
        assert len(rows) >= 4 and all(row.rect["height"] < 60 for row in rows)  # No name is broken into lines.
    for table in browser.find_elements(By.TAG_NAME, "table"):
        assert (
            "Lake" in table.text and browser.find_element(By.ID, str(table.get_attribute("aria-labelledby"))).text
        )
        assert not table.find_elements(By.CSS_SELECTOR, "th:not([scope])")


def test_pairs_of_recipes_are_compared_run_by_run(tmp_path: Path) -> None:
    study = replace(STUDY, pairs=(("rloo", "grpo"),))
    write(tmp_path, Trial("Lake", "grpo", 0), outcomes("10 00 10 00", "1000"))
    write(tmp_path, Trial("Lake", "grpo", 1), outcomes("10 10 00 00", "1000"))
    write(tmp_path, Trial("Lake", "rloo", 0), outcomes("11 00 11 00", "1110"))
    write(tmp_path, Trial("Lake", "rloo", 1), outcomes("11 11 00 00", "1110"))
    rows = by_policy(tmp_path, study)
    assert rows["grpo"].pair_gains == {}
    gains = rows["rloo"].pair_gains
    # By hand: sampled, the differences (R, T) are [[1/2, 0, 1/2, 0], [1/2, 1/2, 0, 0]], with equal means of runs,
    # 1/4, and means of tasks 1/2, 1/4, 1/4 and 0, so MS_T = 2 · (1/16 + 1/16) / 3 = 1/12.
    half = 3.182446 * (1 / 12 / 8) ** 0.5
    assert gains["grpo", "sampled"].result.difference == pytest.approx(
        (1 / 4, 1 / 4 - half, 1 / 4 + half), abs=1e-6
    )
    assert gains["grpo", "greedy"].result.difference.value == 1 / 2
    table = next(table for table in make_tables(study, list(rows.values())) if "run by run" in table.title)
    text = to_markdown(table)
    assert "| Lake | rloo | grpo | +25.0 [-7.5, +57.5] | +50.0 [" in text
    assert "among 2 comparisons" in text
    assert rows["rloo"].to_dict()["pairs"]["grpo"]["sampled"]["value"] == 1 / 4  # type: ignore[index]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ((("grpo", "ppo"),), "pairs must be one of 'grpo', 'rloo', not 'ppo'"),
        ((("grpo", "grpo"),), "pairs compares 'grpo' with itself"),
        ((("grpo", "rloo"), ("rloo", "grpo")), "pairs compares 'grpo' and 'rloo' twice"),
    ],
)
def test_pairs_that_cannot_be_compared_are_refused(pairs: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        replace(STUDY, pairs=pairs)


def test_changes_are_means_over_the_first_and_the_last_updates_of_all_runs(tmp_path: Path) -> None:
    study = replace(STUDY, collapse=True)
    for seed in (0, 1):
        trial = Trial("Lake", "grpo", seed)
        write(tmp_path, trial, outcomes("10 00 10 00", "1000"))
        records = [
            {"update": update, "success": update / 50 + seed / 10, "return": 1.0, "reply_tokens": 4.0 + update}
            for update in range(1, 31)
        ]
        lines = [json.dumps(record) + "\n" for record in [{"update": 0, "validation/success": 0.5}, *records]]
        (tmp_path / trial.folder / "metrics.jsonl").write_text("".join(lines))
    row = by_policy(tmp_path, study)["grpo"]
    # Windows of ten updates: the means of 1 to 10 and 21 to 30 are 5.5 and 25.5, a fiftieth of them 0.11 and 0.51.
    assert row.changes["success"] == pytest.approx((0.16, 0.56))
    assert row.changes["reply_tokens"] == pytest.approx((9.5, 29.5)) and "entropy" not in row.changes
    (table,) = [table for table in make_tables(study, [row]) if "on the way" in table.title]
    assert "first and of the last 10 updates" in table.notes[0]
    assert "| Lake | grpo | 16 → 56% | 1.00 → 1.00 | 9.5 → 29.5 |" in to_markdown(table)
