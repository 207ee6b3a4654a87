"""Tree-GRPO's credit on rollouts with shared turns: equations worked by hand, and weights of shared tokens."""

from __future__ import annotations

import numpy as np
import pytest

from arboretum.agents.episode import Episode, Move, Turn
from arboretum.trainers.algorithms.credit.group import Group
from arboretum.trainers.algorithms.credit.tree import PrefixWeighting, TreeCredit, prefix_weights
from arboretum.trainers.algorithms.objectives.aggregate import token_weights
from arboretum.trainers.data.episodes import Branch, from_episodes
from arboretum.trainers.data.rollouts import Rollouts


def turn(reward: float = 0.0) -> Turn:
    """Return a turn of one prompt token and two sampled ones."""
    return Turn(
        "",
        "reply",
        moves=[Move("go", reward, True, True)],
        token_ids=[0, 1, 2],
        logprobs=[0.0, -1.0, -1.0],
        loss_mask=[0, 1, 1],
    )


def two_trees(returns: tuple[float, ...] = (1.0, 0.0, 0.0, 1.0)) -> Rollouts:
    """Return one prompt with two trees: three leaves with two and one shared turns, and a leaf of its own."""
    a, b, c, d = returns
    first = [turn(), turn(), turn(a)]
    episodes = [
        Episode("Env", "t", 0, "m", turns=first),
        Episode("Env", "t", 1, "m", turns=[*first[:2], turn(b)]),
        Episode("Env", "t", 2, "m", turns=[*first[:1], turn(c)]),
        Episode("Env", "t", 3, "m", turns=[turn(d)]),
    ]
    branches = [None, Branch(0, 2), Branch(0, 1), None]
    return from_episodes(episodes, [0] * 4, trees=[0, 0, 0, 1], branches=branches)


def per_episode(rollouts: Rollouts, values: np.ndarray) -> list[float]:
    """Return the value of each episode, which must be the same at all its copies."""
    found = []
    for episode in range(rollouts.episodes):
        own = values[rollouts.copies.episode == episode]
        assert np.allclose(own, own[0])
        found.append(float(own[0]))
    return found


def test_advantage_is_inter_plus_intra_on_every_token_of_the_path() -> None:
    """R = 1, 0, 0 | 1: mean 1/2 and std √(1/3) over the prompt; mean 1/3 and std √(1/3) in the first tree."""
    rollouts, std = two_trees(), np.sqrt(1 / 3)
    inter = np.array([0.5, -0.5, -0.5, 0.5]) / std
    intra = np.array([2 / 3, -1 / 3, -1 / 3, 0.0]) / std  # alone in its tree: 0
    for estimator, expected in (("inter", inter), ("intra", intra), ("total", inter + intra)):
        found = TreeCredit(estimator=estimator, eps=0.0).assign(rollouts)  # type: ignore[arg-type]
        assert per_episode(rollouts, found.advantages) == pytest.approx(expected.tolist())
    quirk = TreeCredit(eps=0.0, singleton="return").assign(rollouts)
    assert per_episode(rollouts, quirk.advantages)[3] == pytest.approx(0.5 / std + 1.0)
    cascaded = TreeCredit(estimator="cascaded", eps=0.0).assign(rollouts)
    assert per_episode(rollouts, cascaded.advantages) == pytest.approx(intra.tolist())


def test_equal_rewards_have_no_advantage() -> None:
    rollouts = two_trees((1.0, 1.0, 1.0, 1.0))
    for estimator in ("total", "inter", "intra", "cascaded"):
        credit = TreeCredit(estimator=estimator)  # type: ignore[arg-type]
        assert not credit.assign(rollouts).advantages.any()


def test_chains_have_the_advantages_of_grpo() -> None:
    rollouts = two_trees()
    alone = from_episodes(
        [Episode("Env", "t", i, "m", turns=[turn(reward)]) for i, reward in enumerate((1.0, 0.0, 0.5))], [0] * 3
    )
    np.testing.assert_allclose(TreeCredit().assign(alone).advantages, Group().assign(alone).advantages)
    assert TreeCredit(prefix_weighting="mean").assign(alone).multiplicity is None
    assert TreeCredit().assign(rollouts).multiplicity is None


def test_shared_prefix_counts_for_every_leaf_or_once() -> None:
    """The first turn has three leaves, the second two; every turn has two sampled tokens."""
    rollouts = two_trees()
    turns = rollouts.paths.turn[rollouts.copies.path]

    def by_turn(weighting: PrefixWeighting) -> list[list[float]]:
        weights = prefix_weights(rollouts, weighting)
        weights = np.ones(len(turns)) if weights is None else weights
        return [weights[turns == number].tolist() for number in range(rollouts.turns)]

    assert by_turn("duplicate")[:3] == [[1.0] * 6, [1.0] * 4, [1.0] * 2]
    assert by_turn("mean")[:3] == [pytest.approx([1 / 3] * 6), [0.5] * 4, [1.0] * 2]
    assert by_turn("once")[:3] == [[1.0, 1.0, 0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 1.0]]
    for weighting in ("mean", "once"):
        weights = prefix_weights(rollouts, weighting)  # type: ignore[arg-type]
        assert weights is not None and weights.sum() == pytest.approx(rollouts.actions)


@pytest.mark.parametrize("weighting", ["mean", "once"])
def test_leaf_that_is_not_in_the_loss_takes_no_weight_of_a_shared_prefix(weighting: PrefixWeighting) -> None:
    """The leaf that sampled the first two turns was cut off, as `overlong.drop_truncated` leaves it out."""
    rollouts = two_trees()
    in_loss = rollouts.copies.episode > 0
    found = TreeCredit(prefix_weighting=weighting).assign(rollouts, None, in_loss).multiplicity
    assert found is not None and not found[~in_loss].any()
    per_token = np.bincount(rollouts.copies.action, found, minlength=rollouts.actions)
    own_turn_of_the_leaf = rollouts.action_turn == 2
    assert per_token == pytest.approx(np.where(own_turn_of_the_leaf, 0.0, 1.0))


@pytest.mark.parametrize("weighting", ["duplicate", "mean", "once"])
def test_effective_weight_of_a_shared_prefix_in_the_token_mean(weighting: PrefixWeighting) -> None:
    """The gradient at a token is Σ over its leaves of A·w: with duplicates Σ A / copies, where intra cancels."""
    rollouts = two_trees()
    credit = TreeCredit(eps=0.0, prefix_weighting=weighting).assign(rollouts)
    weights = token_weights("token-mean", rollouts.copies.episode, multiplicity=credit.multiplicity)
    at_first_turn = rollouts.copies.action == 0
    effective = float((credit.advantages * weights)[at_first_turn].sum())
    std = np.sqrt(1 / 3)
    inter, first = (0.5 - 0.5 - 0.5) / std, (0.5 + 2 / 3) / std
    copies, tokens = 2 * (3 + 3 + 2 + 1), 2 * 6
    expected = {"duplicate": inter / copies, "mean": inter / 3 / tokens, "once": first / tokens}
    assert effective == pytest.approx(expected[weighting])
    assert weights.sum() == pytest.approx(1.0)
