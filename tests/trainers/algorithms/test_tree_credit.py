"""Credit on trees of episodes: T-STAR's lemma and closed form, and Tree-GRPO's cancellation, on random trees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arboretum.trainers.algorithms.credit.cognitive import (
    ROOT,
    candidate_pairs,
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
    for node, value in node_advantages(q_values(paths, rewards), rewards).items():
        through = [i for i, path in enumerate(paths) if node == ROOT or node in path]
        assert value == pytest.approx(episode_advantages[through].mean(), abs=1e-6)


def test_lemma_1_fails_with_discount_and_in_a_graph() -> None:
    rewards = np.array([1.0, 0.0])
    q = node_advantages(q_values(tree_paths(["ab", "c"]), rewards, 0.9), rewards)
    assert q[("a", "b")] > q[("a",)] > q[ROOT]  # one episode, but three different advantages
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
    assert len(candidate_pairs("ab" * 8)) == 16 * 15 // 2
    assert len(candidate_pairs("ab" * 9)) == 2 * (9 * 8 // 2)


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
