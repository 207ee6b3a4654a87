"""Tasks in which the policy chooses a plan in its first turn: dynamics, state keys, and what credit rules see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from arboretum.trainers.laboratory.arms import ARMS
from arboretum.trainers.laboratory.mdp import evaluate, join
from arboretum.trainers.laboratory.plans import with_plans
from arboretum.trainers.laboratory.sampling import TableSampler
from arboretum.trainers.laboratory.synthetic import make_graph, make_lock
from arboretum.trainers.laboratory.table_policy import action_probabilities
from arboretum.trainers.laboratory.tasks import Panel, make_panel
from arboretum.trainers.laboratory.training import StepSize, train

PLANS = 3


def test_a_policy_that_ignores_its_plan_has_the_success_that_it_has_without_plans() -> None:
    rng = np.random.default_rng(0)
    plain = join([make_graph(4, 3, 0.2, rng) for _ in range(2)])
    planned = with_plans(plain, PLANS)
    policy = action_probabilities(rng.standard_normal(plain.valid.shape))
    width = policy.shape[1]
    later = np.pad(np.concatenate([policy] * PLANS), [(0, 0), (0, (PLANS - 1) * width)])
    opening = np.concatenate([policy[np.unique(plain.starts)] * share for share in (0.5, 0.3, 0.2)], axis=1)
    found = evaluate(planned, np.concatenate([later, opening]))
    expected = evaluate(plain, policy)
    assert found.success == pytest.approx(expected.success)
    visits = np.bincount(planned.row_keys, weights=found.visits, minlength=plain.rows)
    assert visits == pytest.approx(expected.visits)


def test_a_plan_is_kept_to_the_end_and_does_not_show_in_keys_and_texts() -> None:
    plain = join([make_graph(4, 3, 0.2, np.random.default_rng(0))])
    planned = with_plans(plain, PLANS)
    policy = np.where(planned.valid, 1.0, 0.0)
    policy /= policy.sum(axis=1, keepdims=True)
    sampler = TableSampler(planned, policy, np.random.default_rng(1))
    steps = sampler.play(np.repeat(planned.starts, 64), np.full(64, planned.horizon))
    ends = np.cumsum(steps.lengths)
    seen = set()
    for end, length in zip(ends, steps.lengths, strict=True):
        first, *others = steps.rows[end - length : end]
        assert first == PLANS * plain.rows
        plans = {row // plain.rows for row in others}
        assert len(plans) == 1
        seen |= plans
    assert seen == set(range(PLANS))
    rollouts, rows = sampler.roll_out(ARMS["grove"].sampler, 0, 0)
    assert rollouts.turn_state == tuple(planned.row_keys[rows])
    assert max(rollouts.turn_state) < plain.rows
    assert {text for (text,) in rollouts.turn_actions} <= set(plain.names)
    apart = TableSampler(replace(planned, keys=None), policy, np.random.default_rng(1))
    rollouts, rows = apart.roll_out(ARMS["grove"].sampler, 0, 0)
    assert rollouts.turn_state == tuple(rows)


@pytest.mark.parametrize("arm", ["grpo", "grove", "t-star", "tree"])
def test_one_plan_is_no_plan(arm: str) -> None:
    """On locks no state is visited again, so that the row of the first turn is the only one of its state."""
    rng = np.random.default_rng(2)
    plain = join([make_lock(4, 2, rng) for _ in range(2)])
    planned = with_plans(plain, 1)
    logits = rng.standard_normal(plain.valid.shape)
    wide = np.concatenate([logits, logits[np.unique(plain.starts)]])
    curves = [
        train(Panel(mdp, start, 400.0), ARMS[arm], StepSize(), seed=0)
        for mdp, start in ((plain, logits), (planned, wide))
    ]
    assert curves[1].success == pytest.approx(curves[0].success)


def test_pooling_over_plans_loses_what_keeping_them_apart_gains() -> None:
    """Plans act differently in the same state, so a mean over them is a worse baseline than that of the plan."""
    gains = {"grove": 0.0, "grove-plan": 0.0}
    for seed in range(3):
        panel = make_panel("graph10w8-plans", seed)
        without = train(panel, ARMS["grpo"], StepSize(), seed=seed).auc
        for name in gains:
            gains[name] += train(panel, ARMS[name], StepSize(), seed=seed).auc - without
    assert gains["grove-plan"] > 0.03 and gains["grove"] < gains["grove-plan"] - 0.05
