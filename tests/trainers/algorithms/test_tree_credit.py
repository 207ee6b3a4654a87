"""Credit on trees of episodes: T-STAR's lemma and closed form, and Tree-GRPO's cancellation, on random trees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arboretum.trainers.algorithms.credit.cognitive import (
    ROOT,
    comparison_sets,
    continuation_values,
    divergences,
    exact_kl,
    layer_paths,
    merge_steps,
    node_advantages,
    q_values,
    sampled_kl,
    tree_paths,
)
from arboretum.trainers.algorithms.credit.group import group_advantages
from arboretum.trainers.algorithms.credit.tree import tree_advantages
from arboretum.trainers.sampling.tree import expected_budget, leaves_per_prompt

forests = st.lists(
    st.tuples(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), st.floats(0, 1)), min_size=2, max_size=10
)


@settings(max_examples=300)
@given(forests, st.floats(0.5, 1.0))
def test_backed_up_values_equal_the_closed_form(forest: list[tuple[list[str], float]], gamma: float) -> None:
    """Q(v) = 1/k_v Σ_{i through v} γ^(T_i - d(v)) R_i."""
    paths, rewards = tree_paths([steps for steps, _ in forest]), np.array([reward for _, reward in forest])
    for node, value in q_values(paths, rewards, gamma).items():
        depth = len(node) if isinstance(node, tuple) else 0
        through = [i for i, path in enumerate(paths) if node == ROOT or node in path]
        expected = np.mean([gamma ** (len(paths[i]) - depth) * rewards[i] for i in through])
        assert value == pytest.approx(expected, abs=1e-12)


@given(forests)
def test_undiscounted_node_advantage_is_the_mean_of_its_episodes(
    forest: list[tuple[list[str], float]],
) -> None:
    """Lemma 1, which requires γ = 1 and a tree."""
    paths, rewards = tree_paths([steps for steps, _ in forest]), np.array([reward for _, reward in forest])
    episode_advantages = group_advantages(rewards, np.zeros(len(rewards), dtype=np.int64))
    q = q_values(paths, rewards)
    for node, value in zip(q, node_advantages(np.array(list(q.values())), rewards), strict=True):
        through = [i for i, path in enumerate(paths) if node == ROOT or node in path]
        assert value == pytest.approx(episode_advantages[through].mean(), abs=1e-6)


def test_lemma_1_fails_with_discount_and_in_a_graph() -> None:
    rewards = np.array([1.0, 0.0])
    q = q_values(tree_paths(["ab", "c"]), rewards, 0.9)
    advantages = dict(zip(q, node_advantages(np.array(list(q.values())), rewards), strict=True))
    # one episode, but three different advantages
    assert advantages[("a", "b")] > advantages[("a",)] > advantages[ROOT]
    graph = q_values(layer_paths(["pm", "qm"]), rewards)
    assert graph[(0, "p")] == graph[(0, "q")] == 0.5


def test_tied_children_are_ordered_by_visits_then_by_first_visit() -> None:
    paths = tree_paths(["a", "b", "b", "c", "d"])
    found = divergences(paths, q_values(paths, np.array([1.0, 1.0, 1.0, 0.0, 0.0])))[ROOT]
    assert (found.best, found.worst, found.gap) == (("b",), ("c",), 1.0)
    failures = tree_paths(["a", "b"])
    q = q_values(failures, np.array([-1.0, 0.0]))
    assert divergences(failures, q) and not divergences(failures, q, floor=0.0)


def test_kl_between_action_distributions_equals_its_definition() -> None:
    p, q = np.log([0.9, 0.1]), np.log([0.5, 0.5])
    forward = 0.9 * np.log(1.8) + 0.1 * np.log(0.2)
    assert exact_kl(p, q) == pytest.approx(forward)
    assert exact_kl(q, p) == pytest.approx(0.5 * np.log(5 / 9) + 0.5 * np.log(5))
    rng = np.random.default_rng(0)
    actions = rng.choice(2, size=20_000, p=[0.9, 0.1])
    assert sampled_kl(p[actions], q[actions]) == pytest.approx(forward, abs=0.02)
    assert sampled_kl(p[actions], q[actions], "k3") == pytest.approx(forward, abs=0.02)


def test_merged_steps_depend_on_the_symmetrization() -> None:
    kl = np.array([[0.0, 0.1], [0.5, 0.0]])
    assert merge_steps(kl, "hh", symmetrize="max") == [[0], [1]]
    assert merge_steps(kl, "hh", symmetrize="forward") == [[0, 1]]
    assert merge_steps(kl, "hh", symmetrize="mean", threshold=0.31) == [[0, 1]]


def test_large_groups_compare_only_episodes_with_equal_first_action() -> None:
    assert comparison_sets("ab" * 8).tolist() == [0] * 16
    assert comparison_sets("ab" * 9).tolist() == [0, 1] * 9


@given(forests, st.floats(0.5, 1.0))
def test_value_of_what_follows_is_q_where_only_ends_are_rewarded(
    forest: list[tuple[list[str], float]], gamma: float
) -> None:
    paths, rewards = tree_paths([steps for steps, _ in forest]), np.array([reward for _, reward in forest])
    ends = {path[-1] for path in paths}
    by_step = [[0.0] * (len(path) - 1) + [reward] for path, reward in zip(paths, rewards.tolist(), strict=True)]
    after, q = continuation_values(paths, by_step, gamma), q_values(paths, rewards, gamma)
    for node in after.keys() - ends:
        assert after[node] == pytest.approx(q[node], abs=1e-12)


def test_value_of_what_follows_keeps_the_pasts_of_merged_steps_apart() -> None:
    """Both episodes earn 1 after the merged step, and one of them earned 1 before."""
    paths, rewards = layer_paths(["pm", "qm"]), [[1.0, 1.0], [0.0, 1.0]]
    after = continuation_values(paths, rewards)
    assert (after[0, "p"], after[0, "q"], after[1, "m"], after[ROOT]) == (1.0, 1.0, 0.0, 1.5)
    q = q_values(paths, np.array([2.0, 1.0]))
    assert q[0, "p"] == q[0, "q"] == 1.5  # the published backup credits both with half of the past


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_variance_of_a_value_falls_with_the_number_of_episodes_through_its_node(k: int) -> None:
    """Var Q(v) = Var R / k, over 4000 trees in which k of 8 episodes pass v and succeed with probability 0.3."""
    rng = np.random.default_rng(k)
    paths = tree_paths([("a", str(i)) if i < k else ("b", str(i)) for i in range(8)])
    rewards = (rng.random((4000, 8)) < 0.3).astype(np.float64)
    values = [q_values(paths, row)[("a",)] for row in rewards]
    assert np.var(values) == pytest.approx(0.3 * 0.7 / k, rel=0.08)


def test_depth_matched_baseline_discounts_the_mean_like_the_value() -> None:
    paths, rewards = tree_paths(["abc", "d", "e"]), np.array([0.8, 0.8, 0.2])
    q = q_values(paths, rewards, 0.9)
    discounts = q_values(paths, np.ones(3), 0.9)
    table = np.array(list(q.values())), np.array(list(discounts.values()))
    matched = dict(zip(q, node_advantages(table[0], rewards, discounts=table[1]), strict=True))
    std = np.std(rewards, ddof=1) + 1e-6
    assert matched[("a",)] == pytest.approx(0.9**2 * 0.2 / std)
    assert matched[("d",)] == pytest.approx(0.2 / std)
    plain = dict(zip(q, node_advantages(table[0], rewards), strict=True))
    assert plain[("a",)] == pytest.approx((0.9**2 * 0.8 - 0.6) / std)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_intra_tree_advantages_cancel_on_a_shared_prefix(one: list[float], two: list[float]) -> None:
    scores = np.array(one + two)
    prompts, trees = np.zeros(len(scores), dtype=np.int64), np.repeat([0, 1], [len(one), len(two)])
    total = tree_advantages(scores, prompts, trees)
    inter = tree_advantages(scores, prompts, trees, "inter")
    for tree in (0, 1):
        assert total[trees == tree].sum() == pytest.approx(inter[trees == tree].sum(), abs=1e-6)


def test_leaf_alone_in_its_tree_has_zero_intra_tree_advantage() -> None:
    scores = np.array([1.0, 0.0, 1.0, 0.0])
    prompts, trees = np.zeros(4, dtype=np.int64), np.arange(4)
    np.testing.assert_array_equal(tree_advantages(scores, prompts, trees, "intra"), np.zeros(4))


@pytest.mark.parametrize(("shape", "leaves", "budget"), [((2, 2, 1), 6, 4), ((1, 2, 1), 3, 2), ((2, 6, 1), 14, 8)])
def test_leaves_and_budgets_equal_those_of_the_papers_ablation(
    shape: tuple[int, int, int], leaves: int, budget: float
) -> None:
    assert leaves_per_prompt(*shape) == leaves
    assert expected_budget(*shape) == budget
