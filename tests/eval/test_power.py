"""Power of paired comparisons: worked examples, statsmodels, and the rate of significance in simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from arboretum.eval.statistics import mcnemar, sign_flips
from arboretum.eval.statistics.power import Design, needed_tasks, smallest_difference


def test_number_of_tasks_worked_by_hand() -> None:
    # Connor 1987: (1.95996 sqrt(0.3) + 0.84162 sqrt(0.3 - 0.01))² / 0.01 = 232.95 without correction. With it, for
    # K = 1.52674: ((K + sqrt(K² + 4 · 0.1)) / 0.2)² = 252.6.
    k = 1.959964 * math.sqrt(0.3) + 0.841621 * math.sqrt(0.29)
    assert k**2 / 0.01 == pytest.approx(232.95, abs=0.5)
    assert needed_tasks(Design([0.3], [50], True), 0.1) == math.ceil(((k + math.sqrt(k**2 + 0.4)) / 0.2) ** 2)
    # Means have no correction.
    assert needed_tasks(Design([0.3], [50], False), 0.1) == math.ceil(k**2 / 0.01)


def test_number_of_tasks_agrees_with_statsmodels() -> None:
    power = pytest.importorskip("statsmodels.stats.power", reason="needs the extra dev")
    for psi, difference in ((0.3, 0.1), (0.5, 0.05), (0.05, 0.02)):
        expected = power.normal_sample_size_one_tail(
            difference, 0.8, 0.025, std_null=math.sqrt(psi), std_alternative=math.sqrt(psi - difference**2)
        )
        assert needed_tasks(Design([psi], [64], False), difference) == math.ceil(expected)


@pytest.mark.parametrize("is_single", [True, False])
@pytest.mark.parametrize("tasks", [16, 64, 1000])
def test_smallest_difference_needs_the_tasks_that_there_are(tasks: int, is_single: bool) -> None:
    design = Design([0.4], [tasks], is_single)
    smallest = smallest_difference(design)
    assert smallest is not None and needed_tasks(design, smallest) == tasks
    assert needed_tasks(design, smallest / 2) > 3 * tasks  # type: ignore[operator]


def test_same_tasks_in_two_entries_show_what_they_show_in_one() -> None:
    one = smallest_difference(Design([0.3], [128], True))
    two = smallest_difference(Design([0.3, 0.3], [64, 64], True))
    assert one == pytest.approx(two, abs=1e-5)


def test_five_tasks_show_no_difference_and_equal_agents_give_no_estimate() -> None:
    # Five discordant pairs in one direction have p = 2 / 2⁵ = 0.0625; six have 0.03125.
    assert smallest_difference(Design([1.0], [5], True)) is None
    assert smallest_difference(Design([1.0], [6], True)) is not None
    assert smallest_difference(Design([0.0], [64], True)) is None
    assert needed_tasks(Design([0.0], [64], True), 0.1) is None


@pytest.mark.parametrize("is_single", [True, False])
def test_fewer_tasks_than_a_sign_flip_test_needs_show_nothing(is_single: bool) -> None:
    assert sign_flips(np.ones(5)) > 0.05 >= sign_flips(np.ones(6))
    for tasks in ([4], [5], [2, 3]):
        assert smallest_difference(Design([0.5] * len(tasks), tasks, is_single)) is None
        assert needed_tasks(Design([0.5] * len(tasks), tasks, is_single), 0.95) >= 6  # type: ignore[operator]
    assert smallest_difference(Design([0.5], [6], False)) is not None


@pytest.mark.parametrize(("psi", "tasks"), [(0.3, 64), (0.5, 32), (0.2, 256), (0.05, 512)])
def test_exact_test_finds_the_smallest_difference_in_80_percent_of_simulations(psi: float, tasks: int) -> None:
    smallest = smallest_difference(Design([psi], [tasks], True))
    assert smallest is not None and smallest < psi
    rng = np.random.default_rng(0)
    chances = [(psi + smallest) / 2, (psi - smallest) / 2, 1 - psi]
    found = np.mean([mcnemar(int(a), int(b)) <= 0.05 for a, b, _ in rng.multinomial(tasks, chances, size=3000)])
    assert 0.78 <= found <= 0.87


def test_mean_over_entries_finds_the_smallest_difference_in_80_percent_of_simulations() -> None:
    psi, tasks = (0.3, 0.5), (64, 96)
    smallest = smallest_difference(Design(psi, tasks, True))
    assert smallest is not None
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(400):
        weighted = [
            rng.choice([1, -1, 0], size=n, p=[(p + smallest) / 2, (p - smallest) / 2, 1 - p]) / (2 * n)
            for p, n in zip(psi, tasks, strict=True)
        ]
        found += sign_flips(np.concatenate(weighted), draws=2000) <= 0.05
    assert 0.75 <= found / 400 <= 0.89
