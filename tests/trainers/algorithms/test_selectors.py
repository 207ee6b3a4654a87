"""Selectors: rules of selection, ties, and batches filled from several generation batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arboretum.agents.episode import Episode, Move, Turn
from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.algorithms.selectors import (
    All,
    Dynamic,
    NotEnoughGroups,
    Refill,
    Uncertainty,
    informative_groups,
    most_uncertain,
    select_by_env,
    select_groups,
)
from arboretum.trainers.data.episodes import from_episodes
from arboretum.trainers.data.rollouts import Rollouts


def make_rollouts(returns: list[list[float]], penalties: bool = False) -> Rollouts:
    """Return groups of one-turn episodes with these returns; `penalties` makes the first of each malformed."""
    episodes, keys = [], []
    for group, values in enumerate(returns):
        for i, value in enumerate(values):
            turn = Turn("observation", "reply", moves=[Move("go", value, True, True)], token_ids=[1, 2])
            turn.logprobs, turn.loss_mask = [0.0, -1.0], [0, 1]
            turn.penalty = -0.1 if penalties and i == 0 else 0.0
            episodes.append(Episode("Env", "t", 0, "model", success=value > 0.5, turns=[turn]))
            keys.append(group)
    return from_episodes(episodes, keys)


def test_groups_of_an_environment_with_large_returns_displace_no_others() -> None:
    rollouts = make_rollouts([[0, 0.1], [0, 1], [0, 10], [0, 100]])
    selector = Uncertainty(amount=0.5, rescale="linear")
    assert selector.select(rollouts).groups == (2, 3)
    mixture = replace(rollouts, episode_env=np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    assert select_by_env(selector, mixture) == ((2, 3), 0.5)
    apart = replace(rollouts, episode_env=np.array([0, 0, 0, 0, 1, 1, 1, 1]))
    assert select_by_env(selector, apart) == ((1, 3), 0.5)
    assert select_by_env(selector, rollouts) == selector.select(rollouts)


scores = st.lists(st.floats(0, 3), min_size=1, max_size=20)
rules = st.sampled_from(["fraction", "top-p", "top-p-softmax", "min-p"])


@given(scores, rules, st.floats(0.05, 1.0), st.booleans())
def test_no_dropped_group_is_more_uncertain_than_a_selected_one(
    values: list[float], rule: Any, amount: float, include_zero: bool
) -> None:
    kept = most_uncertain(np.array(values), rule, amount, include_zero=include_zero)
    assert list(kept) == sorted(set(kept))
    dropped = [v for i, v in enumerate(values) if i not in kept]
    if kept and dropped:
        assert min(values[i] for i in kept) >= max(dropped) - 1e-10  # the tolerance of ties
    if not include_zero:
        assert all(values[i] > 1e-10 for i in kept)
    assert most_uncertain(np.array(values), rule, 1.0) or rule == "min-p"


def test_first_of_groups_with_permuted_returns_is_selected() -> None:
    """The standard deviation of a permuted group may differ in its last digit, which must not decide."""
    rng = np.random.default_rng(0)
    returns, differed = np.array([0.7, -1.0, 0.1, -1.0]), 0
    for _ in range(200):
        scores = np.array([np.std(rng.permutation(returns), ddof=1) for _ in range(2)])
        differed += scores[0] != scores[1]
        assert most_uncertain(scores, "fraction", 0.5) == (0,)
        assert most_uncertain(scores, "count", 1, smallest=True) == (0,)
    assert differed


def test_selection_rules_match_hand_calculations() -> None:
    values = np.array([0.5, 0.3, 0.2, 0.0, 0.05])
    assert most_uncertain(values, "count", 2) == (0, 1)
    assert most_uncertain(values, "min-p", 0.5) == (0, 1)
    assert most_uncertain(values, "top-p", 0.5) == (0, 1)  # 0.5 is short of 0.525 - 0.01
    assert most_uncertain(values, "top-p", 0.5, eps=0.03) == (0,)
    assert most_uncertain(values, "fraction", 0.4, smallest=True) == (3, 4)
    assert most_uncertain(values, "fraction", 0.01) == (0,)
    assert most_uncertain(np.full(100, 1.0), "fraction", 0.29) == tuple(range(29))
    assert most_uncertain(np.zeros(3), "top-p", 0.9) == ()  # No differences: the update is skipped.
    assert most_uncertain(np.zeros(3), "fraction", 0.9, include_zero=False) == ()
    # softmax(1, 0, 0) = .576, .212, .212
    assert most_uncertain(np.array([0.0, 1.0, 0.0]), "top-p-softmax", 0.57) == (1,)
    assert most_uncertain(np.array([0.0, 1.0, 0.0]), "top-p-softmax", 0.7) == (0, 1)


def test_uncertainty_ignores_penalties_unless_configured() -> None:
    batch = make_rollouts([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0], [0.5, 1.0]], penalties=True)
    assert Uncertainty(amount=0.5).select(batch).groups == (1, 3)
    constant = make_rollouts([[1.0, 1.0], [0.0, 0.0]], penalties=True)
    assert Uncertainty(amount=1.0, include_zero=False).select(constant).groups == ()
    assert Uncertainty(amount=1.0, include_zero=False, penalties=True).select(constant).groups == (0, 1)


def test_rescale_reduces_advantages_with_the_fraction_selected() -> None:
    batch = make_rollouts([[0.0, 1.0]] * 4)
    assert Uncertainty(amount=0.25).select(batch).scale == 1.0
    assert Uncertainty(amount=0.25, rescale="linear").select(batch).scale == 0.25
    assert Uncertainty(amount=0.25, rescale="sqrt").select(batch).scale == 0.5
    assert All().select(batch).groups == (0, 1, 2, 3)


def test_dynamic_sampling_drops_groups_of_equal_return_or_success() -> None:
    batch = make_rollouts([[0.1, 0.1, 0.1], [0.2, 0.3, 0.3], [0.0, 1.0, 0.0]])
    assert Dynamic(metric="return").select(batch).groups == (1, 2)
    assert Dynamic().select(batch).groups == RECIPES["dapo"].selector.select(batch).groups == (2,)
    assert informative_groups([[1.0], []]) == ()


def test_batch_is_filled_from_several_generation_batches() -> None:
    batches = [
        make_rollouts([[0.0, 0.0], [0.0, 1.0]]),
        make_rollouts([[1.0, 1.0]]),
        make_rollouts([[0.0, 2.0], [3.0, 0.0]]),
    ]
    state = Dynamic().refill(2)
    used = 0
    while state.wants_more:
        state = state.add([(used, group) for group in Dynamic().select(batches[used]).groups])
        used += 1
    assert (used, state.batches, len(state.kept)) == (3, 3, 3)
    batch = select_groups(batches, state.batch())
    assert batch.returns(penalties=False).tolist() == [0.0, 1.0, 0.0, 2.0]
    assert batch.group.tolist() == [0, 0, 1, 1]
    with pytest.raises(ConfigurationError, match="nothing to train on"):
        select_groups(batches, ())


@pytest.mark.parametrize(("fallback", "kept"), [("partial", (7,)), ("skip", ())])
def test_exhausted_generation_batches_use_the_fallback(fallback: Any, kept: tuple[int, ...]) -> None:
    state: Refill[int] = Refill(3, 2, fallback).add([7]).add([])
    assert state.exhausted and not state.wants_more
    assert state.batch() == kept


def test_exhausted_generation_batches_can_raise() -> None:
    with pytest.raises(NotEnoughGroups, match="2 generation batches had 1 of 3 informative groups"):
        Refill(3, 2, "raise").add([7]).add([]).batch()
    assert Refill(2, 1, "raise").add([1, 2, 3]).batch() == (1, 2)


def test_zero_max_batches_means_no_limit() -> None:
    state: Refill[int] = Refill(3, 0, "raise")
    for _ in range(50):
        state = state.add([])
    assert state.wants_more


@pytest.mark.parametrize(
    "settings",
    [
        {"amount": 0.0},
        {"amount": 1.5},
        {"rule": "count", "amount": 2.5},
        {"rule": "most"},
        {"rescale": "cube"},
        {"eps": -1.0},
    ],
)
def test_impossible_selector_settings_are_rejected(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="selector"):
        Uncertainty(**settings)
