"""What training takes off an episode's reward for its length (NumPy; no torch)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....envs.errors import ConfigurationError
from ...data.rollouts import Rollouts
from ...data.segments import BoolArray, FloatArray, IntArray
from .settings import Overlong


def soft_overlong(
    lengths: IntArray | FloatArray, max_tokens: int, cache: int, *, floor: bool = True
) -> FloatArray:
    """DAPO's soft overlong punishment (arXiv:2503.14476, eq. 13).

    0 up to Lmax - Lc, then falling linearly to -1 at Lmax, and -1 beyond.

    Args:
        lengths: sampled tokens of each episode, shape [E].
        max_tokens: Lmax.
        cache: Lc.
        floor: False lets the line fall on beyond Lmax, as verl does.

    Returns:
        Penalties ≤ 0, shape [E].
    """
    line = np.minimum((max_tokens - cache - np.asarray(lengths, dtype=np.float64)) / cache, 0.0)
    return np.maximum(line, -1.0) if floor else line


def apply_overlong_penalty(rollouts: Rollouts, overlong: Overlong) -> Rollouts:
    """The rollouts with the overlong penalty on each episode's last turn."""
    if overlong.coef == 0.0:
        return rollouts
    if overlong.max_tokens is None:
        raise ConfigurationError("the overlong penalty needs an episode's limit: set overlong.max_tokens.")
    penalties = soft_overlong(rollouts.episode_lengths, overlong.max_tokens, overlong.cache, floor=overlong.floor)
    return rollouts.add_episode_penalties(overlong.coef * penalties)


def tokens_in_loss(rollouts: Rollouts, overlong: Overlong) -> BoolArray:
    """Which sampled tokens enter the loss, [N]: with `drop_truncated` not those of episodes that a limit cut."""
    if not overlong.drop_truncated:
        return np.ones(rollouts.actions, dtype=bool)
    return ~rollouts.truncated[rollouts.action_episode]


def resolve_overlong(overlong: Overlong, limit: int | None) -> Overlong:
    """With the run's own limit where the recipe names none; a soft zone too long for it shrinks to its last fifth,
    the share that it has in the paper."""
    if overlong.coef == 0 or overlong.max_tokens is not None or limit is None:
        return overlong
    cache = overlong.cache if overlong.cache < limit else max(1, limit // 5)
    return replace(overlong, max_tokens=limit, cache=cache)
