"""Start of a recorded episode in its environment: the same task, the same seed, the same random events."""

from __future__ import annotations

from typing import Any

from ..envs.core import Info, TextEnv


def reset_as_recorded(env: TextEnv[Any], task: str, seed: int, chance_seed: int | None) -> tuple[str, Info]:
    """Reset an environment to the start of an episode, so that its actions have the recorded effects.

    Args:
        env: Environment with the arguments with which the episode was played.
        task: Name of the task.
        seed: Seed with which the environment was reset; see `execution.trial_seed`.
        chance_seed: See `Episode.chance_seed`.

    Raises:
        ConfigurationError: The environment has no such task.
    """
    observation, info = env.reset(seed=seed, options={"task": task})
    if chance_seed is not None:
        env.restore(env.snapshot(), chance_seed)
    return observation, info
