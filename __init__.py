"""Arboretum: text environments, agents, trainers and an evaluation harness for language models.

Importing the package registers every environment with Gymnasium and loads nothing else:

    >>> import gymnasium as gym, arboretum
    >>> env = gym.make("TextSokoban-v0")
    >>> observation, info = env.reset(seed=7)
"""

from typing import TYPE_CHECKING

from .envs.lazy_names import lazy_names
from .envs.registry import register_envs

if TYPE_CHECKING:
    from .agents.play import play
    from .eval.api import evaluate
    from .trainers.commands.python_interface import train_policy as train
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".agents.play": "play",
            ".eval.api": "evaluate",
            ".trainers.commands.python_interface": "train:train_policy",
        },
    )

__all__ = ["evaluate", "play", "train"]
__version__ = "0.1.0"

register_envs()
