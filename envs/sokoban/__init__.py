"""Sokoban: push the boxes onto the targets.

Modules: `rules` (transitions), `generator` (levels), `solver` (optimal plans), `render` (observations),
`board_env` (the environment on any source of levels), `env` (the environment with generated levels) and
`level_files` (levels from files, for `envs.boxoban`).
"""

from .board_env import BoardEnv
from .env import BANDS, Sokoban

__all__ = ["BANDS", "BoardEnv", "Sokoban"]
