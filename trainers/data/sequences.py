"""Conversion of prompts and replies to rollouts: episodes of one turn, for scoring text that nobody played."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...envs.errors import ConfigurationError
from .rollouts import Rollouts
from .segments import IntArray


def from_sequences(prompts: Sequence[IntArray], replies: Sequence[IntArray]) -> Rollouts:
    """Return an episode for each pair of a prompt and a reply, whose tokens are the sampled ones, in order.

    Rewards are 0 and every episode is a group of its own; the log-probabilities of the sampler are unknown, and 0.

    Args:
        prompts: Token ids of each prompt, none of them empty, E arrays.
        replies: Token ids of each reply, E arrays.

    Raises:
        ConfigurationError: Prompts and replies are not equally many, or a prompt is empty.
    """
    if len(prompts) != len(replies):
        raise ConfigurationError(
            f"{len(prompts)} prompts came with {len(replies)} replies; give one reply for each prompt."
        )
    empty = [number for number, prompt in enumerate(prompts, 1) if len(prompt) == 0]
    if empty:
        raise ConfigurationError(
            f"prompt {empty[0]} has no tokens, so nothing precedes its reply; begin it with a token."
        )
    count = len(prompts)
    lengths = [len(reply) for reply in replies]
    numbers, zeros, no = np.arange(count), np.zeros(count), np.zeros(count, dtype=bool)
    offsets = [len(prompt) + np.arange(length) for prompt, length in zip(prompts, lengths, strict=True)]
    return Rollouts(
        group=numbers,
        tree=numbers,
        success=no,
        truncated=no,
        cut_off=no,
        episode_leaf=numbers,
        turn_parent=np.full(count, -1, dtype=np.int64),
        turn_restart=no,
        turn_reward=zeros,
        turn_penalty=zeros,
        turn_invalid=no,
        turn_observation=("",) * count,
        turn_actions=((),) * count,
        turn_state=(None,) * count,
        turn_next_state=(None,) * count,
        turn_effects=(None,) * count,
        turn_choices=(None,) * count,
        turn_tokens=tuple(
            np.concatenate([prompt, reply]).astype(np.int64)
            for prompt, reply in zip(prompts, replies, strict=True)
        ),
        action_turn=np.repeat(numbers, lengths),
        action_offset=np.concatenate([*offsets, np.zeros(0, dtype=np.int64)]),
        logprobs=np.zeros(sum(lengths)),
        action_penalty=np.zeros(sum(lengths)),
    )
