"""The tables of a study: success, comparisons, pass@k, learning, collapse and forgetting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from .collapse import FALLEN, WARNINGS
from .definition import Study, Trial
from .differences import differing_settings
from .results import Row, count_comparisons
from .table import Cells, StudyTable, format_difference, format_gain, format_policy, format_rate, policy_cells


def make_tables(study: Study, rows: Sequence[Row], edited: Sequence[str] = ()) -> list[StudyTable]:
    """Return the tables of a study that have results.

    Args:
        study: Study.
        rows: Its rows; see `make_rows`.
        edited: Names of environments whose code was edited between its runs.
    """
    tables = [_success_table(study, rows, edited)] if rows else []
    if any(row.pair_gains for row in rows):
        tables.append(_pair_table(study, rows))
    if any(row.passes for row in rows):
        tables.append(_pass_table(study, rows))
    if any(row.area for row in rows):
        tables.append(_learning_table(study, rows))
    if any(row.collapses for row in rows):
        tables.append(_collapse_table(study, rows))
    if any(row.changes for row in rows):
        tables.append(_change_table(study, rows))
    if any(row.levels for row in rows):
        tables.append(_level_table(study, rows))
    return tables


def _success_table(study: Study, rows: Sequence[Row], edited: Sequence[str]) -> StudyTable:
    meanings = {
        "sampled": "gain: over the warm start, in points",
        "tuned": "tuned: over the warm start at its best temperature on validation tasks",
        "supervised": "SFT: over supervised fine-tuning of equal CPU time",
        "baseline": f"{study.baseline}: over the runs of {study.baseline} with the same seeds",
    }
    present = {name for row in rows for name in row.gains}
    notes = [_interval_note(study), *(meaning for name, meaning in meanings.items() if name in present)]
    if present:
        notes.append(_star_note(rows, "gains"))
    if study.baseline and (differing := differing_settings(study)):
        notes.append(f"beside credit and sampler, the recipes differ in {', '.join(differing)}")
    notes += [f"the code of {name} was edited between the runs, so they are not comparable" for name in edited]
    return StudyTable(
        f"{study.name}: success on {study.tasks} held-out tasks per environment",
        notes + _single_run_note(rows),
        {
            "policy": "policy",
            "runs": "runs",
            "sampled": "sampled",
            "range": "range",
            "gain": "gain",
            "tuned": "tuned",
            "supervised": "SFT",
            "baseline": study.baseline,
            "greedy": "greedy",
            "greedy gain": "gain",
        },
        [(row, _success_cells(row)) for row in rows],
        wide=("range", *(("greedy gain",) if study.baseline else ())),
    )


def _success_cells(row: Row) -> Cells:
    span = "" if row.lowest is None or row.highest is None else f"{100 * row.lowest:.0f} to {row.highest:.0%}"
    return {
        **policy_cells(row),
        "sampled": format_rate(row.sampled),
        "range": span if row.runs > 1 else "",
        "gain": format_gain(row.gains.get("sampled")),
        "tuned": format_gain(row.gains.get("tuned")),
        "supervised": format_gain(row.gains.get("supervised")),
        "baseline": format_gain(row.gains.get("baseline")),
        "greedy": "" if row.greedy is None else format_rate(row.greedy),
        "greedy gain": format_gain(row.gains.get("greedy")),
    }


def _pass_table(study: Study, rows: Sequence[Row]) -> StudyTable:
    largest = study.pass_k[-1]
    tasks = min(study.pass_tasks, study.tasks)
    notes = [
        f"fraction of tasks that k samples solve (unbiased estimate from {study.samples} per task)",
        f"never: no sample of {study.samples} solves the task",
    ]
    if any(row.pass_gains for row in rows):
        notes += [f"gain and tuned: in pass@{largest}, as in the first table", _star_note(rows, "pass_gains")]
    numbers = {f"pass@{k} rate": f"pass@{k}" for k in study.pass_k[:-1]}
    intervals = {f"pass@{k}": f"pass@{k}" for k in study.pass_k}
    columns = {"policy": "policy", "runs": "runs", **numbers, **intervals, "gain": "gain", "tuned": "tuned"}
    return StudyTable(
        f"{study.name}: pass@k on {tasks} of these tasks",
        notes,
        {**columns, "never rate": "never", "never": "never"},
        [(row, _pass_cells(row, largest)) for row in rows if row.passes],
        wide=("never", *(f"pass@{k}" for k in study.pass_k[:-1])),
        narrow=("never rate", *numbers),
    )


def _pass_cells(row: Row, largest: int) -> Cells:
    unsolved = row.unsolved
    return {
        **policy_cells(row),
        **{f"pass@{k} rate": f"{100 * interval.value:.0f}%" for k, interval in row.passes.items()},
        **{f"pass@{k}": format_rate(interval) for k, interval in row.passes.items()},
        "gain": format_gain(row.pass_gains.get(f"pass@{largest}")),
        "tuned": format_gain(row.pass_gains.get(f"pass@{largest} tuned")),
        "never rate": "" if unsolved is None else f"{100 * unsolved.value:.0f}%",
        "never": "" if unsolved is None else format_rate(unsolved),
    }


def _learning_table(study: Study, rows: Sequence[Row]) -> StudyTable:
    notes = ["area: mean success on validation tasks, up to the generated tokens that all runs there reach"]
    if study.seeds > 1:
        notes.append("95 % intervals over training runs in brackets")
    if any(row.area_gains for row in rows):
        notes += [f"gain: over the runs of {study.baseline} with the same seeds", _star_note(rows, "area_gains")]
    setting = study.tuning.setting if study.tuning is not None else ""
    if setting:
        notes.append(f"{setting} was chosen for each recipe and environment on validation tasks, with other seeds")
    return StudyTable(
        f"{study.name}: learning at equal generated tokens",
        notes,
        {
            "policy": "policy",
            "runs": "runs",
            "tuned_value": setting.rpartition(".")[2],
            "updates": "updates",
            "tokens": "tokens",
            "seconds": "CPU s",
            "area": "area",
            "gain": "gain",
        },
        [(row, _learning_cells(row)) for row in rows if row.area is not None],
        wide=("tokens",),  # They are equal.
    )


def _learning_cells(row: Row) -> Cells:
    details, area, gain = row.details, row.area, row.area_gains.get("baseline")
    assert area is not None
    bounds = f" [{100 * area.low:.1f}, {100 * area.high:.1f}]" if row.runs > 1 else ""
    value = details.get("tuned_value_per_run")
    difference = "" if gain is None else f"{100 * gain.result.difference.value:+.1f}"
    return {
        **policy_cells(row),
        "tuned_value": "" if value is None else f"{value:g}",
        "updates": f"{details['updates_per_run']:.0f}",
        "tokens": f"{details['generated_tokens_per_run'] / 1000:.0f}k",
        "seconds": f"{details['cpu_seconds_per_run']:.0f}",
        "area": f"{100 * area.value:.1f}%{bounds}",
        "gain": difference + ("*" if gain is not None and gain.is_significant else ""),
    }


def _collapse_table(study: Study, rows: Sequence[Row]) -> StudyTable:
    return StudyTable(
        f"{study.name}: collapse of training",
        [
            "success of training episodes, as a moving average over the monitor's window; means over runs",
            f"fell: update from which on it is below {FALLEN:.0%} of its peak, run by run (- if it never is)",
            f"warned: update of the monitor's first alarm ({', '.join(WARNINGS)}), run by run",
        ],
        {
            "policy": "policy",
            "runs": "runs",
            "updates": "updates",
            "peak": "peak",
            "last": "last",
            "collapsed": "collapsed",
            "fell": "fell",
            "warned": "warned",
        },
        [(row, _collapse_cells(row)) for row in rows if row.collapses],
    )


def _collapse_cells(row: Row) -> Cells:
    runs = list(row.collapses.values())
    return {
        **policy_cells(row),
        "updates": f"{fmean(run.updates for run in runs):.0f}",
        "peak": f"{fmean(run.peak for run in runs):.0%}",
        "last": f"{fmean(run.last for run in runs):.0%}",
        "collapsed": f"{sum(run.fell is not None for run in runs)} of {len(runs)}",
        "fell": " ".join("-" if run.fell is None else str(run.fell) for run in runs),
        "warned": " ".join("-" if run.warning is None else str(run.warning.update) for run in runs),
    }


def _change_table(study: Study, rows: Sequence[Row]) -> StudyTable:
    env = next(iter(study.envs))
    window = study.config(Trial(env, next(iter(study.recipes)), 0), Path()).monitor.window
    return StudyTable(
        f"{study.name}: what changes on the way",
        [
            f"means over runs of the first and of the last {window} updates",
            "success and return of training episodes; std: deviation of returns within groups",
            "entropy per token; reply: tokens",
        ],
        {
            "policy": "policy",
            "success": "success",
            "return": "return",
            "group_return_std": "std",
            "entropy": "entropy",
            "reply_tokens": "reply",
        },
        [(row, _change_cells(row)) for row in rows if row.changes],
    )


def _change_cells(row: Row) -> Cells:
    cells = {"policy": format_policy(row)}
    for name, (first, last) in row.changes.items():
        if name == "success":
            cells[name] = f"{100 * first:.0f} → {last:.0%}"
        else:
            digits = 1 if name == "reply_tokens" else 2
            cells[name] = f"{first:.{digits}f} → {last:.{digits}f}"
    return cells


def _pair_table(study: Study, rows: Sequence[Row]) -> StudyTable:
    return StudyTable(
        f"{study.name}: recipes compared run by run",
        [
            "difference in success, in points, from the runs of the other recipe with the same seeds",
            _interval_note(study),
            _star_note(rows, "pair_gains"),
            *_single_run_note([row for row in rows if row.pair_gains]),
        ],
        {"policy": "policy", "other": "over", "sampled": "sampled", "greedy": "greedy"},
        [(row, cells) for row in rows for cells in _pair_cells(row)],
    )


def _pair_cells(row: Row) -> Iterator[Cells]:
    for other in dict.fromkeys(other for other, _ in row.pair_gains):
        yield {
            "policy": format_policy(row),
            "other": other,
            **{decoding: format_difference(row.pair_gains[other, decoding]) for decoding in ("sampled", "greedy")},
        }


def _level_table(study: Study, rows: Sequence[Row]) -> StudyTable:
    notes = ["change in points since the warm start, so that a loss is what was forgotten"]
    if any(row.level_gains for row in rows):
        notes.append(_star_note(rows, "level_gains"))
    return StudyTable(
        f"{study.name}: success on up to {study.level_tasks} tasks of each of the warm start's levels",
        notes,
        {
            "policy": "policy",
            "level": "level",
            "sampled": "sampled",
            "change": "change",
            "greedy": "greedy",
            "greedy change": "change",
        },
        [(row, cells) for row in rows for cells in _level_cells(row)],
    )


def _level_cells(row: Row) -> Iterator[Cells]:
    for level in dict.fromkeys(level for level, _ in row.levels):
        yield {
            "policy": format_policy(row),
            "level": level,
            "sampled": format_rate(row.levels[level, "sampled"]),
            "change": format_gain(row.level_gains.get((level, "sampled"))),
            "greedy": format_rate(row.levels[level, "greedy"]),
            "greedy change": format_gain(row.level_gains.get((level, "greedy"))),
        }


def _interval_note(study: Study) -> str:
    runs = ", and over training runs where there are several" if study.seeds > 1 else ""
    return f"95 % intervals over tasks{runs} in brackets"


def _star_note(rows: Sequence[Row], family: str) -> str:
    count = count_comparisons(rows, family)
    if count == 1:
        return "* significant at 5 % (one comparison)"
    return f"* significant at 5 % among {count} comparisons (Holm's correction)"


def _single_run_note(rows: Sequence[Row]) -> list[str]:
    if all(row.runs != 1 for row in rows):
        return []
    return ["with one run, that run's policy is compared, not its recipe"]
