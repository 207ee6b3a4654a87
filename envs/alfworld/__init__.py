"""ALFWorld: household tasks in text, from the original game files or generated homes."""

from .env import ALFWorld

__all__ = ["ALFWorld"]
