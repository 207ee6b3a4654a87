"""Calibration of paired comparisons in simulations: coverage of intervals and rates of false positives.

An agent solves an episode if a normal variable is below the task's threshold; both agents share a part of it,
which is what common randomness does. The bounds are binomial: they hold in 99.9 % of simulations of a calibrated
method. An exact test has fewer false positives than its level, so only the upper bound matters there.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from arboretum.eval.statistics import paired, stratified, student_mean

DRAWS = 500
PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"


class Scenario(NamedTuple):
    """Distribution of the tasks' thresholds, gain of the first agent, and correlation of the agents' noise."""

    center: float
    spread: float
    gain: float
    common: float

    @property
    def difference(self) -> float:
        cdf, scale = NormalDist().cdf, math.sqrt(1 + self.spread**2)
        return cdf((self.center + self.gain) / scale) - cdf(self.center / scale)


def simulate(
    rng: np.random.Generator, scenario: Scenario, tasks: int, repeats: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the outcomes (tasks, repeats) of both agents."""
    center, spread, gain, common = scenario
    threshold = center + spread * rng.normal(size=(tasks, 1))
    shared = math.sqrt(common) * rng.normal(size=(tasks, repeats))
    own = [shared + math.sqrt(1 - common) * rng.normal(size=(tasks, repeats)) for _ in range(2)]
    return own[0] < threshold + gain, own[1] < threshold


SCENARIOS = [
    Scenario(0.0, 1.0, 0.3, 0.0),
    Scenario(0.0, 1.0, 0.3, 0.8),
    Scenario(0.0, 4.0, 0.3, 0.8),
    Scenario(1.5, 1.0, 0.3, 0.0),
    Scenario(0.0, 0.0, 0.3, 0.0),
]


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(("tasks", "repeats"), [(64, 1), (64, 4), (16, 4)])
def test_interval_covers_the_difference_in_95_percent_of_simulations(
    tasks: int, repeats: int, scenario: Scenario
) -> None:
    rng = np.random.default_rng(tasks + repeats)
    covered = 0
    for _ in range(DRAWS):
        a, b = simulate(rng, scenario, tasks, repeats)
        _, low, high = paired(a.tolist(), b.tolist()).difference
        covered += low <= scenario.difference <= high
    # Newcombe's correction makes the interval conservative where few tasks differ.
    assert covered >= binom.ppf(0.001, DRAWS, 0.95)


@pytest.mark.heavy
@pytest.mark.parametrize(("tasks", "repeats"), [(8, 4), (16, 4), (64, 1), (64, 4), (256, 2)])
def test_coverage_of_the_page_comes_out_again(tasks: int, repeats: int) -> None:
    """Repeat a row of the table of docs/statistics.md, which compares with Student's interval over tasks."""
    draws = 400
    covered = []
    for number, values in enumerate(itertools.product((0.0, 1.5, 2.5), (1.0, 4.0), (0.0, 0.3), (0.0, 0.8))):
        scenario, rng = Scenario(*values), np.random.default_rng([tasks, repeats, number])
        hits = np.zeros(2)
        for _ in range(draws):
            a, b = simulate(rng, scenario, tasks, repeats)
            intervals = (
                paired(a.tolist(), b.tolist()).difference,
                student_mean((a.mean(axis=1) - b.mean(axis=1)).tolist()),
            )
            # Equal agents without a common task have a difference of 0, up to rounding.
            hits += [one.low - 1e-12 <= scenario.difference <= one.high + 1e-12 for one in intervals]
        covered.append(100 * hits / draws)
    assert len(covered) == 24
    cells = [f"{cell:.1f} %" for method in np.array(covered).T for cell in (method.mean(), method.min())]
    assert f"| {tasks} × {repeats} | {' | '.join(cells)} |" in PAGE.read_text(encoding="utf-8")


def test_interval_covers_where_agents_differ_by_task_and_one_without_clusters_does_not() -> None:
    rng = np.random.default_rng(3)
    clustered = single = 0
    for _ in range(DRAWS):
        # The agents are equal on average, but each is good at other tasks.
        a, b = (rng.normal(size=(32, 8)) < 2 * rng.normal(size=(32, 1)) for _ in range(2))
        _, low, high = paired(a.tolist(), b.tolist()).difference
        clustered += low <= 0 <= high
        _, low, high = paired(a.reshape(-1, 1).tolist(), b.reshape(-1, 1).tolist()).difference
        single += low <= 0 <= high
    assert clustered >= binom.ppf(0.001, DRAWS, 0.95) and single / DRAWS < 0.7


@pytest.mark.parametrize("common", [0.0, 0.8])
@pytest.mark.parametrize(("tasks", "repeats"), [(64, 1), (64, 8)])
def test_false_positives_are_at_most_as_frequent_as_the_level(tasks: int, repeats: int, common: float) -> None:
    rng = np.random.default_rng(5)
    false = 0
    for _ in range(DRAWS):
        a, b = simulate(rng, Scenario(0.3, 1.0, 0.0, common), tasks, repeats)
        false += paired(a.tolist(), b.tolist()).p_value <= 0.05
    assert false <= binom.ppf(0.999, DRAWS, 0.05)
    if repeats > 1:  # the differences have fine steps, so that the test reaches its level
        assert false >= binom.ppf(0.001, DRAWS, 0.05)


def test_mean_over_entries_is_calibrated() -> None:
    rng = np.random.default_rng(7)
    entries = [(Scenario(0.0, 1.0, 0.3, 0.5), 48, 1), (Scenario(1.0, 1.0, 0.0, 0.5), 24, 3)]
    truth = float(np.mean([scenario.difference for scenario, _, _ in entries]))
    covered = false = 0
    for _ in range(DRAWS):
        for gain in (True, False):
            strata, differences = [], []
            for scenario, tasks, repeats in entries:
                used = scenario if gain else scenario._replace(gain=0.0)
                a, b = simulate(rng, used, tasks, repeats)
                strata.append(paired(a.tolist(), b.tolist()))
                differences.append((a.mean(axis=1) - b.mean(axis=1)).tolist())
            result = stratified(strata, differences)
            covered += gain and result.difference.low <= truth <= result.difference.high
            false += not gain and result.p_value <= 0.05
    assert covered >= binom.ppf(0.001, DRAWS, 0.95)
    assert binom.ppf(0.001, DRAWS, 0.05) <= false <= binom.ppf(0.999, DRAWS, 0.05)
