"""Results of a study as rows: success, pass@k and forgetting, with intervals over training runs and tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...eval.statistics import Interval, Paired, paired, rate, student_mean
from ...eval.statistics.crossed import crossed_difference, crossed_rate, holm
from ...eval.statistics.repeats import pass_at_k
from ...eval.statistics.student_t import two_sided_p
from .changes import Changes, mean_changes, read_changes
from .collapse import RunCollapse, read_collapse
from .curves import common_tokens, read_curve
from .definition import SUPERVISED, Study, Trial
from .evaluation import Outcomes
from .trials import EXPERT, OTHER_MODEL, RANDOM, TUNED, WARM_START, policy_path, read_result, trial_path

SIGNIFICANCE = 0.05
"""Probability of one or more false positives among the comparisons of a table."""


@dataclass(frozen=True)
class Gain:
    """Difference between a policy and one that it is compared with.

    Attributes:
        result: Difference in success, paired by task, with its interval and p-value.
        adjusted: p-value adjusted for the number of comparisons in the same table.
    """

    result: Paired
    adjusted: float = 1.0

    @property
    def is_significant(self) -> bool:
        """True if the difference is significant after the correction for the number of comparisons."""
        return self.adjusted < SIGNIFICANCE

    def to_dict(self) -> dict[str, object]:
        """Return the comparison as plain data."""
        data: dict[str, object] = dict(self.result.difference._asdict())
        return {**data, "p_value": self.result.p_value, "p_adjusted": self.adjusted, "tasks": self.result.n}


@dataclass(frozen=True)
class Row:
    """One policy in one environment.

    Attributes:
        env: Name of the environment in the study.
        policy: Name of the recipe, or of a policy that the study does not train; see `trials`.
        runs: Number of training runs; 0 for policies that were not trained in the study.
        sampled: Success rate on the held-out tasks when sampled, over runs and tasks.
        greedy: Success rate with greedy decoding; None where it was not evaluated.
        lowest, highest: Sampled success rates of the worst and the best run; None without runs.
        gains: Gains in success: "sampled" and "greedy" over the warm start, "tuned" over the warm start at its
            best temperature (sampled), "supervised" over further supervised fine-tuning and "baseline" over the
            study's baseline (both sampled, run by run).
        passes: pass@k by k; empty where it was not evaluated.
        unsolved: Fraction of tasks that no sample solved; None without samples.
        pass_gains: Gains in pass@k for the largest k: by names such as "pass@16" over the warm start, and "pass@16
            tuned" over the warm start at its best temperature.
        pair_gains: Differences from other recipes of `Study.pairs`, run by run, by recipe and decoding.
        area: Mean success on validation tasks from the start of the runs to the tokens that all runs in the
            environment generated, with an interval over runs; None without a baseline or validations.
        area_gains: By "baseline", the difference of `area` from the baseline's, run by run.
        collapses: For each run by seed, whether and when it collapsed; empty where the study does not report it.
        changes: Means over runs of metrics in the first and the last updates; empty where `collapses` is.
        levels: Success on the levels of the warm start: by name of the level and decoding.
        level_gains: Changes of these since the warm start, by name of the level and decoding.
        details: Further measurements, such as the temperature or the CPU time per run in seconds.
    """

    env: str
    policy: str
    runs: int
    sampled: Interval
    greedy: Interval | None = None
    lowest: float | None = None
    highest: float | None = None
    gains: Mapping[str, Gain] = field(default_factory=dict)
    passes: Mapping[int, Interval] = field(default_factory=dict)
    unsolved: Interval | None = None
    pass_gains: Mapping[str, Gain] = field(default_factory=dict)
    levels: Mapping[tuple[str, str], Interval] = field(default_factory=dict)
    level_gains: Mapping[tuple[str, str], Gain] = field(default_factory=dict)
    area: Interval | None = None
    area_gains: Mapping[str, Gain] = field(default_factory=dict)
    collapses: Mapping[int, RunCollapse] = field(default_factory=dict)
    changes: Changes = field(default_factory=dict)
    pair_gains: Mapping[tuple[str, str], Gain] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_improvement(self) -> bool:
        """True if the sampled policy is significantly better than the warm start."""
        gain = self.gains.get("sampled")
        return gain is not None and gain.is_significant and gain.result.difference.value > 0

    def to_dict(self) -> dict[str, object]:
        """Return the row as plain data, without fields that are None or empty."""
        data: dict[str, object] = {"env": self.env, "policy": self.policy, "runs": self.runs, **self.details}
        data["sampled"] = self.sampled._asdict()
        if self.greedy is not None:
            data["greedy"] = self.greedy._asdict()
        if self.lowest is not None:
            data |= {"lowest": self.lowest, "highest": self.highest}
        data |= {f"pass@{k}": interval._asdict() for k, interval in self.passes.items()}
        if self.unsolved is not None:
            data["unsolved"] = self.unsolved._asdict()
        if self.area is not None:
            data["area"] = self.area._asdict()
        gains = {**self.gains, **self.pass_gains, **{f"area {name}": one for name, one in self.area_gains.items()}}
        data |= {"gains": {name: gain.to_dict() for name, gain in gains.items()}} if gains else {}
        if self.collapses:
            data["collapses"] = {str(seed): one.to_dict() for seed, one in self.collapses.items()}
        if self.changes:
            data["changes"] = {
                name: {"first": first, "last": last} for name, (first, last) in self.changes.items()
            }
        pairs: dict[str, dict[str, object]] = {}
        for (other, decoding), gain in self.pair_gains.items():
            pairs.setdefault(other, {})[decoding] = gain.to_dict()
        data |= {"pairs": pairs} if pairs else {}
        levels: dict[str, dict[str, object]] = {}
        for (level, decoding), interval in self.levels.items():
            levels.setdefault(level, {})[decoding] = interval._asdict()
        for (level, decoding), gain in self.level_gains.items():
            levels[level][f"{decoding}_change"] = gain.to_dict()
        return data | ({"levels": levels} if levels else {})


def make_rows(study: Study, out: Path) -> list[Row]:
    """Return the rows of all results so far.

    Args:
        study: Study.
        out: Folder of the study.

    Raises:
        DataError: A result cannot be read.
    """
    rows = [row for env in study.envs for row in _EnvResults(study, env, out).rows()]
    for family in ("gains", "pair_gains", "pass_gains", "level_gains", "area_gains"):
        rows = _adjust(rows, family)
    return rows


def count_comparisons(rows: Sequence[Row], family: str) -> int:
    """Return the number of comparisons in a table.

    Args:
        rows: Rows of the study.
        family: Attribute of `Row` that holds the comparisons of the table.
    """
    return sum(len(getattr(row, family)) for row in rows)


def _adjust(rows: Sequence[Row], family: str) -> list[Row]:
    """Return the rows with p-values adjusted for the number of comparisons in one table."""
    p_values = [gain.result.p_value for row in rows for gain in getattr(row, family).values()]
    adjusted = iter(holm(p_values))
    found = []
    for row in rows:
        gains: dict[str, Any] = {
            key: replace(gain, adjusted=next(adjusted)) for key, gain in getattr(row, family).items()
        }
        changes: dict[str, Any] = {family: gains}
        found.append(replace(row, **changes))
    return found


class _EnvResults:
    """Results of all policies in one environment.

    Args:
        study: Study.
        env: Name of the environment.
        out: Folder of the study.
    """

    def __init__(self, study: Study, env: str, out: Path) -> None:
        self._study, self._env, self._out = study, env, out
        self._before = self._outcomes(WARM_START)
        self._tuned = self._outcomes(TUNED)
        self._supervised = dict(self._runs(SUPERVISED))
        self._baseline = dict(self._runs(study.baseline)) if study.baseline else {}
        self._areas = self._read_areas() if study.baseline else {}

    def _read_areas(self) -> dict[tuple[str, int], float]:
        """Return the area under the curve of every finished run, by recipe and seed, at equal tokens."""
        finished = [trial for trial in self._study.trials() if trial.env == self._env]
        finished = [trial for trial in finished if trial_path(self._out, trial).exists()]
        curves = [read_curve(trial, self._out) for trial in finished]
        tokens = common_tokens(curves)
        return {(curve.recipe, curve.seed): curve.area(tokens) for curve in curves} if tokens else {}

    def _outcomes(self, policy: str) -> Outcomes | None:
        result = read_result(policy_path(self._out, self._env, policy))
        return None if result is None else result["outcomes"]

    def _runs(self, recipe: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield seed and result of the finished runs of a recipe."""
        for seed in range(self._study.seeds):
            result = read_result(trial_path(self._out, Trial(self._env, recipe, seed)))
            if result is not None:
                yield seed, result

    def rows(self) -> Iterator[Row]:
        """Yield the rows in the order of the tables."""
        for policy in (RANDOM, EXPERT, OTHER_MODEL, WARM_START, TUNED):
            result = read_result(policy_path(self._out, self._env, policy))
            if result is not None:
                details: dict[str, Any] = {
                    key: result[key] for key in ("temperature", "validation") if key in result
                }
                yield replace(self._row(policy, [result["outcomes"]], {}), runs=0, details=details)
        for recipe in (SUPERVISED, *self._study.recipes):
            runs = dict(self._runs(recipe))
            if runs:
                yield self._trained_row(recipe, runs)

    def _row(self, policy: str, runs: Sequence[Outcomes], gains: Mapping[str, Gain]) -> Row:
        first, study = runs[0], self._study
        largest = study.pass_k[-1] if study.pass_k and "samples" in first else 0
        has_levels = [
            (level, decoding)
            for level in study.levels_of(self._env)
            for decoding in ("sampled", "greedy")
            if f"levels/{level}/{decoding}" in first
        ]
        return Row(
            self._env,
            policy,
            len(runs),
            _success_rate(runs, "sampled"),
            _success_rate(runs, "greedy") if "greedy" in first else None,
            gains=gains,
            passes={k: crossed_rate(_passes(runs, k), study.samples) for k in study.pass_k if "samples" in first},
            unsolved=crossed_rate(1 - _passes(runs, study.samples)) if largest else None,
            levels={key: _success_rate(runs, f"levels/{key[0]}/{key[1]}") for key in has_levels},
        )

    def _trained_row(self, recipe: str, runs: Mapping[int, dict[str, Any]]) -> Row:
        outcomes = [result["outcomes"] for result in runs.values()]
        rates = [_success_rate([run], "sampled").value for run in outcomes]
        row = self._row(recipe, outcomes, self._gains(recipe, runs))
        keys = ("updates", "generated_tokens", "cpu_seconds", "episodes", "tuned_value")
        details = {
            f"{key}_per_run": float(np.mean([result[key] for result in runs.values()]))
            for key in keys
            if all(key in result for result in runs.values())
        }
        row = replace(row, lowest=min(rates), highest=max(rates), details=details)
        row = self._with_areas(row, recipe, list(runs))
        if self._study.collapse and recipe != SUPERVISED:
            found = {seed: read_collapse(self._study, Trial(self._env, recipe, seed), self._out) for seed in runs}
            row = replace(row, collapses={seed: one for seed, one in found.items() if one is not None})
            trials = [Trial(self._env, recipe, seed) for seed in runs]
            changes = mean_changes([read_changes(self._study, trial, self._out) for trial in trials])
            row = replace(row, changes=changes)
        row = replace(row, pair_gains=self._pair_gains(recipe, runs))
        if self._before is None:
            return row
        level_gains = {
            key: Gain(_compare(outcomes, self._before, f"levels/{key[0]}/{key[1]}")) for key in row.levels
        }
        if not row.passes:
            return replace(row, level_gains=level_gains)
        k = max(row.passes)
        others = {f"pass@{k}": self._before, f"pass@{k} tuned": self._tuned}
        pass_gains = {
            name: Gain(crossed_difference(_passes(outcomes, k), _passes([other], k)))
            for name, other in others.items()
            if other is not None and "samples" in other
        }
        return replace(row, level_gains=level_gains, pass_gains=pass_gains)

    def _with_areas(self, row: Row, recipe: str, seeds: Sequence[int]) -> Row:
        areas = [self._areas[recipe, seed] for seed in seeds if (recipe, seed) in self._areas]
        if not areas:
            return row
        row = replace(row, area=student_mean(areas))
        shared = [seed for seed in seeds if seed in self._baseline]
        if recipe == self._study.baseline or len(shared) < 2:
            return row
        ours = [self._areas[recipe, seed] for seed in shared]
        theirs = [self._areas[self._study.baseline, seed] for seed in shared]
        return replace(row, area_gains={"baseline": Gain(_paired_means(ours, theirs))})

    def _gains(self, recipe: str, runs: Mapping[int, dict[str, Any]]) -> dict[str, Gain]:
        outcomes = [result["outcomes"] for result in runs.values()]
        gains = {}
        if self._before is not None:
            gains["sampled"] = Gain(_compare(outcomes, self._before, "sampled"))
        if self._tuned is not None:
            gains["tuned"] = Gain(_compare(outcomes, self._tuned, "sampled"))
        others = {"supervised": (SUPERVISED, self._supervised), "baseline": (self._study.baseline, self._baseline)}
        for name, (other, other_runs) in others.items():
            if recipe not in (SUPERVISED, other) and runs.keys() & other_runs:
                gains[name] = Gain(_compare_runs(runs, other_runs, "sampled"))
        if self._before is not None:
            gains["greedy"] = Gain(_compare(outcomes, self._before, "greedy"))
        return gains

    def _pair_gains(self, recipe: str, runs: Mapping[int, dict[str, Any]]) -> dict[tuple[str, str], Gain]:
        gains = {}
        for other in [second for first, second in self._study.pairs if first == recipe]:
            other_runs = dict(self._runs(other))
            if runs.keys() & other_runs:
                for decoding in ("sampled", "greedy"):
                    gains[other, decoding] = Gain(_compare_runs(runs, other_runs, decoding))
        return gains


