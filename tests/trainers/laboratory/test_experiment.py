"""The laboratory's experiment: paired results, resuming, table, figure and command line."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from arboretum.cli import main
from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.trainers.algorithms.registry import CREDITS
from arboretum.trainers.laboratory import experiment as module
from arboretum.trainers.laboratory.arms import ARMS, arm_names, get_arm
from arboretum.trainers.laboratory.experiment import Experiment, Results, run_experiment
from arboretum.trainers.laboratory.figure import draw_figure
from arboretum.trainers.laboratory.table import closed_gaps, make_cells, to_markdown

SMALL = Experiment(tasks=("lake4", "lock12f1"), arms=("gigpo", "exact", "tree-4"), seeds=2)


def ignore(done: int, total: int) -> None:
    """Show no progress."""


@pytest.fixture(scope="module")
def results() -> Results:
    found = Results()
    run_experiment(SMALL, found, progress=ignore)
    return found


def test_arms_are_preceded_by_those_they_are_compared_with() -> None:
    assert SMALL.all_arms == ("grpo", "gigpo", "exact", "grpo-4", "tree-4")


def test_every_pair_of_a_seed_starts_from_one_policy_and_has_one_budget(results: Results) -> None:
    starts = {
        (run.task, run.seed): {other.curve[0] for other in results if other.key[::2] == run.key[::2]}
        for run in results
    }
    assert len(starts) == 4 and all(len(values) <= 2 for values in starts.values())
    for run in results:
        assert run.curve[0] == pytest.approx(0.1, abs=1e-3) and len(run.curve) == 21
        assert run.budget == next(
            other.budget for other in results if (other.task, other.seed) == (run.task, run.seed)
        )
        assert run.auc == pytest.approx(sum(run.curve) / 21, abs=1e-3)


def test_file_of_something_else_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"task": "lake4"}\n')
    with pytest.raises(DataError, match=r"results.jsonl: does not hold runs of the laboratory; choose another"):
        Results(tmp_path / "results.jsonl")


def die(work: object) -> None:
    os._exit(3)


def test_worker_that_dies_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "run_panel", die)
    with pytest.raises(ConfigurationError, match=r"a worker process died.*with fewer --workers"):
        run_experiment(SMALL, Results(), workers=2, progress=ignore)


def test_table_names_its_comparisons_and_its_regime(results: Results) -> None:
    text = to_markdown(SMALL, results)
    assert "2 paired seeds" in text and "6 comparisons without correction" in text and "0.02 nats" in text
    rows = [line for line in text.splitlines() if line.startswith("| exact")]
    assert len(rows) == 2 and rows[0].endswith("| 1.00 |")
    assert "| tree-4 − grpo-4 |" in text


def test_differences_are_paired_by_seed(results: Results) -> None:
    (cell,) = [cell for cell in make_cells(SMALL, results) if (cell.arm, cell.task) == ("gigpo", "lake4")]
    auc = {(run.arm, run.seed): run.auc for run in results if run.task == "lake4"}
    differences = [auc["gigpo", seed] - auc["grpo", seed] for seed in range(2)]
    assert cell.difference is not None
    assert cell.difference.value == pytest.approx(sum(differences) / 2)
    half = 12.7062 * abs(differences[0] - differences[1]) / 2  # Student's t with one degree of freedom
    assert cell.difference.high - cell.difference.value == pytest.approx(half, rel=1e-4)


def test_gap_is_measured_between_grpo_and_exact_advantages(results: Results) -> None:
    gaps = closed_gaps(make_cells(SMALL, results))
    assert gaps["exact"] == 1.0 and set(gaps) == {"gigpo", "exact"}


def test_figure_is_an_image_with_a_mark_for_every_difference(results: Results) -> None:
    root = ElementTree.fromstring(draw_figure(make_cells(SMALL, results)))
    assert len(root.findall("{http://www.w3.org/2000/svg}circle")) == 6


def test_finished_panels_are_not_repeated_and_more_seeds_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.jsonl"
    run_experiment(Experiment(("lake4",), ("gigpo",), seeds=1), Results(path), progress=ignore)
    before = path.read_text()
    played = []
    run_panel = module.run_panel
    monkeypatch.setattr(module, "run_panel", lambda work: played.append((work.seed, work.runs)) or run_panel(work))
    experiment = Experiment(("lake4",), ("gigpo", "ppo"), seeds=2)
    run_experiment(experiment, Results(path), progress=ignore)
    assert played == [(0, (("ppo", None),)), (1, (("grpo", None), ("gigpo", None), ("ppo", None)))]
    assert path.read_text().startswith(before)
    run_experiment(experiment, Results(path), progress=ignore)
    assert len(played) == 2


def test_runs_are_the_same_in_several_processes(results: Results) -> None:
    parallel = Results()
    run_experiment(Experiment(("lake4",), ("gigpo",), seeds=2), parallel, workers=2, progress=ignore)
    ours = {run.key: run.curve for run in results}
    assert len(list(parallel)) == 4 and all(ours[run.key] == run.curve for run in parallel)


def test_tuned_regime_chooses_the_best_rate_on_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEARNING_RATES", (0.01, 8.0))
    experiment = Experiment(("lake4",), ("gigpo",), seeds=1, regime="tuned", tuning_seeds=1)
    found = Results()
    run_experiment(experiment, found, progress=ignore)
    assert found.chosen_rate(experiment, "lake4", "gigpo") == 8.0
    assert {run.seed for run in found} == {0, module.FIRST_TUNING_SEED}
    assert found.reported(experiment, "lake4", "grpo")[0].lr == 8.0
    assert "| gigpo | 8 |" in to_markdown(experiment, found)


# ---------------------------------------------------------------------- names


def test_every_registered_credit_can_be_an_arm() -> None:
    for name, credit in CREDITS.items():
        assert type(get_arm(name).credit) is credit
    assert set(ARMS) <= set(arm_names())


RULE = """
from dataclasses import dataclass
from arboretum.trainers.algorithms.credit.group import Group

