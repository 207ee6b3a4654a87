"""Optimal actions in the states of a stored episode, by replay."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...agents.episode import Episode
from ...agents.execution import trial_seed
from ...envs.core import TextEnv
from .labels import judge


def find_optimal_actions(
    env: TextEnv[Any], episode: Episode, places: Collection[int]
) -> dict[int, tuple[str, ...]]:
    """Return the optimal actions before some actions of an episode, by the index of the action.

    The episode must have labels, see `label_episode`: its replay in this environment is equal to the record.

    Args:
        env: Environment with the arguments with which the episode was played; it is reset.
        episode: The episode. Of an agent that retries, the last trial is replayed.
        places: Indices of actions, from 0.
    """
    found: dict[int, tuple[str, ...]] = {}
    if not places:
        return found
    last = max(places)
    env.reset(seed=trial_seed(episode.seed, len(episode.trials)), options={"task": episode.task})
    moves = (move for turn in episode.turns for move in turn.moves)
    for index, move in enumerate(moves):
        if index in places:
            found[index] = optimal_actions(env)
        if index == last:
            break
        env.step(move.action)
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
