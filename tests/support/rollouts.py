"""Small rollouts, written as lists of rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.data.segments import factorize


def rollouts(
    rewards: list[list[float]],
    groups: Sequence[Any],
    *,
    tokens: int = 2,
    anchors: list[list[Any]] | None = None,
    invalid: list[list[bool]] | None = None,
) -> Rollouts:
    """Return episodes with these rewards of turns and `tokens` sampled tokens per turn, one row per episode."""
    turns = [reward for episode in rewards for reward in episode]
    turn_episode = np.repeat(np.arange(len(rewards)), [len(episode) for episode in rewards])
    action_turn = np.repeat(np.arange(len(turns)), tokens)
    count = len(action_turn)
    row = turn_episode[action_turn]
    return Rollouts(
        group=factorize(groups),
        success=np.zeros(len(rewards), dtype=bool),
        truncated=np.zeros(len(rewards), dtype=bool),
        cut_off=np.zeros(len(rewards), dtype=bool),
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
