"""Sokoban: push the boxes onto the targets.

`rules` moves, `generator` makes levels, `solver` solves them, `render` shows them, `world` is the environment.
Levels from files are read by `level_files`, for `envs.boxoban`.
"""

from .env import BANDS, BoardEnv, Sokoban

__all__ = ["BANDS", "BoardEnv", "Sokoban"]
