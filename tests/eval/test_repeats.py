"""pass@k, pass^k and flips: subsets counted one by one, and the estimators' expectation."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from scipy.stats import binom

from arboretum.eval.statistics import wilson
from arboretum.eval.statistics.repeats import pass_all_k, pass_at_k, summarize_repeats


@pytest.mark.parametrize(("n", "successes"), [(5, 0), (5, 2), (5, 5), (7, 1)])
def test_pass_at_k_is_the_fraction_of_subsets_with_a_success(n: int, successes: int) -> None:
    episodes = [True] * successes + [False] * (n - successes)
    for k in range(1, n + 1):
        subsets = list(combinations(episodes, k))
        assert pass_at_k(n, successes, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    with pytest.raises(ValueError, match="needs at least 8 episodes"):
        pass_at_k(n, successes, 8)


@pytest.mark.parametrize(("n", "successes"), [(5, 0), (5, 2), (5, 5), (7, 1), (8, 7)])
def test_pass_all_k_is_the_fraction_of_subsets_without_a_failure(n: int, successes: int) -> None:
    episodes = [True] * successes + [False] * (n - successes)
    for k in range(1, n + 1):
        subsets = list(combinations(episodes, k))
        assert pass_all_k(n, successes, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))
    with pytest.raises(ValueError, match=rf"pass\^{n + 1} needs at least {n + 1} episodes"):
        pass_all_k(n, successes, n + 1)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_estimators_are_unbiased(p: float, k: int) -> None:
    n = 6
    weights = binom.pmf(range(n + 1), n, p)
    at = sum(w * pass_at_k(n, c, k) for c, w in enumerate(weights))
    every = sum(w * pass_all_k(n, c, k) for c, w in enumerate(weights))
    assert at == pytest.approx(1 - (1 - p) ** k) and every == pytest.approx(p**k)


def test_summary_of_repeats_worked_by_hand() -> None:
    groups = [[True] * 4, [True, True, False, False], [True, False, False, False], [False] * 4]
    found = summarize_repeats(groups)
    assert found is not None and list(found.pass_at_k) == list(found.pass_all_k) == [2, 4]
    # Two of four: C(4, 2) = 6 pairs; with c successes, C(c, 2) have only successes, C(4 - c, 2) only failures.
    assert found.pass_at_k[2].value == pytest.approx((1 + 5 / 6 + 3 / 6 + 0) / 4)
    assert found.pass_all_k[2].value == pytest.approx((1 + 1 / 6 + 0 + 0) / 4)
    assert (found.pass_at_k[4].value, found.pass_all_k[4].value) == (0.75, 0.25)
    assert found.flips == wilson(2, 4)
    for one in (*found.pass_at_k.values(), *found.pass_all_k.values()):
        assert 0 <= one.low < one.value < one.high <= 1
    # Two episodes of a task differ with the probability pass@2 - pass^2.
    pairs = [x != y for group in groups for x, y in combinations(group, 2)]
    assert found.pass_at_k[2].value - found.pass_all_k[2].value == pytest.approx(sum(pairs) / len(pairs))


def test_attempts_are_powers_of_two_and_the_largest_number_of_episodes() -> None:
    found = summarize_repeats([[True, False] * 3, [True, False, True]])
    assert found is not None and list(found.pass_at_k) == [2, 4, 6]
    assert found.pass_at_k[6].value == 1.0  # of the task with six episodes alone
    assert found.flips.value == 1.0


def test_single_episodes_have_no_repeats() -> None:
    assert summarize_repeats([[True], [False]]) is None and summarize_repeats([]) is None
    one = summarize_repeats([[True, True]])
    assert one is not None and one.pass_at_k[2] == wilson(1, 1) and not math.isnan(one.flips.value)
