"""Blocksworld: a hand stacks and unstacks blocks on a table; PlanBench instances and generated tasks."""

from .env import Blocksworld

__all__ = ["Blocksworld"]
