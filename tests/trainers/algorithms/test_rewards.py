"""Rewards of training: scale, and RAGEN's normalizations of returns."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.credit.anchor import Anchor
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.algorithms.rewards import Rewards, normalize_returns
from arboretum.trainers.data.rollouts import Rollouts
from support.rollouts import chain_rollouts


def four_episodes() -> Rollouts:
    """Two groups of two episodes with two turns each; one format penalty in the first turn of the last episode."""
    batch = chain_rollouts([[0.0, 1.0], [0.0, 0.0], [0.5, 0.5], [3.0, 0.0]], list("aabb"))
    penalty = np.zeros(8)
    penalty[6] = -0.5
    return dataclasses.replace(batch, turn_penalty=penalty)


def test_scale_multiplies_rewards_and_leaves_penalties() -> None:
    scaled = Rewards(scale=10.0).apply(four_episodes())
    assert scaled.returns(penalties=False).tolist() == [10.0, 0.0, 10.0, 30.0]
    assert scaled.returns(penalties=True).tolist() == [10.0, 0.0, 10.0, 29.5]
    assert Rewards().apply(four_episodes()).turn_reward.tolist() == four_episodes().turn_reward.tolist()


def test_gigpo_weighs_an_invalid_turn_as_published_against_a_success() -> None:
    """Published: 10 for success, 0.1 for an invalid action. Environments of this package give 1 for success."""
    recipe = RECIPES["gigpo"]
    batch = chain_rollouts([[1.0], [0.0]], list("aa"), states=[["s"], ["s"]], invalid=[[False], [True]])
    credit = recipe.credit
    assert isinstance(credit, Anchor) and credit.scale == "none"
    advantages = credit.assign(recipe.rewards.apply(batch)).advantages
    # Episode and step advantage of both are the difference from the mean of 10 and -0.1.
    np.testing.assert_allclose(advantages, [10.1, 10.1, -10.1, -10.1])


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("none", [0.0, 1.0, 1.0, 2.0, 5.0]),
        ("mean", [-1.0, 0.0, 0.0, 1.0, 0.0]),
        ("mean-std", [-1.2247434, 0.0, 0.0, 1.2247434, 0.0]),
        ("asym-clip", [-1.0, 0.0, 0.0, 1.2247434, 0.0]),
    ],
)
def test_normalizations_are_those_of_ragen(method: Any, expected: list[float]) -> None:
    """Of [0, 1, 1, 2] in one group, and 5 alone in another."""
    found = normalize_returns(np.array([0.0, 1.0, 1.0, 2.0, 5.0]), np.array([0, 0, 0, 0, 1]), method)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_asymmetric_clip_bounds_a_rare_success_at_3() -> None:
    returns = np.zeros(40)
    returns[7] = 1.0
    scores = normalize_returns(returns, np.zeros(40, dtype=np.int64), "asym-clip")
    assert scores[7] == 3.0 and -1.0 < scores[0] < 0.0
    assert normalize_returns(np.full(4, 0.3), np.zeros(4, dtype=np.int64), "mean-std").tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("over", "expected"), [("group", [0.5, -0.5, -0.75, 0.75]), ("batch", [-0.125, -1.125, -0.125, 1.375])]
)
def test_normalized_return_with_penalties_is_given_at_the_last_turn(over: Any, expected: list[float]) -> None:
    normalized = Rewards(normalize="mean", over=over).apply(four_episodes())
    assert normalized.turn_reward[1::2].tolist() == expected
    assert normalized.turn_reward[::2].tolist() == [0.0] * 4
    assert normalized.turn_scores.tolist() == normalized.turn_reward.tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rewards.scale": 0.0}, "rewards.scale must be above 0"),
        ({"rewards.normalize": "std"}, "rewards.normalize"),
        ({"rewards.over": "world"}, "rewards.over"),
        (
            {"rewards.normalize": "mean", "sampler.rollouts": 1},
            "normalize compares episodes of one prompt",
        ),
    ],
)
def test_impossible_rewards_are_rejected_in_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RECIPES["starpo"].with_settings({"optimization.episodes_per_step": 4, **settings})
