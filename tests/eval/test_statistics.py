"""Confidence intervals and tests against SciPy and published examples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, permutation_test, t, ttest_rel

from arboretum.envs.errors import ConfigurationError
from arboretum.eval.decisions.statistics import clustered_share
from arboretum.eval.statistics import (
    Interval,
    Moments,
    mcnemar,
    mean,
    paired,
    paired_means,
    rate,
    sign_flips,
    stratified,
    wilson,
)
from arboretum.eval.statistics.crossed import holm
from arboretum.eval.statistics.student_t import two_sided_quantile


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


@pytest.mark.parametrize(("tasks", "repeats"), [(64, 4), (64, 16), (128, 8)])
def test_interval_covers_the_rate_of_an_agent_whose_repeats_are_all_equal(tasks: int, repeats: int) -> None:
    """With c of its tasks solved every time, also where c is 0: exact coverage, from the binomial distribution."""
    bounds = [rate([[True] * repeats] * c + [[False] * repeats] * (tasks - c)) for c in range(tasks + 1)]
    for share in (0.01, 0.02, 0.05, 0.3, 0.98):
        weights = binom.pmf(np.arange(tasks + 1), tasks, share)
        covered = sum(w for w, one in zip(weights, bounds, strict=True) if one.low <= share <= one.high)
        assert covered > 0.9, share
    assert rate([[False] * repeats] * tasks) == wilson(0, tasks)
    assert rate([[True] * repeats] * tasks) == wilson(tasks, tasks)


@pytest.mark.parametrize("df", [1, 2, 3, 5, 15, 100, 1e5])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_students_quantile_agrees_with_scipy(confidence: float, df: float) -> None:
    assert two_sided_quantile(confidence, df) == pytest.approx(t.ppf(0.5 + confidence / 2, df), rel=1e-9)


def test_students_quantile_equals_the_closed_forms_of_one_and_two_degrees_of_freedom() -> None:
    for p in (0.5, 0.9, 0.95, 0.99):
        assert two_sided_quantile(p, 1) == pytest.approx(math.tan(math.pi * p / 2), rel=1e-9)
        assert two_sided_quantile(p, 2) == pytest.approx(p * math.sqrt(2 / (1 - p * p)), rel=1e-9)


@pytest.mark.parametrize(("k", "quantile"), [(2, 12.706205), (3, 4.302653)])
def test_effective_sample_size_of_few_tasks_uses_the_printed_quantiles(k: int, quantile: float) -> None:
    # All outcomes vary within each task in the same way, so the design effect is 1 (Korn and Graubard 1998).
    n = 10 * k
    effective = n * (t.ppf(0.975, n - 1) / quantile) ** 2
    assert rate([[True, False] * 5] * k) == pytest.approx(wilson(effective / 2, effective), rel=1e-6)


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


# ---------------------------------------------------------------------- statsmodels


@pytest.mark.parametrize(("only_a", "only_b"), [(12, 2), (3, 3), (0, 7), (700, 640), (5200, 4980)])
def test_mcnemar_agrees_with_statsmodels(only_a: int, only_b: int) -> None:
    tables = pytest.importorskip("statsmodels.stats.contingency_tables", reason="needs the extra dev")
    expected = tables.mcnemar([[10, only_a], [only_b, 5]], exact=True)
    assert mcnemar(only_a, only_b) == pytest.approx(expected.pvalue, rel=1e-9)


def test_interval_of_uncorrelated_rates_is_newcombes_for_independent_ones_in_statsmodels() -> None:
    proportion = pytest.importorskip("statsmodels.stats.proportion", reason="needs the extra dev")
    # A balanced table: b solves half of the tasks that a solves, and half of the others.
    a, b = [True] * 24 + [False] * 12, ([True] * 12 + [False] * 12) + [True] * 6 + [False] * 6
    low, high = proportion.confint_proportions_2indep(24, 36, 18, 36, method="newcomb")
    result = paired([[x] for x in a], [[x] for x in b])
    assert result.difference == pytest.approx((6 / 36, low, high))


def test_means_over_tasks_agree_with_cluster_robust_errors_of_statsmodels_and_with_scipy() -> None:
    regression = pytest.importorskip("statsmodels.regression.linear_model", reason="needs the extra dev")
    rng = np.random.default_rng(0)
    tasks, repeats = 12, 4
    difficulty = rng.normal(size=(tasks, 1))
    a, b = (difficulty + rng.normal(size=(tasks, repeats)) for _ in range(2))
    ours = paired_means((a.mean(axis=1) - b.mean(axis=1)).tolist()).difference
    groups = np.repeat(np.arange(tasks), repeats)
    model = regression.OLS((a - b).ravel(), np.ones(tasks * repeats))
    # The correction G / (G - 1) is that of the sample variance of the G tasks' means.
    fit = model.fit(cov_type="cluster", cov_kwds={"groups": groups, "df_correction": True}, use_t=True)
    assert ours == pytest.approx((fit.params[0], *fit.conf_int()[0]))
    low, high = ttest_rel(a.mean(axis=1), b.mean(axis=1)).confidence_interval(0.95)
    assert ours == pytest.approx((ours.value, low, high))


@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_holm_agrees_with_statsmodels(count: int) -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest", reason="needs the extra dev")
    p_values = (np.random.default_rng(count).random(count) ** 4).tolist()
    assert holm(p_values) == pytest.approx(multitest.multipletests(p_values, method="holm")[1])


# ---------------------------------------------------------------------- repeats and strata


def test_equal_agents_with_repeats_have_an_interval_of_positive_width() -> None:
    always = [[True] * 4] * 8
    difference = paired(always, always).difference
    single = rate(always)
    # Two uncorrelated rates of 100 %: the distances of their lower bounds.
    assert difference == pytest.approx((0.0, single.low - 1, 1 - single.low))


def test_repeats_with_equal_outcomes_nearly_have_the_interval_of_single_episodes() -> None:
    a, b = [True] * 20 + [False] * 12, [True] * 14 + [False] * 8 + [True] * 2 + [False] * 8
    once = paired([[x] for x in a], [[x] for x in b]).difference
    four = paired([[x] * 4 for x in a], [[x] * 4 for x in b]).difference
    assert once.value == four.value
    assert four.low == pytest.approx(once.low, abs=0.04) and four.high == pytest.approx(once.high, abs=0.04)


def test_tasks_with_other_numbers_of_repeats_weigh_the_same() -> None:
    result = paired([[True], [True, False]], [[False], [False, False, False, True]])
    assert result.difference.value == pytest.approx((1.0 + 0.25) / 2)


@given(
    st.lists(st.sampled_from([-1, -0.75, -0.5, 0, 0.25, 0.5]), min_size=1, max_size=6),
    st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=5),
)
def test_stratified_test_agrees_with_scipys_permutations_of_the_mean_over_strata(
    first: list[float], second: list[float]
) -> None:
    strata = [paired_means(first), paired_means(second)]
    result = stratified(strata, [first, second])
    assert result.difference.value == pytest.approx((np.mean(first) + np.mean(second)) / 2)
    # The weighted differences times 8 n1 n2 are whole numbers, whose sums SciPy compares without rounding.
    weighted = [4.0 * d * len(second) for d in first] + [4.0 * d * len(first) for d in second]
    expected = permutation_test(
        (weighted,),
        lambda x, axis: x.sum(axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
    )
    assert result.p_value == pytest.approx(expected.pvalue, abs=1e-9)


def test_bounds_of_strata_add_up_as_squares_worked_by_hand() -> None:
    one = paired([[True]], [[False]])._replace(difference=Interval(0.3, 0.0, 0.7))
    two = paired([[True]], [[False]])._replace(difference=Interval(0.1, -0.3, 0.4))
    # sqrt(0.3² + 0.4²) / 2 = 0.25 and sqrt(0.4² + 0.3²) / 2 = 0.25
    assert stratified([one, two], [[1.0], [1.0]]).difference == pytest.approx((0.2, -0.05, 0.45))
    assert stratified([one], [[1.0]]) == one


def test_sign_flips_of_many_tasks_agree_with_mcnemars_exact_test() -> None:
    differences = [1.0] * 260 + [-1.0] * 205 + [0.0] * 90_000
    assert sign_flips(differences) == pytest.approx(mcnemar(260, 205), rel=1e-9)
    # Too many different sums for all of them: random signs, near the exact value of the pooled test.
    scattered = [d * (1 + i / 1e6) for i, d in enumerate(differences)]
    assert sign_flips(scattered) == pytest.approx(mcnemar(260, 205), abs=0.01)


def test_share_over_tasks_with_equal_shares_does_not_depend_on_rounding() -> None:
    """Of 7 of 25 in each task, 25 * (7 / 25) is not 7: the sample size was 75 in place of 3 tasks."""
    assert clustered_share([(7, 25)] * 3) == pytest.approx(wilson(0.84, 3))
    assert clustered_share([(5, 20)] * 3) == pytest.approx(wilson(0.75, 3))


def test_interval_of_a_share_is_wilsons_with_the_width_of_students() -> None:
    values = [1.0, 1.0, 0.5, 1.0, 0.25, 1.0, 1.0, 0.75]
    moments = Moments()
    for value in values:
        moments.add(value)
    half = t.ppf(0.975, 7) * np.std(values, ddof=1) / math.sqrt(8)
    p = float(np.mean(values))
    size = p * (1 - p) * (1.959963984540054 / half) ** 2
    found = moments.share()
    assert found == pytest.approx(wilson(p * size, size)) and found.value == p == moments.mean()
    assert found.high < 1.0 < p + half


@pytest.mark.parametrize(("values", "size"), [([0.4] * 6, 6), ([0.4], 1)])
def test_share_without_a_variance_has_the_sample_size_of_its_tasks(values: list[float], size: int) -> None:
    moments = Moments()
    for value in values:
        moments.add(value)
    assert moments.share() == pytest.approx(wilson(0.4 * size, size))


def test_shares_cover_their_mean_where_few_tasks_miss_the_full_score() -> None:
    """Nine of ten scores are 1: the normal interval covered the mean in 56 % of simulations of 8 tasks."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        moments = Moments()
        for value in np.where(rng.random(8) < 0.9, 1.0, rng.beta(3, 3, 8)):
            moments.add(float(value))
        _, low, high = moments.share()
        assert 0.0 <= low <= high <= 1.0
        covered += low <= 0.95 <= high
    assert covered >= 0.93 * 400


