"""ALFWorld: text-based household tasks, from the original game files or from generated homes."""

from .env import ALFWorld

__all__ = ["ALFWorld"]
