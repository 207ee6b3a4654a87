"""Blocksworld: a hand, a table and blocks to pile up; PlanBench's instances and generated ones."""

from .env import Blocksworld

__all__ = ["Blocksworld"]
