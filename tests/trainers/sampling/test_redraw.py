"""Random events drawn anew from snapshots: the outcomes of the environment, whatever was observed."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import gymnasium as gym
import pytest

import arboretum
from arboretum.agents.base import Stop
from arboretum.agents.deadline import Expired
from arboretum.agents.episode import Episode
from arboretum.agents.play import Job, play
from arboretum.agents.reference import RandomAgent
from arboretum.envs.open_episode import own_class
from arboretum.trainers.data.rollouts import Redraw
from arboretum.trainers.sampling.redraw import Draws, Redrawer, Target, redraw_targets

assert arboretum  # registers the environments


def record(env_id: str, count: int = 6, **options: Any) -> tuple[Any, list[Episode]]:
    """Return an environment and episodes of one of its tasks, in the order of their seeds."""
    env = gym.make(env_id, **options).unwrapped
    jobs = [Job(env.tasks[0], seed) for seed in range(count)]
    return env, list(play(RandomAgent(), [env], jobs, max_turns=6, keep={"states", "snapshots"}))


def test_every_state_and_action_of_a_group_is_one_target() -> None:
    _, episodes = record("TextFrozenLake-v0")
    targets = redraw_targets(episodes, [0, 0, 0, 1, 1, 1])
    keys = {
        (group, turn.state_key, turn.actions)
        for episode, group in zip(episodes, [0, 0, 0, 1, 1, 1], strict=True)
        for turn in episode.turns
    }
    assert len(targets) == len(keys) and {target.key for target in targets} == keys


@pytest.mark.parametrize("env_id", ["TextSokoban-v0", "TextBlocksworld-v0"])
def test_redrawn_outcomes_without_chance_are_the_observed_ones(env_id: str) -> None:
    env, episodes = record(env_id)
    observed = {
        (turn.state_key, turn.actions): (sum(move.reward for move in turn.moves), turn.next_state_key)
        for episode in episodes
        for turn in episode.turns
    }
    for target in redraw_targets(episodes, [0] * len(episodes)):
        reward, next_state = observed[target.key[1:]]
        expected = Redraw(pytest.approx(reward), next_state, len(target.actions), len(target.actions))
        assert Redrawer(env).draw(target, 2) == Draws((expected, expected))


@pytest.mark.parametrize(
    ("options", "left", "spent"),
    [
        ({}, 3, 1),  # the dialogue's limit counts the move
        ({}, None, 3),  # the environment's counts refused actions, too
        ({"count_refused": False}, None, 1),
        ({"max_steps": 4}, 3, 2),  # three actions are left before, and one step of the environment after
    ],
)
def test_redrawn_outcome_spends_what_the_limits_count(
    options: dict[str, Any], left: int | None, spent: int
) -> None:
    env = gym.make("TextFrozenLake-v0", map=["SFG", "FFF"], success_rate=1.0, **options).unwrapped
    env.reset(seed=0)
    actions = ("Wait", "Wait", "Down")
    target = Target((0, env.state_key(), actions), env.snapshot(), actions, 0, left)
    (outcome,) = Redrawer(env).draw(target, 1).outcomes
    assert (outcome.actions, outcome.spent) == (3, spent)


def test_redrawn_outcomes_on_slippery_ice_have_its_probabilities() -> None:
    """A move succeeds with probability 0.8 and slips to either side with 0.1; draws are the same everywhere."""
    env, episodes = record("TextFrozenLake-v0", count=1)
    target = redraw_targets(episodes, [0])[0]
    outcomes = Redrawer(env).draw(target, 900).outcomes
    counts = Counter(outcome.next_state if outcome.next_state is not None else "ended" for outcome in outcomes)
    assert sorted(counts.values()) == pytest.approx([90, 90, 720], abs=50)
    again = gym.make("TextFrozenLake-v0").unwrapped
    again.reset(seed=5)
    assert Redrawer(again).draw(target, 900).outcomes == outcomes


def test_outcomes_that_the_step_limit_cuts_are_left_out() -> None:
    env, episodes = record("TextSokoban-v0", count=1, max_steps=1)
    (target,) = redraw_targets(episodes, [0])
    assert len(Redrawer(env).draw(target, 2).outcomes) == 2
    assert Redrawer(env).draw(target._replace(actions=target.actions * 2), 2) == Draws(())


def test_outcome_in_which_the_environment_fails_is_an_error_and_the_others_remain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env, episodes = record("TextFrozenLake-v0", count=1)
    target = redraw_targets(episodes, [0])[0]
    whole = Redrawer(env).draw(target, 6).outcomes
    working, causes = type(env).step, [None, OSError("no ice"), None, Expired(), None, SystemExit(3)]
    pending = iter(causes)

    def step(self: Any, action: str) -> Any:
        if (cause := next(pending)) is not None:
            raise cause
        return working(self, action)

    monkeypatch.setattr(own_class(type(env)), "step", step)
    found = Redrawer(env).draw(target, 6)
    assert found.outcomes == whole[::2]
    first, second, third = found.errors
    assert first.startswith("OSError: no ice (test_redraw.py, line ")
    assert third.startswith("SystemExit: 3 (test_redraw.py, line ")
    assert second == "the time limit of a step expired"
    pending = iter([Stop("no worker is left")])
    with pytest.raises(Stop):
        Redrawer(env).draw(target, 6)


def test_outcome_whose_step_hangs_is_an_error_and_the_environment_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env, episodes = record("TextFrozenLake-v0", count=1)
    target = redraw_targets(episodes, [0])[0]
    whole = Redrawer(env).draw(target, 6).outcomes
    working, used = type(env).step, []

    def step(self: Any, action: str) -> Any:
        used.append(self)
        if len(used) == 3:
            time.sleep(60)
        return working(self, action)

    monkeypatch.setattr(own_class(type(env)), "step", step)
    found = Redrawer(env, step_timeout=0.2).draw(target, 6)
    assert found.outcomes == whole[:2] + whole[3:] and found.errors == ("the time limit of a step expired",)
    assert used[:3] == [env] * 3 and env not in used[3:] and len(set(map(id, used[3:]))) == 1
    # Nobody can tell in which state the interrupted environment is.
    assert Redrawer(env, step_timeout=0.2).draw(target, 6).outcomes == whole and env not in used[3:]
