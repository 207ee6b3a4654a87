"""Confidence intervals and tests against SciPy and published examples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, permutation_test, t

from arboretum.eval.statistics import mcnemar, mean, paired, rate, sign_flips, wilson


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_agrees_with_scipy(case: tuple[int, int]) -> None:
    k, n = case
    ours = wilson(k, n)
    theirs = binomtest(k, n).proportion_ci(method="wilson")
    assert ours.value == k / n
    assert ours.low == pytest.approx(theirs.low, abs=1e-12)
    assert ours.high == pytest.approx(theirs.high, abs=1e-12)


def test_wilson_of_zero_trials_spans_all_rates() -> None:
    value, low, high = wilson(0, 0)
    assert math.isnan(value) and (low, high) == (0.0, 1.0)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_agrees_with_scipys_binomial_test(only_a: int, only_b: int) -> None:
    m = only_a + only_b
    expected = binomtest(only_a, m).pvalue if m else 1.0
    assert mcnemar(only_a, only_b) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("both", "only_a", "only_b", "neither", "low", "high"),
    [
        (36, 12, 2, 0, 0.0569, 0.3404),  # worked in Newcombe 1998, table II, method 10
        (53, 0, 0, 1, -0.0729, 0.0729),  # no discordant pair: the two single intervals, uncorrelated
    ],
)
def test_paired_interval_agrees_with_newcombe(
    both: int, only_a: int, only_b: int, neither: int, low: float, high: float
) -> None:
    a = [True] * (both + only_a) + [False] * (only_b + neither)
    b = [True] * both + [False] * only_a + [True] * only_b + [False] * neither
    result = paired([[x] for x in a], [[x] for x in b])
    assert (result.only_a, result.only_b, result.n) == (only_a, only_b, len(a))
    assert result.difference.low == pytest.approx(low, abs=5e-5)
    assert result.difference.high == pytest.approx(high, abs=5e-5)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=80))
def test_paired_comparison_is_antisymmetric_and_contains_the_estimate(outcomes: list[tuple[bool, bool]]) -> None:
    a, b = [[x] for x, _ in outcomes], [[y] for _, y in outcomes]
    forward, backward = paired(a, b), paired(b, a)
    assert forward.difference.low <= forward.difference.value + 1e-12
    assert forward.difference.value <= forward.difference.high + 1e-12
    assert forward.difference.value == pytest.approx(-backward.difference.value)
    assert forward.difference.low == pytest.approx(-backward.difference.high)
    assert forward.p_value == pytest.approx(backward.p_value)


def test_repeats_of_a_task_do_not_count_as_independent_tasks() -> None:
    tasks = [True, False, True, True, False, True, False, True] * 4
    once = rate([[outcome] for outcome in tasks])
    assert once == wilson(20, 32)
    # Ten episodes per task with equal outcomes hold no more information than one.
    ten = rate([[outcome] * 10 for outcome in tasks])
    assert ten.value == once.value
    assert ten.low == pytest.approx(once.low, abs=0.02) and ten.high == pytest.approx(once.high, abs=0.02)
    # If outcomes vary within every task in the same way, episodes are nearly as good as independent ones.
    mixed, independent = rate([[True, False]] * 32), wilson(32, 64)
    assert mixed.high - mixed.low == pytest.approx(independent.high - independent.low, rel=0.05)


def test_interval_is_continuous_where_every_episode_fails() -> None:
    none = rate([[False] * 16] * 16)
    one = rate([[True] + [False] * 15] + [[False] * 16] * 15)
    assert none.low == 0.0 and 0.01 < none.high < one.high < 0.03


@pytest.mark.parametrize("df", [3, 5, 15, 100])
def test_students_t_agrees_with_scipy(df: int) -> None:
    from arboretum.eval.statistics import _t

    assert _t(0.95, df) == pytest.approx(t.ppf(0.975, df), rel=0.01)


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=2, max_size=11))
def test_sign_flips_agree_with_scipys_permutation_test(differences: list[float]) -> None:
    expected = permutation_test(
        (differences,),
        lambda x, axis: x.sum(axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
    )
    assert sign_flips(differences) == pytest.approx(expected.pvalue, abs=1e-9)


def test_paired_comparison_with_repeats_uses_the_task_as_unit() -> None:
    a = [[True] * 16, [True] * 8 + [False] * 8] * 8
    b = [[False] * 16, [True] * 8 + [False] * 8] * 8
    result = paired(a, b)
    assert (result.n, result.only_a, result.only_b) == (16, 8, 0)
    assert result.difference.value == 0.5
    assert result.p_value == pytest.approx(2 / 2**8)  # eight tasks differ, all in the same direction


def test_mean_interval_agrees_with_the_textbook_formula() -> None:
    value, low, high = mean([1.0, 2.0, 3.0, 4.0])
    half = 1.959963984540054 * math.sqrt(5 / 3) / 2  # s = sqrt(5/3), n = 4
    assert (value, low, high) == (2.5, pytest.approx(2.5 - half), pytest.approx(2.5 + half))
