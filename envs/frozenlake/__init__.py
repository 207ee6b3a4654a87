"""FrozenLake: slippery ice with holes, on Gymnasium's dynamics."""

from .values import optimal_success, random_success
from .world import FrozenLake

__all__ = ["FrozenLake", "optimal_success", "random_success"]
