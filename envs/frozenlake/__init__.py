"""FrozenLake: slippery ice with holes, with the dynamics of Gymnasium's `FrozenLake-v1`."""

from .env import FrozenLake
from .values import optimal_success, random_success

__all__ = ["FrozenLake", "optimal_success", "random_success"]
