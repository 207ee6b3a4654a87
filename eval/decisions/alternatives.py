"""Optimal actions in the states of a stored episode, by replay."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...agents.episode import Episode
from ...agents.execution import trial_seed
from ...agents.recorded_start import reset_as_recorded
from ...envs.core import TextEnv
from .labels import Unlabelled, judge
from .replay import describe_deviation


def find_optimal_actions(
    env: TextEnv[Any], episode: Episode, places: Collection[int]
) -> dict[int, tuple[str, ...]] | Unlabelled:
    """Return the optimal actions before some actions of an episode, by the index of the action.

    Stored labels may have been made with other data: if an observation differs from the record, that is returned
    as the reason.

    Args:
        env: Environment with the arguments with which the episode was played; it is reset.
        episode: The episode. Of an agent that retries, the last trial is replayed.
        places: Indices of actions, from 0.
    """
    found: dict[int, tuple[str, ...]] = {}
    if not places:
        return found
    seed = trial_seed(episode.seed, len(episode.trials))
    observation, _ = reset_as_recorded(env, episode.task, seed, episode.chance_seed)
    index = 0
    for turn in episode.turns:
        if observation != turn.observation:
            return describe_deviation(index, "observation")
        for move in turn.moves:
            if index in places:
                found[index] = optimal_actions(env)
            if len(found) == len(places):
                return found
            observation, *_ = env.step(move.action)
            index += 1
    return found


def optimal_actions(env: TextEnv[Any]) -> tuple[str, ...]:
    """Return the actions without regret in the current state, that of the expert first.

    They are those among the admissible actions, and the expert's alone where admissible actions cannot be listed.
    The state remains as it is.
    """
    before = env.optimum()
    candidates = dict.fromkeys([*(env.expert_actions() or ())[:1], *(env.admissible_actions() or ())])
    exact = env.optimum_is_exact
    return tuple(
        action for action in candidates if judge(before, env.optimum_after(action), exact, False, False).optimal
    )
