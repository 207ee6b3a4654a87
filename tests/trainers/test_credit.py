"""Credit rules against their definitions: worked examples, equivalences, and what must not matter."""

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
from arboretum.trainers.algorithms.credit.gae import Gae, bi_level_gae, gae, masked_gae, whiten
from arboretum.trainers.algorithms.credit.group import Group, group_advantages
from arboretum.trainers.algorithms.selectors import informative_groups
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.data.segments import discounted_sums, factorize, group_statistics

numbers = st.floats(-10, 10, allow_subnormal=False)


def ordinary_gae(rewards: Any, values: Any, gamma: float, lam: float) -> Any:
    """The textbook recursion on one episode."""
    advantages = np.zeros(len(rewards))
    following = 0.0
    for t in reversed(range(len(rewards))):
        after = values[t + 1] if t + 1 < len(values) else 0.0
        following = rewards[t] + gamma * after - values[t] + gamma * lam * following
        advantages[t] = following
    return advantages


def rollouts(
    rewards: list[list[float]],
    groups: Sequence[Any],
    *,
    tokens: int = 2,
    anchors: list[list[Any]] | None = None,
    invalid: list[list[bool]] | None = None,
) -> Rollouts:
    """Episodes with these rewards a turn, each turn of the same number of sampled tokens, each a row."""
    turns = [reward for episode in rewards for reward in episode]
    turn_episode = np.repeat(np.arange(len(rewards)), [len(episode) for episode in rewards])
    action_turn = np.repeat(np.arange(len(turns)), tokens)
    count = len(action_turn)
    row = turn_episode[action_turn]
    return Rollouts(
        group=factorize(groups),
        success=np.zeros(len(rewards), dtype=bool),
        truncated=np.zeros(len(rewards), dtype=bool),
        turn_episode=turn_episode,
        turn_reward=np.array(turns),
        turn_penalty=np.zeros(len(turns)),
        turn_invalid=np.array([i for e in invalid for i in e]) if invalid else np.zeros(len(turns), dtype=bool),
        anchors=tuple(a for e in anchors for a in e) if anchors else (None,) * len(turns),
        action_turn=action_turn,
        action_row=row,
        action_position=np.concatenate([1 + np.arange(np.sum(row == r)) for r in range(len(rewards))]),
        logprobs=np.zeros(count),
        action_penalty=np.zeros(count),
        rows=tuple(np.zeros(1 + int(np.sum(row == r)), dtype=np.int64) for r in range(len(rewards))),
    )


# ---------------------------------------------------------------------- gae


@given(st.data(), st.integers(1, 4), st.integers(1, 9), st.floats(0, 1), st.floats(0, 1))
def test_masked_gae_is_gae_without_the_masked_tokens(
    data: st.DataObject, rows: int, width: int, gamma: float, lam: float
) -> None:
    shape = (rows, width)
    rewards = data.draw(arrays.arrays(np.float64, shape, elements=numbers))
    values = data.draw(arrays.arrays(np.float64, shape, elements=numbers))
    mask = data.draw(arrays.arrays(np.bool_, shape))
    estimates = masked_gae(rewards, values, mask, gamma=gamma, lam=lam)
    for r in range(rows):
        kept = mask[r]
        expected = ordinary_gae(rewards[r, kept], values[r, kept], gamma, lam)
        np.testing.assert_allclose(estimates.advantages[r, kept], expected, atol=1e-9)
        np.testing.assert_allclose(estimates.returns[r, kept], expected + values[r, kept], atol=1e-9)
        assert not estimates.advantages[r, ~kept].any() and not estimates.returns[r, ~kept].any()