def test_share_over_clusters_equals_wilson_where_clusters_are_single_decisions() -> None:
    counts = [(1, 1)] * 30 + [(0, 1)] * 70
    plain = wilson(30, 100)
    assert clustered_share(counts) == plain
    assert clustered_share([(1, 1)] * 3 + [(0, 1)]) == wilson(3, 4) == rate([[True]] * 3 + [[False]])
    # Ten equal decisions in each task are no more than one.
    tenfold = clustered_share([(10 * x, 10) for x, _ in counts])
    assert tenfold.value == plain.value == 0.3
    assert tenfold.low == pytest.approx(plain.low, abs=0.003)
    assert tenfold.high == pytest.approx(plain.high, abs=0.003)
    groups = [[True] * x + [False] * (n - x) for x, n in [(3, 5), (1, 4), (6, 6), (0, 3), (2, 8)]]
    expected = rate(groups)
    found = clustered_share([(sum(g), len(g)) for g in groups])
    assert found.value == expected.value
    assert found.low <= expected.low + 0.05 and found.high >= expected.high - 0.05
    assert clustered_share([(4, 4)] * 10) == wilson(10, 10)  # tasks, not decisions
    assert clustered_share([(0, 0)]).low == 0.0


def test_tasks_without_an_episode_say_nothing() -> None:
    assert rate([[True], []]) == rate([[True]]) and rate([[]]) == rate([])
    assert paired([[True], [], [True]], [[False], [True], []]) == paired([[True]], [[False]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((3, 2), "3 successes in 2 trials"), ((-1, 2), "-1 successes"), ((1, 2, 95), "between 0 and 1, not 95")],
)
def test_impossible_rates_are_refused(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        wilson(*arguments)
