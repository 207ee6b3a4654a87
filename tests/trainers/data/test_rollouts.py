"""Conversion of episodes to arrays: tokens, rewards and episodes are complete; and plans of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from arboretum.agents.episode import Episode, Move, Turn
from arboretum.agents.play import play
from arboretum.agents.reference import RandomAgent
from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.credit.group import Group
from arboretum.trainers.algorithms.objectives.penalties import tokens_in_loss
from arboretum.trainers.algorithms.objectives.settings import Overlong
from arboretum.trainers.data.episodes import from_episodes
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.sampling.rollout_plan import RolloutPlan, plan_chains


def turn(prompt: int, reply: int, reward: float = 0.0, **options: Any) -> Turn:
    """Return a turn of `prompt` given and `reply` sampled tokens, whose ids count up from `first`."""
    first = options.pop("first", 0)
    return Turn(
        observation=options.pop("observation", "observation"),
        reply="reply",
        moves=[Move("go", reward, options.pop("valid", True), True)],
        token_ids=list(range(first, first + prompt + reply)),
        logprobs=[0.0] * prompt + [-(i + 1) / 8 for i in range(reply)],
        loss_mask=[0] * prompt + [1] * reply,
        **options,
    )


def episode(turns: Sequence[Turn], **options: Any) -> Episode:
    return Episode("Env", options.pop("task", "t"), options.pop("seed", 0), "model", turns=list(turns), **options)


def two_episodes() -> Rollouts:
    """Return two episodes of one start; the history of the second was cut before its second and third turn."""
    grown = episode([turn(3, 2, 0.5), turn(1, 3, 1.0, first=10, penalty=-0.1)], success=True)
    cut = episode(
        [turn(3, 2, 0.0), turn(4, 1, 0.25, restart=True, first=20), turn(5, 2, 0.25, restart=True, first=30)],
        truncated=True,
    )
    return from_episodes([grown, cut], ["p", "p"])


def test_growing_conversation_is_one_row_and_cut_conversation_is_several() -> None:
    rollouts = two_episodes()
    assert [row.tolist() for row in rollouts.rows] == [
        [0, 1, 2, 3, 4, 10, 11, 12, 13],
        [0, 1, 2, 3, 4],
        [20, 21, 22, 23, 24],
        [30, 31, 32, 33, 34, 35, 36],
    ]
    sampled = [
        rollouts.rows[r][p]
        for r, p in zip(rollouts.copies.row.tolist(), rollouts.action_position.tolist(), strict=True)
    ]
    assert sampled == [3, 4, 11, 12, 13, 3, 4, 24, 35, 36]
    assert rollouts.logprobs.tolist() == [
        -1 / 8,
        -2 / 8,
        -1 / 8,
        -2 / 8,
        -3 / 8,
        -1 / 8,
        -2 / 8,
        -1 / 8,
        -1 / 8,
        -2 / 8,
    ]
    owners = set(zip(rollouts.copies.row.tolist(), rollouts.copies.episode.tolist(), strict=True))
    assert owners == {(0, 0), (1, 1), (2, 1), (3, 1)}
    assert rollouts.episode_lengths.tolist() == [5, 5]


def test_overlong_filtering_tells_a_limit_of_tokens_from_one_of_steps() -> None:
    """DAPO leaves out replies that were cut off; an episode that used up its steps still has a result."""
    reply, cut = turn(1, 2, 0.0), turn(1, 2, 0.0, cut=True)
    no_room = Turn("observation", "", cut=True)
    episodes = [
        episode([reply, reply], truncated=True),  # by the environment's steps or the dialogue's turns
        episode([reply, cut], truncated=True),  # in the reply
        episode([reply, no_room], truncated=True),  # in the context window
        episode([cut, reply], truncated=True),  # by the steps, after a reply that was cut off
        episode([reply, cut], success=True, terminated=True),
    ]
    rollouts = from_episodes(episodes, list("aaabb"))
    assert rollouts.cut_off.tolist() == [False, True, True, False, False]
    in_loss = tokens_in_loss(rollouts, Overlong(drop_truncated=True))
    assert sorted(set(rollouts.copies.episode[in_loss].tolist())) == [0, 3, 4]
    assert tokens_in_loss(rollouts, Overlong()).all()
    joined = Rollouts.concatenate([rollouts.select([1]), rollouts])
    assert joined.cut_off.tolist() == [False, False, False, True, True, False, False]


def test_reward_is_placed_on_the_last_sampled_token_of_its_turn() -> None:
    rollouts = two_episodes()
    assert rollouts.returns(penalties=False).tolist() == [1.5, 0.5]
    np.testing.assert_allclose(rollouts.returns(penalties=True), [1.4, 0.5])
    assert rollouts.token_rewards(rollouts.turn_reward).tolist() == [0, 0.5, 0, 0, 1.0, 0, 0, 0.25, 0, 0.25]


def test_reward_of_turn_without_tokens_is_placed_on_the_token_before() -> None:
    no_tokens = Turn("observation", "", moves=[Move("go", 2.0, True, True)])
    first = episode([turn(1, 2, 1.0), no_tokens])
    empty = episode([no_tokens])  # It counts in its group, but has no token for its reward.
    rollouts = from_episodes([first, empty], ["p", "p"])
    assert rollouts.token_rewards(rollouts.turn_reward).tolist() == [0.0, 3.0]
    assert rollouts.returns(penalties=False).tolist() == [3.0, 2.0]
    np.testing.assert_allclose(Group(scale="none").assign(rollouts).advantages, [0.5, 0.5])


def test_episode_of_several_rows_counts_once_in_group_statistics() -> None:
    advantages = Group(scale="none").assign(two_episodes()).advantages
    np.testing.assert_allclose(advantages, [0.45] * 5 + [-0.45] * 5)  # The mean of 1.4 and 0.5 is 0.95.


def test_episode_penalty_is_added_to_the_last_turn() -> None:
    rollouts = two_episodes().add_episode_penalties(np.array([0.0, -0.5]))
    np.testing.assert_allclose(rollouts.turn_penalty, [0.0, -0.1, 0.0, 0.0, -0.5])


def test_selected_groups_concatenate_to_the_original_rollouts() -> None:
    episodes = [episode([turn(2, 1 + i % 3, i / 8, first=10 * i)] * (1 + i % 2)) for i in range(6)]
    rollouts = from_episodes(episodes, ["a", "b", "a", "b", "c", "c"], envs=[0, 1, 0, 1, 0, 0])
    assert rollouts.group_env.tolist() == [0, 1, 0]
    assert (
        rollouts.select([1]).returns(penalties=False).tolist()
        == rollouts.returns(penalties=False)[[1, 3]].tolist()
    )
    in_order = from_episodes([episodes[i] for i in (0, 2, 1, 3, 4, 5)], list("aabbcc"), envs=[0, 0, 1, 1, 0, 0])
    joined = Rollouts.concatenate([rollouts.select([0]), rollouts.select([1]), rollouts.select([2])])
    for name in Rollouts.__dataclass_fields__:
        ours, theirs = getattr(joined, name), getattr(in_order, name)
        if name in ("turn_limits", "turn_redraws"):
            assert ours is theirs is None
        elif name == "turn_tokens":
            assert [row.tolist() for row in ours] == [row.tolist() for row in theirs]
        else:
            assert list(ours) == list(theirs), name


def test_episode_without_training_data_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="tokenizer"):
        from_episodes([episode([Turn("observation", "reply")])], ["p"])
    with pytest.raises(ConfigurationError, match="failed: connection lost; omit it"):
        from_episodes([episode([turn(1, 1)], error="connection lost")], ["p"])
    with pytest.raises(ConfigurationError, match="prompt must precede"):
        from_episodes([episode([turn(0, 1)])], ["p"])
    broken = turn(1, 1)
    broken.logprobs = [0.0]
    with pytest.raises(ConfigurationError, match="turn 1 of the episode of task 't'"):
        from_episodes([episode([broken])], ["p"])


def test_plan_makes_a_group_of_every_prompt_even_for_a_repeated_task() -> None:
    plan = plan_chains(["x", "y", "x"], 2, batch=7, seed=3)
    assert [job.task for job in plan.jobs] == ["x", "x", "y", "y", "x", "x"]
    assert len(set(plan.keys)) == 3
    assert len({job.seed for job in plan.jobs}) == 6
    assert not {job.seed for job in plan.jobs} & {
        job.seed for job in plan_chains(["x"] * 3, 2, batch=8, seed=3).jobs
    }
    assert plan == plan_chains(["x", "y", "x"], 2, batch=7, seed=3)


def test_plan_arranges_episodes_in_the_order_of_its_jobs() -> None:
    import arboretum  # noqa: F401 (registers the environments)

    envs = [gym.make("TextFrozenLake-v0") for _ in range(3)]
    tasks = list(envs[0].unwrapped.tasks[:2])  # type: ignore[attr-defined]
    plan = plan_chains(tasks, 3, batch=0, seed=1)
    episodes = list(play(RandomAgent(), envs, plan.jobs, keep={"states"}))
    ordered, keys = plan.arrange(reversed(episodes))
    assert [(e.task, e.seed) for e in ordered] == [(job.task, job.seed) for job in plan.jobs]
    assert keys == list(plan.keys)
    starts = [e.turns[0].state_key for e in ordered]
    assert starts[0] == starts[1] == starts[2] and starts[3] == starts[4] == starts[5]
    ordered[0].error = "connection lost"
    assert len(plan.arrange(episodes)[0]) == 5
    with pytest.raises(ConfigurationError, match="does not belong to this plan"):
        RolloutPlan(plan.jobs[:1], plan.keys[:1]).arrange(episodes)
