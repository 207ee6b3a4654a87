"""Branched rollouts: every statistic and every gradient is that of the same episodes as separate chains."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arboretum.agents.episode import Episode, Limits, Move, Turn
from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.credit.anchor import Anchor
from arboretum.trainers.algorithms.credit.base import Credit
from arboretum.trainers.algorithms.credit.gae import Gae
from arboretum.trainers.algorithms.credit.group import Group
from arboretum.trainers.algorithms.objectives.penalties import apply_overlong_penalty, tokens_in_loss
from arboretum.trainers.algorithms.objectives.settings import Overlong
from arboretum.trainers.algorithms.rewards import Rewards
from arboretum.trainers.algorithms.selectors import All, Dynamic, Selector, Uncertainty
from arboretum.trainers.data.episodes import Branch, from_episodes
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.reporting.metrics import rollout_metrics
from arboretum.trainers.sampling.failures import Failures


def random_turn(rng: np.random.Generator, *, can_restart: bool) -> Turn:
    prompt, reply = int(rng.integers(1, 6)), int(rng.integers(0, 5))
    restart = bool(can_restart and rng.random() < 0.25)
    key = int(rng.integers(0, 4))
    return Turn(
        str(key),
        "reply",
        moves=[Move("go", float(rng.integers(-2, 3)), bool(rng.random() < 0.8), True)],
        penalty=-0.1 * float(rng.integers(0, 2)),
        token_ids=rng.integers(0, 11, prompt + reply).tolist() if rng.random() < 0.9 else None,
        logprobs=[0.0] * prompt + rng.normal(-2, 0.3, reply).tolist(),
        loss_mask=[0] * prompt + [1] * reply,
        restart=restart or None,
        state_key=key,
        actions=("go",),
        limits=Limits(int(rng.integers(2, 5)), None),
        limits_after=Limits(1, None),
    )


def random_forest(seed: int, episodes: int = 14) -> tuple[list[Episode], list[int], list[Branch | None]]:
    """Return episodes, groups and branches; some episodes share the first turns of an earlier one."""
    rng = np.random.default_rng(seed)
    played: list[Episode] = []
    branches: list[Branch | None] = []
    groups = [i // 5 for i in range(episodes)]
    for index, group in enumerate(groups):
        earlier = [i for i in range(index) if groups[i] == group]
        turns: list[Turn] = []
        branch = None
        if earlier and rng.random() < 0.8:
            origin = int(rng.choice(earlier))
            # At most all but the last turn: a leaf belongs to one episode.
            branch = Branch(origin, int(rng.integers(0, len(played[origin].turns))))
            turns = played[origin].turns[: branch.turns]
        for _ in range(int(rng.integers(1, 4))):
            turns = [*turns, random_turn(rng, can_restart=bool(turns))]
        played.append(Episode("Env", "t", index, "model", success=bool(rng.random() < 0.5), turns=turns))
        branches.append(branch)
    return played, groups, branches


def both(seed: int) -> tuple[Rollouts, Rollouts]:
    """Return the same episodes as a forest and as chains."""
    episodes, groups, branches = random_forest(seed)
    return from_episodes(episodes, groups, branches=branches), from_episodes(episodes, groups)


seeds = st.integers(0, 10_000)


@given(seeds)
def test_shared_turns_are_stored_once_and_every_copy_is_the_token_of_its_chain(seed: int) -> None:
    forest, chains = both(seed)
    assert forest.turns <= chains.turns and len(forest.paths.turn) == chains.turns == len(chains.paths.turn)
    assert forest.actions == len({(int(t), int(o)) for t, o in zip(forest.action_turn, forest.action_offset)})  # noqa: B905
    assert len(forest.copies.action) == chains.actions
    assert forest.episode_lengths.tolist() == chains.episode_lengths.tolist()

    def sampled(rollouts: Rollouts) -> list[tuple[int, list[int], float]]:
        """Return episode, tokens up to the sampled one, and its log-probability, of every copy."""
        actions, _, episodes, rows = rollouts.copies
        return [
            (int(e), rollouts.rows[r][: rollouts.action_position[a] + 1].tolist(), float(rollouts.logprobs[a]))
            for a, e, r in zip(actions, episodes, rows, strict=True)
        ]

    assert sampled(forest) == sampled(chains)


@given(seeds)
@pytest.mark.parametrize(
    "credit",
    [Group(), Group(leave_one_out=True), Anchor(), Anchor(invalid_penalty=0.1), Gae(), Gae(turn_gamma=0.9)],
    ids=repr,
)
def test_credit_of_a_forest_is_that_of_its_chains(credit: Credit, seed: int) -> None:
    forest, chains = both(seed)
    for penalties in (True, False):
        assert forest.returns(penalties=penalties).tolist() == chains.returns(penalties=penalties).tolist()
    assert forest.token_rewards(forest.turn_reward).tolist() == chains.token_rewards(chains.turn_reward).tolist()
    values = np.random.default_rng(seed).normal(size=forest.actions)
    ours = credit.assign(forest, values)
    theirs = credit.assign(chains, values[forest.copies.action])
    np.testing.assert_allclose(ours.advantages, theirs.advantages, atol=1e-12)
    if ours.value_targets is not None and theirs.value_targets is not None:
        np.testing.assert_allclose(ours.value_targets, theirs.value_targets, atol=1e-12)


@given(seeds)
def test_penalty_of_an_episode_does_not_reach_the_episodes_that_share_its_turns(seed: int) -> None:
    forest, chains = both(seed)
    penalties = -np.arange(forest.episodes) / 8
    np.testing.assert_allclose(
        forest.add_episode_penalties(penalties).returns(penalties=True),
        chains.returns(penalties=True) + penalties,
        atol=1e-12,
    )


@given(seeds)
def test_selected_groups_of_a_forest_concatenate_to_the_original(seed: int) -> None:
    forest, _ = both(seed)
    joined = Rollouts.concatenate([forest.select([group]) for group in range(forest.groups)])
    for field in fields(Rollouts):
        ours, theirs = (getattr(r, field.name) for r in (joined, forest))
        assert (ours is None) == (theirs is None) == (field.name in ("turn_redraws", "episode_env")), field.name
        if ours is not None:
            ours, theirs = (list(map(np.ndarray.tolist, map(np.asarray, values))) for values in (ours, theirs))
            assert ours == theirs, field.name
    last = forest.select([forest.groups - 1])
    kept = forest.group == forest.groups - 1
    assert last.returns(penalties=True).tolist() == forest.returns(penalties=True)[kept].tolist()
    assert len(set(last.tree.tolist())) == len(set(forest.tree[kept].tolist()))


def test_trees_are_the_episodes_of_one_root_unless_given() -> None:
    episodes, groups, branches = random_forest(1)
    forest = from_episodes(episodes, groups, branches=branches)
    for index, branch in enumerate(branches):
        if branch is not None:
            assert forest.tree[index] == forest.tree[branch.episode]
    labels = [i % 2 for i in range(len(episodes))]
    given_trees = from_episodes(episodes, groups, trees=labels, branches=branches).tree
    pairs = list(zip(groups, labels, strict=True))
    assert [pairs[given_trees.tolist().index(t)] for t in given_trees] == pairs


def test_branch_that_the_episodes_do_not_have_is_rejected() -> None:
    episodes, groups, _ = random_forest(2)
    none: list[Any] = [None] * len(episodes)
    for wrong in (Branch(3, 0), Branch(0, 99), Branch(-1, 0)):
        with pytest.raises(ConfigurationError, match="cannot share"):
            from_episodes(episodes, groups, branches=[None, wrong, *none[2:]])
    with pytest.raises(ConfigurationError, match="one of each for each episode"):
        from_episodes(episodes, groups, branches=none[1:])


# ---------------------------------------------------------------------- what reads rollouts


@given(seeds)
def test_metrics_of_episodes_are_those_of_their_chains(seed: int) -> None:
    forest, chains = both(seed)
    failures = Failures(forest.episodes + 1, 1)
    ours, theirs = rollout_metrics(forest, failures), rollout_metrics(chains, failures)
    of_distinct_turns = {"valid_turns", "reply_tokens"}
    assert ours.keys() == theirs.keys() >= of_distinct_turns
    for name in ours.keys() - of_distinct_turns:
        assert ours[name] == pytest.approx(theirs[name]), name
    assert ours["reply_tokens"] == forest.actions / forest.turns
    assert ours["valid_turns"] == pytest.approx(1 - np.mean(forest.turn_invalid))


@given(seeds)
@pytest.mark.parametrize(
    "selector",
    [All(), Uncertainty(amount=0.5), Uncertainty(amount=0.5, penalties=True), Dynamic("return"), Dynamic()],
    ids=repr,
)
def test_selected_groups_are_those_of_the_chains(selector: Selector, seed: int) -> None:
    forest, chains = both(seed)
    assert selector.select(forest) == selector.select(chains)


@given(seeds)
@pytest.mark.parametrize("normalize", ["none", "mean-std"])
@pytest.mark.parametrize("over", ["group", "batch"])
def test_rewards_of_training_are_those_of_the_chains(normalize: Any, over: Any, seed: int) -> None:
    overlong = Overlong(coef=0.5, max_tokens=12, cache=8)
    rewards = Rewards(scale=2.0, normalize=normalize, over=over)
    forest, chains = (rewards.apply(apply_overlong_penalty(rollouts, overlong)) for rollouts in both(seed))
    np.testing.assert_allclose(forest.returns(penalties=True), chains.returns(penalties=True), atol=1e-12)


@given(seeds)
def test_tokens_of_overlong_episodes_are_dropped_from_these_episodes_only(seed: int) -> None:
    forest, chains = both(seed)
    cut = np.random.default_rng(seed).random(forest.episodes) < 0.5
    settings = Overlong(drop_truncated=True)
    in_forest, in_chains = (tokens_in_loss(replace(one, cut_off=cut), settings) for one in (forest, chains))
    assert in_forest.tolist() == in_chains.tolist()
    assert in_forest.tolist() == (~cut[forest.copies.episode]).tolist()
