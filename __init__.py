"""Arboretum: text environments, agents, trainers and an evaluation harness for language models.

Importing the package registers every environment with Gymnasium and loads nothing else:

    >>> import gymnasium as gym, arboretum
    >>> env = gym.make("TextSokoban-v0")
    >>> observation, info = env.reset(seed=7)
"""

__version__ = "0.1.0"

from .envs.registry import register_envs

register_envs()
