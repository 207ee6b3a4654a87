"""FrozenLake: slippery ice with holes, on Gymnasium's dynamics."""

from .env import FrozenLake
from .values import optimal_success, random_success

__all__ = ["FrozenLake", "optimal_success", "random_success"]
