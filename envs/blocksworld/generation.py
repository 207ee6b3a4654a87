"""Generated blocksworld tasks: random arrangements, three families, and identities that keep splits apart."""

from __future__ import annotations

import random
from collections.abc import Hashable
from functools import lru_cache
from math import comb, factorial

from ..errors import ConfigurationError
from ..seeding import stable_seed
from ..tasks import ANY, belongs
from .rules import TABLE, Arrangement, Goal, Problem, reached

FAMILIES = ("mixed", "stack", "unstack")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
MOST_BLOCKS = len(LETTERS)
_ATTEMPTS = 1000


def generate(family: str, blocks: int, task: str) -> Problem:
    """The problem of a generated task, the same everywhere.

    Args:
        family: one of `FAMILIES`.
        blocks: number of blocks, 3 … `MOST_BLOCKS`.
        task: `<split>/<index>`, a name of `GeneratedTasks`.

    Raises:
        ConfigurationError: the split has no task of this family and size (too few exist to share them out).
    """
    split = task.rpartition("/")[0]
    rng = random.Random(stable_seed("blocksworld", family, blocks, task))
    for _ in range(_ATTEMPTS):
        problem = _draw(family, blocks, rng)
        if reached(problem.goal, problem.init):
            continue
        if split == ANY or belongs(identity(family, problem), split):
            return problem
    raise ConfigurationError(f"split {split!r} has no {family} task of {blocks} blocks; use more blocks.")


def _draw(family: str, blocks: int, rng: random.Random) -> Problem:
    flat = (TABLE,) * blocks
    init = flat if family == "stack" else random_arrangement(blocks, rng)
    if family == "unstack":
        goal = Goal(table=tuple(range(blocks)))
    else:
        final = random_arrangement(blocks, rng)
        goal = Goal(on=tuple((block, support) for block, support in enumerate(final) if support != TABLE))
    return Problem(tuple(LETTERS[:blocks]), init, goal)


def random_arrangement(blocks: int, rng: random.Random) -> Arrangement:
    """A uniformly random arrangement with an empty hand.

    n labelled blocks stand in k towers in n!/k! · C(n-1, k-1) ways: draw k by this weight, then an order of the
    blocks and the places at which it is cut into towers.
    """
    weights = _tower_weights(blocks)
    pick = rng.randrange(sum(weights))
    towers = 0
    while pick >= 0:
        pick -= weights[towers]
        towers += 1
    order = list(range(blocks))
    rng.shuffle(order)
    starts = {0, *rng.sample(range(1, blocks), towers - 1)}
    state = [TABLE] * blocks
    for place in range(1, blocks):
        if place not in starts:
            state[order[place]] = order[place - 1]
    return tuple(state)


@lru_cache(maxsize=64)
def _tower_weights(blocks: int) -> tuple[int, ...]:
    return tuple(
        factorial(blocks) // factorial(towers) * comb(blocks - 1, towers - 1) for towers in range(1, blocks + 1)
    )


def identity(family: str, problem: Problem) -> Hashable:
    """What must not occur in two splits.

    For "mixed" tasks it is the problem up to renaming of blocks. Stack and unstack tasks are, up to renaming, no
    more than lists of tower heights (two of them for three blocks), so there the blocks' names count.
    """
    if family == "mixed":
        return family, canonical(problem)
    return family, problem.init, problem.goal


def canonical(problem: Problem) -> Hashable:
    """A value that two problems share exactly if renaming blocks turns one into the other.

    Being on a block, now or in the goal, links each block to at most one below and one above. Walking these
    links from any start visits a connected part in a fixed order, so the least description over its starts
    identifies the part, and the sorted parts identify the problem.
    """
    init, goal = problem.init, problem.goal
    blocks = range(len(init))
    wanted = dict(goal.on)
    links: list[dict[int, int]] = [
        {block: init[block] for block in blocks if init[block] >= 0},
        {init[block]: block for block in blocks if init[block] >= 0},
        wanted,
        {other: block for block, other in goal.on},
    ]
    table, clear = set(goal.table), set(goal.clear)

    def walk(start: int) -> tuple[Hashable, list[int]]:
        numbers = {start: 0}
        order = [start]
        description: list[tuple[int, ...]] = []
        for block in order:  # grows while it is walked
            row = [min(init[block], 0), int(block in table), int(block in clear)]
            for link in links:
                other = link.get(block, -1)
                if other >= 0 and other not in numbers:
                    numbers[other] = len(order)
                    order.append(other)
                row.append(numbers.get(other, -1))
            description.append(tuple(row))
        return tuple(description), order

    parts = []
    unseen = set(blocks)
    while unseen:
        first, members = walk(min(unseen))
        unseen.difference_update(members)
        parts.append(min(repr(walk(member)[0]) for member in members) if len(members) > 1 else repr(first))
    return goal.hand_empty, tuple(sorted(parts))
