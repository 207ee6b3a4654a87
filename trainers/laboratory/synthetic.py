"""Synthetic tasks of the laboratory: combination locks and layered graphs, both of fixed length."""

from __future__ import annotations

import numpy as np

from ..data.segments import FloatArray, IntArray
from .mdp import Mdp

LOCK_ACTIONS = 4
GRAPH_ACTIONS = 4


def make_lock(depth: int, good: int, rng: np.random.Generator) -> Mdp:
    """Return a lock: `good` of four actions lead on at every level, the others to a lost track of equal length.

    Row d is level d of the track to success, and row depth + d - 1 level d of the lost track.

    Args:
        depth: Number of levels, which is the length of every episode.
        good: Number of actions that lead on.
        rng: Generator of the good actions.
    """
    rows = 2 * depth - 1
    following = np.full((rows, LOCK_ACTIONS, 1), rows)
    rewards = np.zeros((rows, LOCK_ACTIONS, 1))
    for level in range(depth):
        right = rng.permutation(LOCK_ACTIONS)[:good]
        if level == depth - 1:
            rewards[level, right] = 1.0
        else:
            following[level] = depth + level
            following[level, right] = level + 1
            if level:
                following[depth + level - 1] = depth + level
    return _synthetic(following, np.ones_like(rewards), rewards, depth)


def make_graph(depth: int, width: int, slip: float, rng: np.random.Generator) -> Mdp:
    """Return a graph of layers whose edges are random; one node of the last layer is the goal.

    Row 0 is the start; row 1 + (d - 1) · width + i is node i of layer d.

    Args:
        depth: Number of steps to the last layer, which is the length of every episode.
        width: Nodes of every layer.
        slip: Probability that a random one of the four actions replaces the chosen one.
        rng: Generator of the edges, which are drawn again until the goal can be reached.
    """
    rows = 1 + (depth - 1) * width
    while True:
        targets = rng.integers(0, width, (rows, GRAPH_ACTIONS))
        reached = {0}
        for layer in range(depth):
            first = 1 + (layer - 1) * width if layer else 0
            reached = {int(node) for origin in reached for node in targets[first + origin]}
        goal = int(rng.integers(width))
        if goal in reached:
            break
    layers = np.r_[0, np.repeat(np.arange(1, depth), width)]
    ends = layers == depth - 1
    after = np.where(ends[:, None], rows, 1 + layers[:, None] * width + targets)
    wins = ends[:, None] & (targets == goal)
    if not slip:
        chance = np.ones((rows, GRAPH_ACTIONS, 1))
        return _synthetic(after[:, :, None], chance, wins[:, :, None].astype(np.float64), depth)
    # Outcome k is that of action k, which slipping draws uniformly.
    chance = np.full((rows, GRAPH_ACTIONS, GRAPH_ACTIONS), slip / GRAPH_ACTIONS)
    chance += (1.0 - slip) * np.eye(GRAPH_ACTIONS)
    following = np.repeat(after[:, None, :], GRAPH_ACTIONS, axis=1)
    rewards = np.repeat(wins[:, None, :], GRAPH_ACTIONS, axis=1).astype(np.float64)
    return _synthetic(following, chance, rewards, depth)


def _synthetic(following: IntArray, chance: FloatArray, rewards: FloatArray, horizon: int) -> Mdp:
    rows, actions = following.shape[:2]
    return Mdp(
        following,
        chance,
        rewards,
        np.ones((rows, actions), dtype=bool),
        np.zeros((rows, actions), dtype=bool),
        np.zeros(1, dtype=np.int64),
        np.zeros(rows, dtype=np.int64),
        horizon,
        tuple(str(action) for _ in range(rows) for action in range(actions)),
    )