def _compare_runs(runs: Mapping[int, dict[str, Any]], others: Mapping[int, dict[str, Any]], part: str) -> Paired:
    """Compare runs with other runs that have the same seeds, over runs and tasks."""
    shared = [seed for seed in runs if seed in others]
    ours, theirs = (_rates([one[seed]["outcomes"] for seed in shared], part) for one in (runs, others))
    return crossed_difference(ours, theirs)


def _paired_means(ours: Sequence[float], theirs: Sequence[float]) -> Paired:
    """Compare numbers of runs with those of other runs with the same seeds, by Student's paired test."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    interval, error = student_mean(differences), stdev(differences) / math.sqrt(len(differences))
    p_value = two_sided_p(interval.value / error, len(differences) - 1) if error else float(interval.value == 0)
    return Paired(
        len(differences),
        sum(one > 0 for one in differences),
        sum(one < 0 for one in differences),
        interval,
        p_value,
    )


def _rates(runs: Sequence[Outcomes], part: str) -> NDArray[np.float64]:
    """Return the success rates (R, T) of runs on the tasks of a part, in the order of the first run."""
    tasks = list(runs[0][part])
    return np.asarray([[np.mean(run[part][task]) for task in tasks] for run in runs])


def _passes(runs: Sequence[Outcomes], k: int) -> NDArray[np.float64]:
    """Return pass@k (R, T) of runs on the tasks for pass@k."""
    tasks = list(runs[0]["samples"])
    return np.asarray(
        [[pass_at_k(len(found := run["samples"][task]), sum(found), k) for task in tasks] for run in runs]
    )


def _success_rate(runs: Sequence[Outcomes], part: str) -> Interval:
    if len(runs) == 1:
        return rate(list(runs[0][part].values()))
    return crossed_rate(_rates(runs, part), len(next(iter(runs[0][part].values()))))


def _compare(runs: Sequence[Outcomes], before: Outcomes, part: str) -> Paired:
    """Compare runs with one policy, over runs and tasks; over tasks alone with one run."""
    if len(runs) == 1:
        tasks = list(before[part])
        return paired([runs[0][part][task] for task in tasks], [before[part][task] for task in tasks])
    return crossed_difference(_rates(runs, part), _rates([before], part))
