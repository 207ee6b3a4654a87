"""Dynamics of the package's own environments as arrays: Sokoban, Blocksworld and FrozenLake.

Levels of deterministic environments are enumerated by playing them: every action is executed in every state that
can be reached, from snapshots. A lake's transitions are read from the map's own distribution of outcomes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import gymnasium as gym
import numpy as np

from ...envs.core import TextEnv
from ...envs.frozenlake.lake import ACTIONS, CORNERS, generated_lake
from .mdp import Mdp


def enumerate_env(env: TextEnv[Any], task: str, horizon: int) -> Mdp:
    """Return a task of a deterministic environment as arrays, by executing every action in every state.

    Args:
        env: Environment without a step limit, whose admissible actions can be listed.
        task: Task.
        horizon: Number of steps after which the laboratory truncates an episode.
    """
    env.reset(seed=0, options={"task": task})
    rows: dict[Hashable, int] = {env.state_key(): 0}
    open_states = [env.snapshot()]
    edges: list[list[tuple[str, Hashable, bool, bool]]] = []
    for snapshot in open_states:  # grows while it is read
        env.restore(snapshot)
        before, actions = env.state_key(), env.admissible_actions()
        assert actions, "a state in which an episode continues has actions"
        edges.append([])
        for action in actions:
            env.restore(snapshot)
            _, _, terminated, _, info = env.step(action)
            key: Hashable = None if terminated else env.state_key()
            edges[-1].append((action, key, info["success"], env.counts_as_effect(action, before, info)))
            if not terminated and key not in rows:
                rows[key] = len(rows)
                open_states.append(env.snapshot())
    count, width = len(rows), max(map(len, edges))
    following = np.full((count, width, 1), count)
    rewards = np.zeros((count, width, 1))
    valid, effects = np.zeros((count, width), dtype=bool), np.zeros((count, width), dtype=bool)
    names = [[""] * width for _ in range(count)]
    for row, outgoing in enumerate(edges):
        for number, (text, after, success, is_effect) in enumerate(outgoing):
            following[row, number] = count if after is None else rows[after]
            rewards[row, number] = success
            valid[row, number], effects[row, number] = True, is_effect
            names[row][number] = text
    return Mdp(
        following,
        np.ones_like(rewards),
        rewards,
        valid,
        effects,
        np.zeros(1, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        horizon,
        tuple(name for row in names for name in row),
    )


def make_env(env_id: str, **arguments: Any) -> TextEnv[Any]:
    """Return an environment without Gymnasium's wrappers."""
    env = gym.make(env_id, max_steps=None, disable_env_checker=True, **arguments).unwrapped
    assert isinstance(env, TextEnv)
    return env


def make_lake(task: str, size: int, success_rate: float, horizon: int) -> Mdp:
    """Return a generated map of FrozenLake as arrays, without the cells in which an episode has ended.

    Args:
        task: Name of the map's task.
        size: Rows and columns; the start is in the top left corner, the goal in the bottom right one.
        success_rate: Probability that a step goes in the chosen direction.
        horizon: Number of steps after which an episode is truncated.
    """
    lake = generated_lake(size, 0.8, CORNERS, task)
    cells = [cell for cell, ends in enumerate(lake.terminal) if not ends]
    rows = {cell: row for row, cell in enumerate(cells)}
    count, outcomes = len(cells), 1 if success_rate == 1.0 else 3
    following = np.full((count, len(ACTIONS), outcomes), count)
    chance = np.zeros((count, len(ACTIONS), outcomes))
    rewards = np.zeros((count, len(ACTIONS), outcomes))
    for cell, row in rows.items():
        for action in range(len(ACTIONS)):
            distribution = lake.outcomes(cell, action, success_rate)
            for place, (after, probability) in enumerate(distribution.items()):
                following[row, action, place] = rows.get(after, count)
                chance[row, action, place] = probability
                rewards[row, action, place] = after == lake.goal
    return Mdp(
        following,
        chance,
        rewards,
        np.ones((count, len(ACTIONS)), dtype=bool),
        np.zeros((count, len(ACTIONS)), dtype=bool),
        np.array([rows[lake.start]]),
        np.zeros(count, dtype=np.int64),
        horizon,
        ACTIONS * count,
    )
