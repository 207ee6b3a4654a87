"""Credit rules against their definitions: worked examples, equivalences and invariances."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.credit.anchor import Anchor, anchor_advantages, anchor_groups
from arboretum.trainers.algorithms.credit.gae import Gae, bi_level_gae, gae, whiten
from arboretum.trainers.algorithms.credit.group import Group, group_advantages
from arboretum.trainers.algorithms.selectors import informative_groups
from arboretum.trainers.data.segments import discounted_sums, factorize, group_statistics
from support.rollouts import chain_rollouts

finite = st.floats(-10, 10, allow_subnormal=False)


def textbook_gae(rewards: Any, values: Any, gamma: float, lam: float) -> Any:
    """Return the advantages of one episode by the textbook recursion."""
    advantages = np.zeros(len(rewards))
    following = 0.0
    for t in reversed(range(len(rewards))):
        after = values[t + 1] if t + 1 < len(values) else 0.0
        following = rewards[t] + gamma * after - values[t] + gamma * lam * following
        advantages[t] = following
    return advantages


# ---------------------------------------------------------------------- gae


@given(st.data(), st.integers(1, 4), st.integers(1, 9), st.floats(0, 1), st.floats(0, 1))
def test_gae_over_the_masked_tokens_of_rows_equals_textbook_recursion_of_each_row(
    data: st.DataObject, rows: int, width: int, gamma: float, lam: float
) -> None:
    shape = (rows, width)
    rewards = data.draw(arrays.arrays(np.float64, shape, elements=finite))
    values = data.draw(arrays.arrays(np.float64, shape, elements=finite))
    mask = data.draw(arrays.arrays(np.bool_, shape))
    segments = np.nonzero(mask)[0]
    estimates = gae(rewards[mask], values[mask], segments, gamma=gamma, lam=lam)
    for r in range(rows):
        kept = mask[r]
        expected = textbook_gae(rewards[r, kept], values[r, kept], gamma, lam)
        np.testing.assert_allclose(estimates.advantages[segments == r], expected, atol=1e-9)
        np.testing.assert_allclose(estimates.returns[segments == r], expected + values[r, kept], atol=1e-9)


def test_observation_tokens_are_no_time_steps_of_gae() -> None:
    """The unmasked recursion of Search-R1 and SkyRL includes values at observation tokens, and differs."""
    sampled = [True, True, False, False, True, True]  # two turns with an observation of two tokens between them
    values = np.array([0.5, 0.6, 9.0, -4.0, 0.7, 0.8])
    batch = chain_rollouts([[0.0, 1.0]], ["a"])
    ours = Gae(gamma=0.99, lam=0.95, whiten=False).assign(batch, values[sampled]).advantages
    np.testing.assert_allclose(ours, textbook_gae([0, 0, 0, 1.0], values[sampled], 0.99, 0.95))
    unmasked = textbook_gae(np.array([0, 0, 0, 0, 0, 1.0]), values, 0.99, 0.95)
    assert np.abs(unmasked[sampled] - ours).max() > 0.1


@given(st.lists(finite, min_size=1, max_size=12), st.floats(-5, 5))
def test_undiscounted_gae_of_a_terminal_reward_is_the_error_of_the_critic(
    values: list[float], reward: float
) -> None:
    rewards = np.zeros(len(values))
    rewards[-1] = reward
    ours = gae(rewards, np.array(values), np.zeros(len(values), dtype=np.int64))
    np.testing.assert_allclose(ours.advantages, reward - np.array(values), atol=1e-9)


def test_bi_level_gae_counts_turns_without_reward() -> None:
    """By hand: γ_turn = 0.5, λ = 1, V = 0, rewards 0, 0, 8: turn returns 2, 4, 8."""
    turns = np.array([0, 0, 1, 2, 2, 2])
    ours = bi_level_gae(np.array([0.0, 0.0, 8.0]), np.zeros(6), turns, np.zeros(3, dtype=np.int64), turn_gamma=0.5)
    np.testing.assert_allclose(ours.advantages, [2, 2, 4, 8, 8, 8])
    unrewarded = bi_level_gae(np.zeros(3), np.zeros(6), turns, np.zeros(3, dtype=np.int64))
    np.testing.assert_array_equal(unrewarded.advantages, np.zeros(6))


@given(arrays.arrays(np.float64, st.integers(2, 50), elements=st.floats(-10, 10)))
def test_whitened_values_have_mean_0_and_deviation_1(values: Any) -> None:
    white = whiten(values)
    assert abs(white.mean()) < 1e-6
    if values.std() > 1e-2:
        assert white.std(ddof=1) == pytest.approx(1.0, abs=1e-3)
        np.testing.assert_allclose(whiten(values, shift=False), white + values.mean())
    np.testing.assert_array_equal(whiten(values[:1]), values[:1])


def test_gae_whitens_over_the_tokens_that_are_trained_on() -> None:
    """The second episode is excluded from the loss; its large advantages must not shrink those of the first."""
    batch = chain_rollouts([[1.0, 2.0], [90.0, -90.0]], list("aa"))
    in_loss = batch.copies.episode == 0
    ours = Gae().assign(batch, np.arange(8.0), in_loss).advantages
    alone = Gae().assign(chain_rollouts([[1.0, 2.0]], ["a"]), np.arange(4.0))
    np.testing.assert_allclose(ours[in_loss], alone.advantages)
    assert ours[in_loss].std(ddof=1) == pytest.approx(1.0) and np.abs(ours[~in_loss]).max() > 10
    everything = np.ones(8, dtype=bool)
    np.testing.assert_array_equal(
        Gae().assign(batch, np.arange(8.0), everything).advantages, Gae().assign(batch, np.arange(8.0)).advantages
    )
    nothing = np.zeros(4, dtype=bool)
    np.testing.assert_array_equal(whiten(np.arange(4.0), pool=nothing), np.arange(4.0))


def test_gae_credit_spans_all_turns_of_an_episode() -> None:
    batch = chain_rollouts([[1.0, 0.0, 2.0], [0.5]], ["a", "b"])
    values = np.arange(8) / 8
    credit = Gae(gamma=0.9, lam=0.8, whiten=False).assign(batch, values)
    expected = np.r_[
        textbook_gae(np.array([0, 1.0, 0, 0, 0, 2.0]), values[:6], 0.9, 0.8),
        textbook_gae(np.array([0, 0.5]), values[6:], 0.9, 0.8),
    ]
    np.testing.assert_allclose(credit.advantages, expected)
    assert credit.value_targets is not None
    np.testing.assert_allclose(credit.value_targets, expected + values)
    white = Gae(gamma=0.9, lam=0.8).assign(batch, values)
    np.testing.assert_allclose(white.advantages, whiten(expected))
    np.testing.assert_allclose(white.value_targets, credit.value_targets)  # type: ignore[arg-type]
    kl = Gae(whiten=False).assign(batch.add_token_penalties(np.full(8, -0.1)), np.zeros(8))
    np.testing.assert_allclose(kl.advantages, [2.4, 2.5, 1.6, 1.7, 1.8, 1.9, 0.3, 0.4])
    with pytest.raises(ConfigurationError, match="critic"):
        Gae().assign(batch)


# ---------------------------------------------------------------------- group

groups = st.lists(st.tuples(st.floats(-5, 5, allow_subnormal=False), st.integers(0, 4)), min_size=1, max_size=40)


@given(groups, st.sampled_from(["group", "none", "batch"]), st.booleans())
def test_group_advantages_sum_to_zero(members: list[tuple[float, int]], scale: Any, leave_one_out: bool) -> None:
    returns, keys = np.array([m[0] for m in members]), factorize(m[1] for m in members)
    ours = group_advantages(returns, keys, scale=scale, leave_one_out=leave_one_out)
    for key in set(keys.tolist()):
        assert abs(ours[keys == key].sum()) < 1e-5
        if len(set(returns[keys == key].tolist())) == 1:
            assert not ours[keys == key].any()


@given(groups)
def test_leave_one_out_subtracts_the_mean_of_the_other_members(members: list[tuple[float, int]]) -> None:
    returns, keys = np.array([m[0] for m in members]), factorize(m[1] for m in members)
    ours = group_advantages(returns, keys, scale="none", leave_one_out=True)
    for i, (value, key) in enumerate(zip(returns, keys, strict=True)):
        others = [r for j, r in enumerate(returns) if keys[j] == key and j != i]
        assert ours[i] == pytest.approx(value - np.mean(others) if others else 0.0, abs=1e-9)


def test_equal_returns_with_inexact_mean_have_zero_advantage() -> None:
    returns = np.array([0.1, 0.1, 0.1])  # whose computed mean is not 0.1
    assert returns.sum() / 3 != 0.1
    assert group_advantages(returns, np.zeros(3, dtype=np.int64)).tolist() == [0.0, 0.0, 0.0]
    assert group_statistics(returns, np.zeros(3, dtype=np.int64)).std.tolist() == [0.0]


def test_group_of_one_has_zero_advantage_unless_singleton_is_return() -> None:
    one, key = np.array([0.7]), np.zeros(1, dtype=np.int64)
    assert group_advantages(one, key).tolist() == [0.0]
    assert group_advantages(one, key, singleton="return").tolist() == [0.7 / (1 + 1e-6)]
    assert group_advantages(one, key, singleton="return", scale="none").tolist() == [0.7]


def test_batch_scale_divides_by_standard_deviation_of_all_returns() -> None:
    ours = group_advantages(np.array([1.0, 3.0, 0.0, 4.0]), np.array([0, 0, 1, 1]), scale="batch", eps=0.0)
    np.testing.assert_allclose(ours, np.array([-1, 1, -2, 2]) / np.std([1, 3, 0, 4], ddof=1))


def test_group_credit_includes_kl_penalty_in_the_reward() -> None:
    batch = chain_rollouts([[1.0], [0.0]], ["a", "a"])
    ours = Group(scale="none").assign(batch.add_token_penalties(np.array([-0.1, -0.1, 0.0, -0.4])))
    np.testing.assert_allclose(ours.advantages, [0.6, 0.6, -0.6, -0.6])


# ---------------------------------------------------------------------- anchor


@given(st.lists(st.lists(finite, min_size=1, max_size=8), min_size=1, max_size=5), st.floats(0, 1))
def test_discounted_sums_equal_their_definition(episodes: list[list[float]], gamma: float) -> None:
    segments = np.repeat(np.arange(len(episodes)), [len(e) for e in episodes])
    ours = discounted_sums(np.concatenate([np.array(e) for e in episodes]), segments, gamma)
    expected = [sum(gamma**k * r for k, r in enumerate(e[t:])) for e in episodes for t in range(len(e))]
    np.testing.assert_allclose(ours, expected, atol=1e-9)


def test_lists_are_taken_as_arrays_and_labels_must_fit() -> None:
    assert discounted_sums([1.0, 2.0, 3.0], [0, 0, 1], 0.5).tolist() == [2.0, 2.0, 3.0]  # type: ignore[arg-type]
    assert group_statistics([1.0, 3.0], [0, 0]).mean.tolist() == [2.0]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 values have 1 labels"):
        discounted_sums(np.ones(2), np.zeros(1, dtype=np.int64), 0.5)
    with pytest.raises(ValueError, match="there are 2 groups, so that they are numbered up to 1, not 5"):
        group_statistics(np.ones(2), np.array([0, 5]), 2)


def test_equal_anchors_of_different_groups_do_not_match() -> None:
    assert anchor_groups(np.array([0, 1, 0, 1]), ["s", "s", "s", "s"]).tolist() == [0, 1, 0, 1]


def test_similar_text_joins_the_first_set_whose_first_member_is_similar_enough() -> None:
    texts = ["abcdefghij", "abcdefghiX", "abcdefghXY", "zzzz", "abcdefghij"]
    group = np.zeros(5, dtype=np.int64)
    # The ratio to the first text is 0.9 for the second text and 0.8 for the third (0.9 to the second).
    assert anchor_groups(group, texts, similarity=0.9).tolist() == [0, 0, 1, 2, 0]
    assert anchor_groups(group, texts, similarity=0.8).tolist() == [0, 0, 0, 1, 0]
    with pytest.raises(ConfigurationError, match="compares texts"):
        anchor_groups(group[:1], [(1, 2)], similarity=0.9)


def test_episode_statistics_count_long_episodes_once_unless_per_turn() -> None:
    rewards = np.array([0.0, 0.0, 0.0, 4.0])
    episodes, task = np.array([0, 0, 0, 1]), np.zeros(4, dtype=np.int64)
    once = anchor_advantages(rewards, episodes, task, list("abcd"))
    np.testing.assert_allclose(once.episode, [-2, -2, -2, 2])
    by_turn = anchor_advantages(rewards, episodes, task, list("abcd"), episode_statistics="turn")
    np.testing.assert_allclose(by_turn.episode, [-1, -1, -1, 3])


def test_anchor_credit_without_shared_states_equals_group_credit() -> None:
    batch = chain_rollouts([[1.0, 2.0], [0.0], [5.0, 0.0]], list("aab"), states=[[1, 2], [3], [4, 5]])
    ours = Anchor(scale="group").assign(batch).advantages
    np.testing.assert_allclose(ours, Group().assign(batch).advantages)


def test_anchor_credit_of_a_shared_state_matches_hand_calculation() -> None:
    """Both episodes start in s: one succeeds after two turns, the other fails after one."""
    batch = chain_rollouts([[0.0, 1.0], [0.0]], list("aa"), tokens=1, states=[["s", "t"], ["s"]])
    ours = Anchor(gamma=0.5, omega=2.0).assign(batch).advantages
    # A_E = ±1/2; returns from s are 1/2 and 0, so A_S = ±1/4; t occurs once.
    np.testing.assert_allclose(ours, [0.5 + 2 * 0.25, 0.5, -0.5 - 2 * 0.25])
    with_invalid_turn = chain_rollouts(
        [[0.0, 1.0], [0.0]],
        list("aa"),
        tokens=1,
        states=[["s", "t"], ["s"]],
        invalid=[[False, True], [False]],
    )
    ours = Anchor(gamma=0.5, omega=2.0, invalid_penalty=0.2).assign(with_invalid_turn).advantages
    np.testing.assert_allclose(ours, [1.0, 0.3, -1.0])  # Only the score of the second turn changes.


def test_anchor_credit_without_anchors_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="no state keys"):
        Anchor().assign(chain_rollouts([[1.0], [0.0]], list("aa")))


def sum_by_turn(rewards: Sequence[float], cuts: Sequence[int]) -> float:
    """Return a return summed as in rollouts: moves within turns first, then turns."""
    bounds = [0, *cuts, len(rewards)]
    return sum(sum(rewards[a:b]) for a, b in itertools.pairwise(bounds))


def test_returns_that_differ_by_rounding_have_zero_advantage() -> None:
    """Ten rewards of -0.1, divided into turns differently, have sums that differ in the last digits."""
    ways = [sum_by_turn([-0.1] * 10, cuts) for cuts in ([], [5], [2, 4, 6, 8], [3, 6])]
    assert len(set(ways)) > 1
    returns, groups = np.array([*ways, 1.0]), np.array([0, 0, 0, 0, 1])
    assert group_statistics(returns, groups).std[0] == 0.0
    for options in ({}, {"eps": 0.0}, {"leave_one_out": True, "scale": "none"}):
        assert (group_advantages(returns, groups, **options) == 0.0).all()
    assert informative_groups([ways, [1.0, 0.0]]) == (1,)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_zero_eps_does_not_divide_by_zero(scale: Any) -> None:
    assert (group_advantages(np.ones(4), np.array([0, 0, 1, 1]), eps=0.0, scale=scale) == 0.0).all()


def test_invalid_turn_among_equal_returns_costs_its_penalty_and_not_its_millionfold() -> None:
    """The first turns of four failures are equal, so that their deviation says nothing about a later turn."""
    rewards, episodes, task = np.zeros(8), np.repeat(np.arange(4), 2), np.zeros(8, dtype=np.int64)
    penalties = np.where(np.arange(8) == 1, -0.1, 0.0)
    anchors = [("start",) if turn % 2 == 0 else ("later", turn) for turn in range(8)]
    for scale in ("none", "group"):
        found = anchor_advantages(rewards, episodes, task, anchors, scale=scale, own_penalties=penalties)  # type: ignore[arg-type]
        np.testing.assert_allclose(found.episode, penalties, atol=1e-12)


def test_anchor_advantages_accept_interleaved_episodes() -> None:
    """γ = 0.95, two episodes of three turns, final reward 10 of the first: R_0 = 0.95² · 10 = 9.025."""
    by_episode = np.array([0, 0, 0, 1, 1, 1])
    order = np.array([0, 3, 1, 4, 2, 5])  # turn by turn instead of episode by episode
    rewards = np.array([0.0, 0.0, 10.0, 0.0, 0.0, 0.0])
    anchors = ["a", "b", "c", "a", "b", "d"]
    groups = np.zeros(6, dtype=np.int64)
    contiguous = anchor_advantages(rewards, by_episode, groups, anchors)
    interleaved = anchor_advantages(rewards[order], by_episode[order], groups, [anchors[i] for i in order])
    assert contiguous.step_returns[0] == pytest.approx(9.025)
    for one, other in zip(contiguous, interleaved, strict=True):
        assert np.allclose(one[order], other)