def test_what_the_world_says_cannot_change_an_advantage() -> None:
    """The unmasked recursion of Search-R1 and SkyRL lets these values in, and gets other numbers."""
    mask = np.array([[True, True, False, False, True, True]])
    rewards = np.array([[0.0, 0.0, 0.0, 0.0, 0.0, 1.0]])
    calm = np.array([[0.5, 0.6, 0.0, 0.0, 0.7, 0.8]])
    wild = np.array([[0.5, 0.6, 9.0, -4.0, 0.7, 0.8]])
    ours = masked_gae(rewards, wild, mask, gamma=0.99, lam=0.95).advantages
    np.testing.assert_array_equal(ours, masked_gae(rewards, calm, mask, gamma=0.99, lam=0.95).advantages)
    unmasked = ordinary_gae(rewards[0], wild[0], 0.99, 0.95)
    assert np.abs(unmasked - ours[0])[mask[0]].max() > 0.1


@given(st.lists(numbers, min_size=1, max_size=12), st.floats(-5, 5))
def test_without_discount_a_terminal_reward_leaves_what_the_critic_missed(
    values: list[float], reward: float
) -> None:
    rewards = np.zeros(len(values))
    rewards[-1] = reward
    ours = gae(rewards, np.array(values), np.zeros(len(values), dtype=np.int64))
    np.testing.assert_allclose(ours.advantages, reward - np.array(values), atol=1e-9)


def test_turns_that_paid_nothing_are_turns_in_bi_level_gae() -> None:
    """Worked by hand: γ_turn = 0.5, λ = 1, V = 0, rewards 0, 0, 8: turn returns 2, 4, 8."""
    turns = np.array([0, 0, 1, 2, 2, 2])
    ours = bi_level_gae(np.array([0.0, 0.0, 8.0]), np.zeros(6), turns, np.zeros(3, dtype=np.int64), turn_gamma=0.5)
    np.testing.assert_allclose(ours.advantages, [2, 2, 4, 8, 8, 8])
    silent = bi_level_gae(np.zeros(3), np.zeros(6), turns, np.zeros(3, dtype=np.int64))
    np.testing.assert_array_equal(silent.advantages, np.zeros(6))


@given(arrays.arrays(np.float64, st.integers(2, 50), elements=st.floats(-10, 10)))
def test_whitening(values: Any) -> None:
    white = whiten(values)
    assert abs(white.mean()) < 1e-6
    if values.std() > 1e-2:
        assert white.std(ddof=1) == pytest.approx(1.0, abs=1e-3)
        np.testing.assert_allclose(whiten(values, shift=False), white + values.mean())
    np.testing.assert_array_equal(whiten(values[:1]), values[:1])


