"""Arboretum: text worlds, players, trainers and an evaluation harness for language-model agents.

Importing the package registers every world with Gymnasium and loads nothing else:

    >>> import gymnasium as gym, arboretum
    >>> env = gym.make("TextSokoban-v0")
    >>> observation, info = env.reset(seed=7)
"""

__version__ = "0.1.0"

from .envs.registry import register_envs

register_envs()
