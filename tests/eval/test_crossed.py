"""Intervals over runs and tasks: worked examples, tables of Student's t, and coverage in simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from arboretum.eval.statistics import wilson
from arboretum.eval.statistics.crossed import crossed_difference, crossed_mean, crossed_rate, holm
from arboretum.eval.statistics.student_t import two_sided_p, two_sided_quantile

# ---------------------------------------------------------------------- Student's t


@pytest.mark.parametrize(
    ("df", "quantile"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (10, 2.228), (30, 2.042), (120, 1.980), (1e9, 1.960)],
)
def test_quantiles_equal_the_printed_table(df: float, quantile: float) -> None:
    assert two_sided_quantile(0.95, df) == pytest.approx(quantile, abs=5e-4)
    assert two_sided_p(two_sided_quantile(0.95, df), df) == pytest.approx(0.05, rel=1e-6)


def test_p_values_equal_the_closed_forms_of_one_and_two_degrees_of_freedom() -> None:
    for t in (0.01, 0.5, 1.0, 3.0, 40.0):
        assert two_sided_p(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), rel=1e-10)
        assert two_sided_p(-t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-10)
    assert two_sided_p(math.inf, 3) == 0.0


# ---------------------------------------------------------------------- two crossed factors


def test_variances_of_a_small_table_worked_by_hand() -> None:
    # Mean 3; runs 2 and 4; tasks 2, 3, 4. MS_R = 3 (1 + 1) / 1 = 6, MS_T = 2 (1 + 0 + 1) / 2 = 2.
    # Rest: [[1, -1, 0], [-1, 1, 0]], MS_E = 4 / 2 = 2.
    mean = crossed_mean([[2.0, 1.0, 3.0], [2.0, 5.0, 5.0]])
    assert mean.value == 3.0
    assert mean.between_runs == pytest.approx((6 - 2) / 6) and mean.between_tasks == pytest.approx(2 / 6)
    expected = math.sqrt(12.706205**2 * 4 / 6 + 4.302653**2 * 2 / 6)
    assert mean.half_width(0.95) == pytest.approx(expected, rel=1e-6)


def test_p_value_is_that_of_the_interval_which_ends_at_zero() -> None:
    mean = crossed_mean([[0.2, 0.1, 0.3, 0.5, 0.2], [0.2, 0.5, 0.5, 0.6, 0.3], [0.1, 0.3, 0.2, 0.3, 0.0]])
    assert mean.between_runs > 0
    assert mean.half_width(1 - mean.p_value()) == pytest.approx(mean.value, rel=1e-6)


def test_one_run_has_the_t_interval_over_tasks() -> None:
    mean = crossed_mean([[0.0, 1.0, 1.0, 2.0]])
    assert mean.half_width(0.95) == pytest.approx(3.182446 * math.sqrt(2 / 3 / 4), rel=1e-6)
    assert mean.p_value() == pytest.approx(two_sided_p(1 / math.sqrt(2 / 3 / 4), 3))


def test_equal_policies_have_no_difference_and_constant_gains_are_certain() -> None:
    y = [[0.5, 0.0, 1.0], [0.5, 0.5, 1.0]]
    same = crossed_difference(y, y)
    assert (same.n, same.only_a, same.only_b, same.p_value) == (3, 0, 0, 1.0) and same.difference == (0, 0, 0)
    constant = crossed_difference([[0.5, 0.5]], [[0.25, 0.25]])
    assert constant.difference == (0.25, 0.25, 0.25) and constant.p_value == 0.0


def simulate(generator: np.random.Generator, shape: tuple[int, int], *scales: float) -> NDArray[np.float64]:
    """Return results (R, T) with normal effects of runs, tasks and the rest, of the given standard deviations."""
    run, task, rest = scales
    runs, tasks = shape
    effects = run * generator.normal(size=(runs, 1)) + task * generator.normal(size=(1, tasks))
    return np.asarray(effects + rest * generator.normal(size=shape))


@pytest.mark.parametrize("scales", [(0.0, 0.4, 0.3), (0.03, 0.4, 0.3), (0.1, 0.4, 0.3), (0.3, 0.0, 0.3)])
@pytest.mark.parametrize("shape", [(3, 64), (3, 512), (5, 128)])
def test_interval_covers_the_mean_in_95_percent_of_simulations(
    shape: tuple[int, int], scales: tuple[float, float, float]
) -> None:
    generator, repeats = np.random.default_rng(1), 1500
    covered = 0
    for _ in range(repeats):
        mean = crossed_mean(simulate(generator, shape, *scales))
        covered += abs(mean.value) <= mean.half_width(0.95)
    assert 0.93 <= covered / repeats <= 0.98


def test_interval_over_tasks_alone_is_too_short_where_runs_differ() -> None:
    generator, repeats = np.random.default_rng(2), 500
    covered = 0
    for _ in range(repeats):
        y = simulate(generator, (3, 256), 0.1, 0.4, 0.3)
        covered += abs(y.mean()) <= crossed_mean(y.mean(axis=0, keepdims=True)).half_width(0.95)
    assert covered / repeats < 0.6


@pytest.mark.parametrize(("logit", "run"), [(0.5, 0.0), (0.5, 0.4), (3.0, 0.3)])
def test_rate_of_successes_is_covered_in_95_percent_of_simulations(logit: float, run: float) -> None:
    generator, repeats, episodes = np.random.default_rng(3), 800, 2

    def probabilities(runs: int, tasks: int) -> NDArray[np.float64]:
        effects = run * generator.normal(size=(runs, 1)) + 1.5 * generator.normal(size=(1, tasks))
        return np.asarray(1 / (1 + np.exp(-logit - effects)))

    truth = float(np.mean([probabilities(1000, 1000).mean() for _ in range(10)]))
    covered = 0
    for _ in range(repeats):
        y = generator.binomial(episodes, probabilities(3, 128)) / episodes
        interval = crossed_rate(y, episodes)
        assert 0 <= interval.low <= interval.value <= interval.high <= 1
        covered += interval.low <= truth <= interval.high
    assert 0.92 <= covered / repeats <= 0.99


def test_rates_of_0_and_1_have_the_interval_of_as_many_tasks() -> None:
    assert crossed_rate(np.ones((3, 20))) == wilson(20, 20)
    assert crossed_rate(np.zeros((1, 20))) == wilson(0, 20)


# ---------------------------------------------------------------------- multiplicity


def test_holm_multiplies_the_smallest_p_value_by_their_number() -> None:
    # Sorted: 0.005 × 4, 0.01 × 3, 0.03 × 2, and 0.04 × 1, which is raised to the one before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]
