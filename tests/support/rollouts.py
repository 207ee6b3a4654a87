"""Rollouts made by hand."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.data.segments import factorize


def chain_rollouts(
    rewards: Sequence[Sequence[float]],
    groups: Sequence[Hashable],
    *,
    tokens: int = 2,
    states: Sequence[Sequence[Hashable]] | None = None,
    invalid: Sequence[Sequence[bool]] | None = None,
    **fields: Any,
) -> Rollouts:
    """Return unbranched episodes with these rewards of turns; every turn adds one prompt token and sampled ones.

    Args:
        rewards: Reward of each turn of each episode.
        groups: Key of each episode's group.
        tokens: Sampled tokens of each turn.
        states: State key before each turn; also the observation, as text.
        invalid: True for invalid turns.
        fields: Replaced attributes of the rollouts.
    """
    lengths = [len(episode) for episode in rewards]
    count, ends = sum(lengths), np.cumsum(lengths)
    first = np.isin(np.arange(count), ends - lengths)
    keys = tuple(key for episode in states for key in episode) if states else (None,) * count
    values: dict[str, Any] = {
        "group": factorize(groups),
        "tree": np.arange(len(rewards)),
        "success": np.zeros(len(rewards), dtype=bool),
        "truncated": np.zeros(len(rewards), dtype=bool),
        "cut_off": np.zeros(len(rewards), dtype=bool),
        "episode_leaf": np.where(lengths, ends - 1, -1),
        "turn_parent": np.where(first, -1, np.arange(count) - 1),
        "turn_restart": np.zeros(count, dtype=bool),
        "turn_reward": np.array([reward for episode in rewards for reward in episode], dtype=np.float64),
        "turn_penalty": np.zeros(count),
        "turn_invalid": np.array([i for e in invalid for i in e]) if invalid else np.zeros(count, dtype=bool),
        "turn_observation": tuple(str(key) for key in keys),
        "turn_actions": ((),) * count,
        "turn_state": keys,
        "turn_next_state": (None,) * count,
        "turn_effects": (None,) * count,
        "turn_choices": (None,) * count,
        "turn_tokens": tuple(np.zeros(1 + tokens, dtype=np.int64) for _ in range(count)),
        "action_turn": np.repeat(np.arange(count), tokens),
        "action_offset": np.tile(1 + np.arange(tokens), count),
        "logprobs": np.zeros(count * tokens),
        "action_penalty": np.zeros(count * tokens),
    }
    return Rollouts(**(values | fields))


def walk_rollouts(
    walks: Sequence[Sequence[tuple[str, Hashable]]],
    returns: Sequence[float],
    groups: Sequence[Hashable] | None = None,
    **fields: Any,
) -> Rollouts:
    """Return unbranched episodes of actions with the state that each leads to; only ends are rewarded.

    The observation of a state is its text, and the tokens of a turn name the state before it, so that equal states
    have equal prompts; no action has an effect.

    Args:
        walks: Action and state after it, of each turn of each episode. All begin in the state "start".
        returns: Return of each episode.
        groups: Key of each episode's group; None for one group.
        fields: Replaced attributes of the rollouts.
    """
    steps = [step for walk in walks for step in walk]
    before = [state for walk in walks for state in ["start", *(state for _, state in walk)][: len(walk)]]
    names = {state: number for number, state in enumerate(sorted({"start", *map(str, before)}))}
    values: dict[str, Any] = {
        "turn_observation": tuple(str(state) for state in before),
        "turn_actions": tuple((action,) for action, _ in steps),
        "turn_state": tuple(before),
        "turn_next_state": tuple(state for _, state in steps),
        "turn_effects": ((),) * len(steps),
        "turn_restart": np.ones(len(steps), dtype=bool),
        "turn_tokens": tuple(np.array([names[str(state)], 1000, 1000]) for state in before),
    }
    rewards = [
        [0.0] * (len(walk) - 1) + [value] if walk else [] for walk, value in zip(walks, returns, strict=True)
    ]
    return chain_rollouts(rewards, list(groups or [0] * len(walks)), **(values | fields))
