"""Arboretum: text environments, agents, trainers and an evaluation harness for language models.

Importing the package registers every environment with Gymnasium and loads nothing else:

    >>> import gymnasium as gym, arboretum
    >>> env = gym.make("TextSokoban-v0")
    >>> observation, info = env.reset(seed=7)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .envs.registry import register_envs

if TYPE_CHECKING:
    from .eval.api import evaluate  # noqa: F401
    from .trainers.train import train_policy as train  # noqa: F401

__version__ = "0.1.0"

register_envs()

_LAZY = {"evaluate": (".eval.api", "evaluate"), "train": (".trainers.train", "train_policy")}
"""Functions that are imported when they are first used: module and name, by attribute of the package."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(import_module(module, __name__), attribute)
