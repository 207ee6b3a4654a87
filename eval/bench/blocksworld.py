"""Benchmark of Blocksworld and the bandit: steps, forks, and the optimal planner on published problem sizes."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator

from ...envs.blocksworld.generation import generate
from ...envs.blocksworld.solver import optimal_plan
from .row import Row, paired
from .stepping import env_rows


def measure(peers: bool = False, rounds: int = 5) -> Iterator[Row]:
    """Yield the rows of Blocksworld and the bandit.

    Args:
        peers: Unused; RAGEN's bandit is not a package of its own, and PlanBench has no environment.
        rounds: Number of paired measurements; medians are reported.
    """
    del peers
    yield from env_rows("TextBandit-v0", rounds=rounds)
    yield from env_rows("TextBlocksworld-v0", rounds=rounds)
    yield from env_rows("TextBlocksworld-v0", rounds=rounds, label="(15 blocks)", blocks=15)
    sizes = (5, 15)
    for size, seconds in zip(sizes, paired([_make_planning(size) for size in sizes], rounds), strict=True):
        yield Row(f"optimal plan, {size} blocks", statistics.median(seconds) * 1e3, "ms", 5.0, False)


def _make_planning(blocks: int) -> Callable[[], int]:
    """Return a workload that plans 100 generated problems."""
    problems = [generate("mixed", blocks, f"test/{index}") for index in range(100)]
    random.Random(0).shuffle(problems)

    def run() -> int:
        for problem in problems:
            optimal_plan(problem.init, problem.goal)
        return len(problems)

    return run
