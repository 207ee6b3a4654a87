"""Penalties for the length of episodes, and their exclusion from the loss (NumPy; no torch)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....envs.errors import ConfigurationError
from ...data.rollouts import Rollouts
from ...data.segments import BoolArray, FloatArray, IntArray
from .settings import Overlong


def soft_overlong_penalty(
    lengths: IntArray | FloatArray, max_tokens: int, cache: int, *, floor: bool = True
) -> FloatArray:
    """Return DAPO's soft overlong penalty (arXiv:2503.14476, eq. 13).

    The penalty is 0 up to Lmax - Lc, falls linearly to -1 at Lmax, and is -1 beyond.

    Args:
        lengths: Sampled tokens of each episode, shape [E].
        max_tokens: Lmax.
        cache: Lc.
        floor: False continues the linear fall beyond Lmax, as in verl.

    Returns:
        Penalties ≤ 0, shape [E].
    """
    line = np.minimum((max_tokens - cache - np.asarray(lengths, dtype=np.float64)) / cache, 0.0)
    return np.maximum(line, -1.0) if floor else line


def apply_overlong_penalty(rollouts: Rollouts, overlong: Overlong) -> Rollouts:
    """Return the rollouts with the overlong penalty on each episode's last turn.

    Raises:
        ConfigurationError: The penalty is on, but has no limit.
    """
    if overlong.coef == 0.0:
        return rollouts
    if overlong.max_tokens is None:
        raise ConfigurationError("the overlong penalty needs the maximum episode length; set overlong.max_tokens.")
    penalties = soft_overlong_penalty(
        rollouts.episode_lengths, overlong.max_tokens, overlong.cache, floor=overlong.floor
    )
    return rollouts.add_episode_penalties(overlong.coef * penalties)


def tokens_in_loss(rollouts: Rollouts, overlong: Overlong) -> BoolArray:
    """Return the mask of the copies in the loss, [M]; `drop_truncated` excludes overlong episodes."""
    if not overlong.drop_truncated:
        return np.ones(len(rollouts.copies.action), dtype=bool)
    return ~rollouts.cut_off[rollouts.copies.episode]


def resolve_overlong(overlong: Overlong, limit: int | None) -> Overlong:
    """Return the settings with the run's limit where the recipe leaves it open.

    If the limit is not longer than the soft zone, the zone becomes the last fifth of the limit, its share in the
    paper.

    Args:
        overlong: Settings of the recipe.
        limit: Maximum number of sampled tokens of an episode in the run; None if it is unlimited.
    """
    if overlong.coef == 0 or overlong.max_tokens is not None or limit is None:
        return overlong
    cache = overlong.cache if overlong.cache < limit else max(1, limit // 5)
    return replace(overlong, max_tokens=limit, cache=cache)