def test_gae_credit_runs_through_turns_and_rows_of_an_episode() -> None:
    batch = rollouts([[1.0, 0.0, 2.0], [0.5]], ["a", "b"])
    values = np.arange(8) / 8
    credit = Gae(gamma=0.9, lam=0.8, whiten=False).assign(batch, values)
    expected = np.r_[
        ordinary_gae(np.array([0, 1.0, 0, 0, 0, 2.0]), values[:6], 0.9, 0.8),
        ordinary_gae(np.array([0, 0.5]), values[6:], 0.9, 0.8),
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
def test_group_advantages_add_up_to_zero(
    members: list[tuple[float, int]], scale: Any, leave_one_out: bool
) -> None:
    returns, keys = np.array([m[0] for m in members]), factorize(m[1] for m in members)
    ours = group_advantages(returns, keys, scale=scale, leave_one_out=leave_one_out)
    for key in set(keys.tolist()):
        assert abs(ours[keys == key].sum()) < 1e-5
        if len(set(returns[keys == key].tolist())) == 1:
            assert not ours[keys == key].any()


@given(groups)
def test_leave_one_out_is_against_the_mean_of_the_others(members: list[tuple[float, int]]) -> None:
    returns, keys = np.array([m[0] for m in members]), factorize(m[1] for m in members)
    ours = group_advantages(returns, keys, scale="none", leave_one_out=True)
    for i, (value, key) in enumerate(zip(returns, keys, strict=True)):
        others = [r for j, r in enumerate(returns) if keys[j] == key and j != i]
        assert ours[i] == pytest.approx(value - np.mean(others) if others else 0.0, abs=1e-9)


def test_equal_returns_that_do_not_add_up_exactly_are_equal_all_the_same() -> None:
    returns = np.array([0.1, 0.1, 0.1])  # whose computed mean is not 0.1
    assert returns.sum() / 3 != 0.1
    assert group_advantages(returns, np.zeros(3, dtype=np.int64)).tolist() == [0.0, 0.0, 0.0]
    assert group_statistics(returns, np.zeros(3, dtype=np.int64)).std.tolist() == [0.0]


def test_a_group_of_one_learns_nothing_unless_asked_to() -> None:
    one, key = np.array([0.7]), np.zeros(1, dtype=np.int64)
    assert group_advantages(one, key).tolist() == [0.0]
    assert group_advantages(one, key, singleton="return").tolist() == [0.7 / (1 + 1e-6)]
    assert group_advantages(one, key, singleton="return", scale="none").tolist() == [0.7]


def test_batch_scale_divides_by_the_deviation_of_all_returns() -> None:
    ours = group_advantages(np.array([1.0, 3.0, 0.0, 4.0]), np.array([0, 0, 1, 1]), scale="batch", eps=0.0)
    np.testing.assert_allclose(ours, np.array([-1, 1, -2, 2]) / np.std([1, 3, 0, 4], ddof=1))


def test_group_credit_counts_a_kl_term_in_the_reward() -> None:
    batch = rollouts([[1.0], [0.0]], ["a", "a"])
    ours = Group(scale="none").assign(batch.add_token_penalties(np.array([-0.1, -0.1, 0.0, -0.4])))
    np.testing.assert_allclose(ours.advantages, [0.6, 0.6, -0.6, -0.6])


# ---------------------------------------------------------------------- anchor


@given(st.lists(st.lists(numbers, min_size=1, max_size=8), min_size=1, max_size=5), st.floats(0, 1))
def test_discounted_sums_are_those_of_the_definition(episodes: list[list[float]], gamma: float) -> None:
    segments = np.repeat(np.arange(len(episodes)), [len(e) for e in episodes])
    ours = discounted_sums(np.concatenate([np.array(e) for e in episodes]), segments, gamma)
    expected = [sum(gamma**k * r for k, r in enumerate(e[t:])) for e in episodes for t in range(len(e))]
    np.testing.assert_allclose(ours, expected, atol=1e-9)


def test_states_of_different_tasks_are_different() -> None:
    assert anchor_groups(np.array([0, 1, 0, 1]), ["s", "s", "s", "s"]).tolist() == [0, 1, 0, 1]


def test_similar_texts_join_the_first_set_whose_first_member_is_like_them() -> None:
    texts = ["abcdefghij", "abcdefghiX", "abcdefghXY", "zzzz", "abcdefghij"]
    group = np.zeros(5, dtype=np.int64)
    # 9 of 10 letters agree with the first: 0.9; 8 of 10: 0.8, though it is 0.9 to the second.
    assert anchor_groups(group, texts, similarity=0.9).tolist() == [0, 0, 1, 2, 0]
    assert anchor_groups(group, texts, similarity=0.8).tolist() == [0, 0, 0, 1, 0]
    with pytest.raises(ConfigurationError, match="compares texts"):
        anchor_groups(group[:1], [(1, 2)], similarity=0.9)


def test_long_episodes_do_not_weigh_more_unless_asked_to() -> None:
    rewards = np.array([0.0, 0.0, 0.0, 4.0])
    episodes, task = np.array([0, 0, 0, 1]), np.zeros(4, dtype=np.int64)
    once = anchor_advantages(rewards, episodes, task, list("abcd"))
    np.testing.assert_allclose(once.episode, [-2, -2, -2, 2])
    by_turn = anchor_advantages(rewards, episodes, task, list("abcd"), episode_statistics="turn")
    np.testing.assert_allclose(by_turn.episode, [-1, -1, -1, 3])


def test_anchor_credit_without_shared_states_is_group_credit() -> None:
    batch = rollouts([[1.0, 2.0], [0.0], [5.0, 0.0]], list("aab"), anchors=[[1, 2], [3], [4, 5]])
    ours = Anchor(scale="group").assign(batch).advantages
    np.testing.assert_allclose(ours, Group().assign(batch).advantages)


def test_anchor_credit_of_a_shared_state_worked_by_hand() -> None:
    """Both episodes stand in s at first: one goes on to win after two turns, the other fails at once."""
    batch = rollouts([[0.0, 1.0], [0.0]], list("aa"), tokens=1, anchors=[["s", "t"], ["s"]])
    ours = Anchor(gamma=0.5, omega=2.0).assign(batch).advantages
    # A_E = ±1/2; returns from s are 1/2 and 0, so A_S = ±1/4; t is visited once.
    np.testing.assert_allclose(ours, [0.5 + 2 * 0.25, 0.5, -0.5 - 2 * 0.25])
    add_episode_penalties = rollouts(
        [[0.0, 1.0], [0.0]],
        list("aa"),
        tokens=1,
        anchors=[["s", "t"], ["s"]],
        invalid=[[False, True], [False]],
    )
    ours = Anchor(gamma=0.5, omega=2.0, invalid_penalty=0.2).assign(add_episode_penalties).advantages
    np.testing.assert_allclose(ours, [1.0, 0.3, -1.0])  # only the second turn's own score falls


def test_anchor_credit_wants_to_know_the_states() -> None:
    with pytest.raises(ConfigurationError, match="anchor='state'"):
        Anchor().assign(rollouts([[1.0], [0.0]], list("aa")))


def summed(rewards: Sequence[float], cuts: Sequence[int]) -> float:
    """A return as rollouts sum it: moves within turns first, then turns."""
    bounds = [0, *cuts, len(rewards)]
    return sum(sum(rewards[a:b]) for a, b in itertools.pairwise(bounds))


def test_the_same_rewards_cut_into_other_turns_are_the_same_return() -> None:
    """Ten failed moves of Sokoban, -0.1 each: the sums differ in their last digits, and that is no difference."""
    ways = [summed([-0.1] * 10, cuts) for cuts in ([], [5], [2, 4, 6, 8], [3, 6])]
    assert len(set(ways)) > 1
    returns, groups = np.array([*ways, 1.0]), np.array([0, 0, 0, 0, 1])
    assert group_statistics(returns, groups).std[0] == 0.0
    for options in ({}, {"eps": 0.0}, {"leave_one_out": True, "scale": "none"}):
        assert (group_advantages(returns, groups, **options) == 0.0).all()
    assert informative_groups([ways, [1.0, 0.0]]) == (1,)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_an_eps_of_nothing_divides_nothing_by_nothing(scale: Any) -> None:
    assert (group_advantages(np.ones(4), np.array([0, 0, 1, 1]), eps=0.0, scale=scale) == 0.0).all()


def test_turns_of_several_episodes_may_be_interleaved() -> None:
    """γ = 0.95, two episodes of three turns, the last reward of the first is 10: R_0 = 0.95² · 10 = 9.025."""
    by_episode = np.array([0, 0, 0, 1, 1, 1])
    order = np.array([0, 3, 1, 4, 2, 5])  # step by step instead
    rewards = np.array([0.0, 0.0, 10.0, 0.0, 0.0, 0.0])
    anchors = ["a", "b", "c", "a", "b", "d"]
    groups = np.zeros(6, dtype=np.int64)
    apart = anchor_advantages(rewards, by_episode, groups, anchors)
    mixed = anchor_advantages(rewards[order], by_episode[order], groups, [anchors[i] for i in order])
    assert apart.step_returns[0] == pytest.approx(9.025)
    for one, other in zip(apart, mixed, strict=True):
        assert np.allclose(one[order], other)
