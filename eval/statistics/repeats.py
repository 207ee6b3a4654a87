"""Repeats of a task: pass@k, pass^k, and the share of tasks whose outcome changes from repeat to repeat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .crossed import crossed_rate
from .intervals import Interval, Tally, tally, wilson


def pass_at_k(n: int, successes: int, k: int) -> float:
    """Return the unbiased estimate of the probability that one of k episodes of a task succeeds.

    It is 1 - C(n - c, k) / C(n, k) with c successes among n episodes (Chen et al., arXiv:2107.03374, eq. 1).

    Args:
        n: Episodes of the task, at least k.
        successes: Successful ones among them.
        k: Number of attempts.

    Raises:
        ValueError: There are fewer episodes than attempts.
    """
    _check("pass@", n, k)
    return 1.0 - math.comb(n - successes, k) / math.comb(n, k)


def pass_all_k(n: int, successes: int, k: int) -> float:
    """Return the unbiased estimate of the probability that all of k episodes of a task succeed, pass^k.

    It is C(c, k) / C(n, k) with c successes among n episodes (Yao et al., arXiv:2406.12045, section 3).

    Args:
        n: Episodes of the task, at least k.
        successes: Successful ones among them.
        k: Number of attempts.

    Raises:
        ValueError: There are fewer episodes than attempts.
    """
    _check("pass^", n, k)
    return math.comb(successes, k) / math.comb(n, k)


def _check(name: str, n: int, k: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"{name}{k} needs at least {max(k, 1)} episodes per task, and there are {n}.")


class Repeats(NamedTuple):
    """Statistics of tasks with several episodes each, with 95 % intervals over tasks.

    Attributes:
        pass_at_k: Mean probability that one of k episodes of a task succeeds, by k.
        pass_all_k: Mean probability that all of k episodes of a task succeed (pass^k), by k.
        flips: Share of tasks that have both solved and unsolved episodes, among those with two or more.
    """

    pass_at_k: dict[int, Interval]
    pass_all_k: dict[int, Interval]
    flips: Interval


def summarize_repeats(groups: Sequence[Sequence[bool]]) -> Repeats | None:
    """Return the statistics of repeats; None if no task has more than one episode.

    The numbers of attempts k are the powers of 2 from 2 on, and the largest number of episodes of a task. Tasks
    with fewer than k complete episodes are left out of the statistics for that k.

    Args:
        groups: Outcomes of the episodes of each task.
    """
    return tallied_repeats(tally(groups))


def tallied_repeats(tasks: Tally) -> Repeats | None:
    """Return the statistics of repeats as `summarize_repeats` does, from the tally of the tasks."""
    most = max((n for n, _ in tasks), default=0)
    if most < 2:
        return None
    at, every = {}, {}
    for k in sorted({2**power for power in range(1, most.bit_length()) if 2**power <= most} | {most}):
        # In one order, so that rounding does not depend on that of the tasks.
        enough = sorted((n, c) for n, c in tasks if n >= k)
        times = [tasks[one] for one in enough]
        at[k] = crossed_rate([np.repeat([pass_at_k(n, c, k) for n, c in enough], times)])
        every[k] = crossed_rate([np.repeat([pass_all_k(n, c, k) for n, c in enough], times)])
    several = sum(m for (n, _), m in tasks.items() if n > 1)
    return Repeats(at, every, wilson(sum(m for (n, c), m in tasks.items() if 0 < c < n), several))
