"""Credit rules on tabular policies: what theory fixes about their gradients and their gains."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest

from arboretum.trainers.algorithms.credit.cognitive_credit import Cognitive
from arboretum.trainers.algorithms.credit.group import Group
from arboretum.trainers.algorithms.objectives.surgical import Surgical, surgical_losses, surgical_margins
from arboretum.trainers.algorithms.samplers import Chains
from arboretum.trainers.data.cognitive_graph import DivergencePair
from arboretum.trainers.data.segments import FloatArray
from arboretum.trainers.laboratory.arms import ARMS, Arm
from arboretum.trainers.laboratory.forest import Steps, build_rollouts
from arboretum.trainers.laboratory.mdp import Mdp, evaluate, exact_values, join
from arboretum.trainers.laboratory.sampling import TableSampler
from arboretum.trainers.laboratory.synthetic import make_lock
from arboretum.trainers.laboratory.table_policy import (
    action_probabilities,
    log_probabilities,
    step_of_divergence,
)
from arboretum.trainers.laboratory.tasks import make_panel
from arboretum.trainers.laboratory.training import (
    Curve,
    StepSize,
    TableLearner,
    preference_gradient,
    train,
)

LEAVE_ONE_OUT = Arm("RLOO", Group(scale="none", leave_one_out=True), Chains(rollouts=2))


# ---------------------------------------------------------------------- expected gradients


def small_lock() -> tuple[Mdp, FloatArray]:
    mdp = make_lock(2, 2, np.random.default_rng(0))
    return mdp, np.random.default_rng(1).standard_normal(mdp.valid.shape)


def numeric_gradient(mdp: Mdp, logits: FloatArray, step: float = 1e-5) -> FloatArray:
    """Return the gradient of the exact success by central differences, [N, A]."""
    gradient = np.zeros_like(logits)
    for place in np.ndindex(logits.shape):
        bump = np.zeros_like(logits)
        bump[place] = step
        up, down = (evaluate(mdp, action_probabilities(logits + sign * bump)).success[0] for sign in (1, -1))
        gradient[place] = (up - down) / (2 * step)
    return gradient


def expected_direction(mdp: Mdp, logits: FloatArray, arm: Arm) -> FloatArray:
    """Return the expected direction of a group of two episodes of two steps, over all pairs of episodes."""
    policy = action_probabilities(logits)
    actions = list(product(range(4), repeat=2))
    second = [int(mdp.following[0, first, 0]) for first, _ in actions]
    chances = [policy[0, a] * policy[row, b] for (a, b), row in zip(actions, second, strict=True)]
    total = np.zeros_like(logits)
    for i, j in product(range(len(actions)), repeat=2):
        rows = np.array([0, second[i], 0, second[j]])
        taken = np.array([*actions[i], *actions[j]])
        following, rewards = mdp.following[rows, taken, 0], mdp.rewards[rows, taken, 0]
        steps = Steps(rows, taken, following, rewards, np.array([2, 2]))
        rollouts = build_rollouts(mdp, steps, np.zeros(2, dtype=np.int64), np.log(policy))
        total += chances[i] * chances[j] * TableLearner(mdp, arm, logits).direction(rollouts, rows, logits, policy)
    return total


def test_leave_one_out_advantages_have_the_exact_gradient_in_expectation() -> None:
    mdp, logits = small_lock()
    # The loss is a mean over tokens: the gradient of an episode's sum, divided by its two steps.
    assert 2 * expected_direction(mdp, logits, LEAVE_ONE_OUT) == pytest.approx(
        numeric_gradient(mdp, logits), abs=1e-9
    )


@pytest.mark.parametrize("name", ["grpo", "t-star-gamma1-plain", "exact", "exact-value"])
def test_expected_direction_is_that_of_the_exact_gradient(name: str) -> None:
    mdp, logits = small_lock()
    direction, gradient = expected_direction(mdp, logits, ARMS[name]), numeric_gradient(mdp, logits)
    cosine = (direction * gradient).sum() / np.linalg.norm(direction) / np.linalg.norm(gradient)
    assert cosine == pytest.approx(1.0, abs=1e-8)


def test_exact_advantages_are_centered_and_give_the_gradient_by_the_policy_gradient_theorem() -> None:
    panel = make_panel("lake4s", 0)
    mdp, policy = panel.mdp, action_probabilities(panel.logits)
    values, action_values = exact_values(mdp, policy)
    advantages = action_values - values[:, :-1, None]
    assert (policy * advantages).sum(axis=2) == pytest.approx(0.0, abs=1e-12)


# ---------------------------------------------------------------------- steps


def mean_divergence(logits: FloatArray, changed: FloatArray, visits: FloatArray) -> float:
    """Return the mean of KL(π(· | s) ‖ π′(· | s)) over visits, in nats.

    Args:
        logits: Logits of π, [N, A].
        changed: Logits of π′, [N, A].
        visits: Expected visits of each row under π, [N].
    """
    policy = action_probabilities(logits)
    with np.errstate(invalid="ignore"):  # Actions that a row does not have are infinite in both.
        differences = log_probabilities(logits) - log_probabilities(changed)
    divergences = np.where(policy > 0, policy * differences, 0.0).sum(axis=1)
    return float(divergences @ visits / visits.sum())


def test_step_of_fixed_divergence_has_that_divergence() -> None:
    panel = make_panel("sokoban", 0)
    visits = evaluate(panel.mdp, action_probabilities(panel.logits)).visits
    rng = np.random.default_rng(0)
    direction = rng.standard_normal(panel.logits.shape) * (rng.random((panel.mdp.rows, 1)) < 0.2)
    stepped = step_of_divergence(panel.logits, direction, visits, 0.02)
    assert mean_divergence(panel.logits, stepped, visits) == pytest.approx(0.02, rel=1e-4)
    assert step_of_divergence(panel.logits, 0 * direction, visits, 0.02) is panel.logits


def test_step_is_bounded_where_the_divergence_cannot_be_reached() -> None:
    logits = np.array([[40.0, 0.0], [0.0, 0.0]])
    direction = np.array([[1.0, -1.0], [0.0, 0.0]])
    stepped = step_of_divergence(logits, direction, np.array([1.0, 1.0]), 0.02)
    assert np.abs(stepped - logits).max() == 10.0


def test_preference_gradient_is_that_of_the_surgical_loss() -> None:
    import torch

    rng = np.random.default_rng(0)
    logits, reference = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
    rows, actions = np.array([0, 0, 1, 1, 2]), np.array([1, 3, 0, 2, 1])
    pairs = [DivergencePair(0, 0, 1, 1.0), DivergencePair(0, 3, 2, 0.5)]
    term = Surgical(beta=0.5, weight=0.3)
    tensor = torch.tensor(logits, requires_grad=True)
    policy, fixed = torch.log_softmax(tensor, 1), torch.tensor(log_probabilities(reference))
    best, worst = [0, 3], [1, 2]
    margins = surgical_margins(
        policy[rows[best], actions[best]],
        fixed[rows[best], actions[best]],
        policy[rows[worst], actions[worst]],
        fixed[rows[worst], actions[worst]],
    )
    (term.weight * surgical_losses(margins, term.beta)).mean().backward()
    assert tensor.grad is not None
    ours = preference_gradient(term, pairs, rows, actions, logits, reference)
    assert ours == pytest.approx(-tensor.grad.numpy(), abs=1e-12)


def test_merging_by_a_policy_that_acts_differently_everywhere_is_merging_by_state() -> None:
    """With a threshold that no two different rows meet, comparing by the policy adds nothing to equal keys."""
    panel = make_panel("lake4s", 0)
    policy = action_probabilities(panel.logits)
    sampler = TableSampler(panel.mdp, policy, np.random.default_rng(0))
    rollouts, rows = sampler.roll_out(Chains(rollouts=8), 0, 0)
    by_state, by_policy = (
        TableLearner(panel.mdp, Arm("", Cognitive(equivalence=kind, kl_threshold=limit)), panel.logits).assign(
            rollouts, rows, rollouts.action_tokens, policy
        )
        for kind, limit in (("state", 0.25), ("policy", 1e-12))
    )
    assert by_policy.metrics["graph/pairs_policy"] > 0
    assert by_policy.advantages.tolist() == by_state.advantages.tolist()


def test_critic_moves_towards_the_value_targets_of_gae() -> None:
    """With λ 1 the targets are the returns: repeated updates approach the exact values of the states visited."""
    mdp = join([make_lock(2, 2, np.random.default_rng(0))])
    logits = np.zeros(mdp.valid.shape)
    policy = action_probabilities(logits)
    learner = TableLearner(mdp, ARMS["ppo"], logits)
    for update in range(60):
        sampler = TableSampler(mdp, policy, np.random.default_rng(update))
        rollouts, rows = sampler.roll_out(Chains(rollouts=200), 0, update)
        learner.assign(rollouts, rows, rollouts.action_tokens, policy)
    assert learner.critic == pytest.approx(np.array([0.25, 0.5, 0.0]), abs=0.03)


# ---------------------------------------------------------------------- what training shows


@cache
def runs(task: str, arm: str, seeds: int = 3) -> tuple[Curve, ...]:
    found = []
    for seed in range(seeds):
        panel = make_panel(task, seed)
        found.append(train(panel, ARMS[arm], StepSize(), seed=seed, budget=2 * panel.budget))
    return tuple(found)


def gain(task: str, arm: str) -> float:
    """Return the mean difference of an arm's AUC to GRPO's over paired seeds."""
    return float(np.mean([a.auc - b.auc for a, b in zip(runs(task, arm), runs(task, "grpo"), strict=True)]))


@pytest.mark.parametrize("arm", ["t-star-gamma1-plain", "t-star-prefix"])
def test_merging_changes_nothing_where_a_single_path_leads_to_success(arm: str) -> None:
    for ours, theirs in zip(runs("lock12f1", arm), runs("lock12f1", "grpo"), strict=True):
        assert ours.success == pytest.approx(theirs.success, abs=1e-6)


@pytest.mark.parametrize("task", ["lock12f2", "graph10w8"])
def test_merging_helps_where_paths_meet_and_merging_of_prefixes_does_not(task: str) -> None:
    assert gain(task, "t-star-gamma1-plain") > 0.015
    if task == "graph10w8":
        # Prefixes merge actions that lead to one state, a part of what merging by layers does.
        assert gain(task, "t-star-prefix") < 0.4 * gain(task, "t-star-gamma1-plain")


@pytest.mark.parametrize("task", ["lock12f1", "graph10w8", "lake4", "lake8"])
def test_exact_advantages_beat_grpo(task: str) -> None:
    assert gain(task, "exact") > 0.02


def test_gain_of_gigpo_on_the_lake_comes_from_its_discount() -> None:
    assert gain("lake8", "gigpo") > 0.04
    assert gain("lake8", "grpo-discounted") > 0.03
    assert gain("lake8", "gigpo-gamma1") < 0.015


def test_discount_has_no_effect_on_episodes_of_equal_length() -> None:
    assert abs(gain("lock12f1", "grpo-discounted")) < 0.002
    assert gain("lock12f1", "gigpo") == pytest.approx(gain("lock12f1", "gigpo-gamma1"), abs=0.002)


def test_advantages_within_a_tree_alone_harm_on_locks() -> None:
    assert gain("lock12f1", "tree-intra") < -0.04


def test_grove_closes_most_of_the_gap_to_exact_advantages_on_the_lake() -> None:
    assert gain("lake8", "grove") > 0.5 * gain("lake8", "exact")


def test_learning_rate_sets_the_step() -> None:
    panel = make_panel("lake4", 0)
    slow, fast = (train(panel, ARMS["grpo"], StepSize(lr), seed=0) for lr in (0.1, 8.0))
    assert fast.final > slow.final + 0.1
    assert slow.success[0] == fast.success[0] == pytest.approx(0.1, abs=1e-6)
    assert slow.budget == panel.budget <= slow.steps[-1] <= panel.budget * 1.1
