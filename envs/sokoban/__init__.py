"""Sokoban: push the boxes onto the targets.

Modules: `rules` (transitions), `generator` (levels), `solver` (optimal plans), `render` (observations), `env` (the
environment) and `level_files` (levels from files, for `envs.boxoban`).
"""

from .env import BANDS, BoardEnv, Sokoban

__all__ = ["BANDS", "BoardEnv", "Sokoban"]
