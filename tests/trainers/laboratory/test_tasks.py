"""Tasks of the laboratory: dynamics against the environments themselves, exact evaluation against simulation."""

from __future__ import annotations

import random

import numpy as np
import pytest

from arboretum.envs.frozenlake.lake import CORNERS, generated_lake
from arboretum.envs.frozenlake.values import optimal_success, random_success
from arboretum.trainers.algorithms.samplers import Chains
from arboretum.trainers.laboratory.enumeration import enumerate_env, make_env, make_lake
from arboretum.trainers.laboratory.mdp import Mdp, evaluate, exact_values, join, optimal_actions
from arboretum.trainers.laboratory.sampling import TableSampler
from arboretum.trainers.laboratory.synthetic import make_graph, make_lock
from arboretum.trainers.laboratory.table_policy import action_probabilities
from arboretum.trainers.laboratory.tasks import FAMILIES, make_panel


def uniform(mdp: Mdp) -> np.ndarray:
    return mdp.valid / mdp.valid.sum(axis=1, keepdims=True)


def best_success(mdp: Mdp) -> float:
    """Return the success of the best policy that may depend on the steps left, by value iteration."""
    values = np.zeros(mdp.rows + 1)
    for _ in range(mdp.horizon):
        values = np.r_[np.where(mdp.valid, mdp.action_values(values), -1.0).max(axis=1), 0.0]
    return float(values[mdp.starts[0]])


# ---------------------------------------------------------------------- dynamics


@pytest.mark.parametrize("rate", [1.0, 1.0 / 3.0])
@pytest.mark.parametrize("number", range(3))
def test_lake_has_the_success_rates_that_its_environment_computes(number: int, rate: float) -> None:
    task = f"train/{number}"
    mdp = make_lake(task, 4, rate, 25)
    desc = generated_lake(4, 0.8, CORNERS, task).desc
    assert best_success(mdp) == pytest.approx(optimal_success(desc, rate, 25), abs=1e-12)
    assert evaluate(mdp, uniform(mdp)).success[0] == pytest.approx(random_success(desc, 25), abs=1e-12)


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [("TextSokoban-v0", {"reward_mode": "sparse"}), ("TextBlocksworld-v0", {"blocks": 3})],
)
def test_enumerated_level_follows_its_environment_along_random_episodes(env_id: str, arguments: dict) -> None:
    env = make_env(env_id, **arguments)
    mdp = enumerate_env(env, "train/5", 30)
    rng = random.Random(0)
    keys: dict[object, int] = {}
    for _ in range(60):
        env.reset(seed=0, options={"task": "train/5"})
        row = int(mdp.starts[0])
        for _ in range(30):
            before = env.state_key()
            assert keys.setdefault(before, row) == row
            actions = env.admissible_actions()
            assert actions == mdp.names[row * mdp.valid.shape[1] :][: mdp.valid[row].sum()]
            choice = rng.randrange(len(actions))
            _, _, terminated, _, info = env.step(actions[choice])
            assert mdp.rewards[row, choice, 0] == info["success"]
            assert mdp.effects[row, choice] == env.counts_as_effect(actions[choice], before, info)
            row = int(mdp.following[row, choice, 0])
            assert (row == mdp.rows) == terminated
            if terminated:
                break
    assert len(set(keys.values())) == len(keys) > 15


def test_shortest_solutions_are_those_of_the_environments_solver() -> None:
    env = make_env("TextSokoban-v0")
    for number in range(3):
        task = f"train/{number}"
        env.reset(seed=0, options={"task": task})
        plan = env.expert_actions()
        assert plan is not None
        for horizon, solvable in ((len(plan), 1.0), (len(plan) - 1, 0.0)):
            assert best_success(enumerate_env(env, task, horizon)) == solvable


def test_lock_opens_with_the_good_actions_only_and_takes_all_levels() -> None:
    mdp = make_lock(3, 2, np.random.default_rng(0))
    result = evaluate(mdp, uniform(mdp))
    assert result.success[0] == pytest.approx((2 / 4) ** 3)
    assert result.steps == pytest.approx(3.0)  # lost episodes are as long
    assert optimal_actions(mdp)[:3].sum(axis=1).tolist() == [2, 2, 2]
    assert not optimal_actions(mdp)[3:].any()


def test_slip_of_a_graph_mixes_all_actions() -> None:
    plain = make_graph(4, 3, 0.0, np.random.default_rng(1))
    slippery = make_graph(4, 3, 0.2, np.random.default_rng(1))
    policy = np.eye(4)[np.random.default_rng(2).integers(0, 4, plain.rows)]
    mixed = 0.8 * policy + 0.2 / 4
    assert evaluate(slippery, policy).success[0] == pytest.approx(evaluate(plain, mixed).success[0])


# ---------------------------------------------------------------------- exact evaluation


@pytest.mark.parametrize("name", ["lock12f2", "graph10w8s", "lake4s", "blocks"])
def test_exact_success_agrees_with_simulation(name: str) -> None:
    panel = make_panel(name, 3)
    mdp, policy = panel.mdp, action_probabilities(panel.logits)
    result = evaluate(mdp, policy)
    sampler = TableSampler(mdp, policy, np.random.default_rng(0))
    rollouts, rows = sampler.roll_out(Chains(rollouts=1000), 0, 0)
    error = np.sqrt(result.success.mean() * (1 - result.success.mean()) / rollouts.episodes)
    assert rollouts.success.mean() == pytest.approx(result.success.mean(), abs=4 * error)
    counts = np.bincount(rows, minlength=mdp.rows) / 1000
    assert counts == pytest.approx(result.visits, abs=0.35)
    assert counts.sum() == pytest.approx(result.steps, rel=0.02)


@pytest.mark.parametrize("name", FAMILIES)
def test_forward_evaluation_equals_backward_induction_and_starts_at_ten_percent(name: str) -> None:
    panel = make_panel(name, 0)
    policy = action_probabilities(panel.logits)
    values, _ = exact_values(panel.mdp, policy)
    success = evaluate(panel.mdp, policy).success
    assert values[-1, panel.mdp.starts].mean() == pytest.approx(success.mean(), abs=1e-12)
    reaches = {"lake4s": 0.06}.get(name, 0.001)  # Some slippery lakes are above 10 % under any policy of the kind.
    assert success.mean() == pytest.approx(0.1, abs=reaches)
    assert (panel.mdp.chance.sum(axis=2)[panel.mdp.valid] == pytest.approx(1.0)) and (
        policy[~panel.mdp.valid] == 0
    ).all()


def test_joined_tasks_keep_their_values() -> None:
    parts = [make_lock(3, 1, np.random.default_rng(seed)) for seed in range(3)]
    alone = [evaluate(part, uniform(part)).success[0] for part in parts]
    panel = join(parts)
    assert evaluate(panel, uniform(panel)).success.tolist() == alone
    assert panel.tables == 3 and panel.groups == 3