@dataclass(frozen=True)
class Own(Group):
    def assign(self, rollouts, *given, **more):
        found = super().assign(rollouts, *given, **more)
        return type(found)(SIGN * found.advantages)
"""


def test_runs_of_a_rule_that_was_edited_are_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    path, success = tmp_path / "results.jsonl", []
    for sign in (1, 1, -1):
        (tmp_path / "edited_rule.py").write_text(RULE.replace("SIGN", str(sign)))
        sys.modules.pop("edited_rule", None)
        importlib.invalidate_caches()
        results = Results(path)
        run_experiment(Experiment(("lock12f1",), ("edited_rule:Own",), seeds=1), results, progress=ignore)
        success += [run.auc for run in results if run.arm == "edited_rule:Own"]
    assert success[0] == success[1] > success[2]
    assert len(path.read_text().splitlines()) == 3  # with grpo's run
    monkeypatch.delitem(sys.modules, "edited_rule")
    (tmp_path / "edited_rule.py").write_text("import numpyy\n")
    with pytest.raises(ConfigurationError, match=r"edited_rule:Own cannot be imported: .*numpyy"):
        Experiment(("lock12f1",), ("edited_rule:Own",), seeds=1)


def test_runs_of_a_rule_that_is_edited_while_it_runs_are_those_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    source, path = tmp_path / "late_rule.py", tmp_path / "results.jsonl"
    source.write_text(RULE.replace("SIGN", "1"))
    importlib.invalidate_caches()

    train = module.train

    def edit(*given: Any, **more: Any) -> Any:
        source.write_text(RULE.replace("SIGN", "-1"))
        return train(*given, **more)

    monkeypatch.setattr(module, "train", edit)
    small = Experiment(("lock12f1",), ("late_rule:Own",), seeds=1)
    run_experiment(small, Results(path), progress=ignore)
    arms = [run.arm for run in Results(path)]  # in this process, which has the old rule
    assert "late_rule:Own" in arms
    sys.modules.pop("late_rule")
    importlib.invalidate_caches()
    assert "late_rule:Own" not in [run.arm for run in Results(path)]


def test_line_that_a_kill_tore_costs_its_own_run_only(tmp_path: Path) -> None:
    path, small = tmp_path / "results.jsonl", Experiment(("lake4",), ("gigpo",), seeds=1)
    run_experiment(small, Results(path), progress=ignore)
    path.write_bytes(path.read_bytes()[:-20])
    run_experiment(small, Results(path), progress=ignore)
    assert len(list(Results(path))) == 2


def test_unknown_names_are_rejected_with_the_nearest_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"arm of the laboratory 'gropo'.*grpo"):
        Experiment(arms=("gropo",))
    with pytest.raises(ConfigurationError, match=r"task of the laboratory 'lake9'.*lake"):
        Experiment(tasks=("lake9",))
    with pytest.raises(ConfigurationError, match="different names"):
        Experiment(tasks=("lake4", "lake4"))


# ---------------------------------------------------------------------- command line


def test_command_writes_table_results_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["study", "credit", "--tasks", "lake4", "--arms", "exact", "--seeds", "1", "--workers", "1"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--out", str(tmp_path)])
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert "exact" in printed and "AUC of success: of grpo and other baselines" in printed
    assert (tmp_path / "figure.svg").read_text().startswith("<svg")
    assert "| exact |" in (tmp_path / "table.md").read_text()
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [record["arm"] for record in records] == ["grpo", "exact"]


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("run.json", "holds a run"),
        ("study.json", "holds a study"),
        ("table.md", "holds table.md, which belongs to"),
    ],
)
def test_folder_of_something_else_is_refused(
    file: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / file).write_text("{}")
    with pytest.raises(SystemExit) as ended:
        main(["study", "credit", "--tasks", "lake4", "--arms", "exact", "--seeds", "1", "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {".lock", file}


def test_options_of_the_laboratory_are_rejected_for_other_studies(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["study", "first-steps", "--seeds", "3"])
    assert ended.value.code == 2
    assert "--seeds is an option of the study `credit` only" in " ".join(capsys.readouterr().err.split())
