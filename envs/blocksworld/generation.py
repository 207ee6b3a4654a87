"""Generator of blocksworld tasks: random arrangements, three families, and identities that separate the splits."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator
from functools import lru_cache
from math import comb, factorial

from ..errors import ConfigurationError
from ..seeding import stable_seed
from ..tasks import ANY, belongs
from .rules import TABLE, Arrangement, Goal, Problem, reached

FAMILIES = ("mixed", "stack", "unstack")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
MAX_BLOCKS = len(LETTERS)
_MAX_DRAWS = 1000


def generate(family: str, blocks: int, task: str) -> Problem:
    """Generate the problem of a task, the same in every process.

    Args:
        family: One of `FAMILIES`.
        blocks: Number of blocks, 3 to `MAX_BLOCKS`.
        task: Task name `<split>/<index>`, as in `GeneratedTasks`.

    Raises:
        ConfigurationError: So few tasks of this family and size exist that none belongs to the split.
    """
    split = task.rpartition("/")[0]
    rng = random.Random(stable_seed("blocksworld", family, blocks, task))
    for _ in range(_MAX_DRAWS):
        problem = _draw_problem(family, blocks, rng)
        if reached(problem.goal, problem.init):
            continue
        if split == ANY or belongs(identity(family, problem), split):
            return problem
    raise ConfigurationError(f"split {split!r} has no {family} task of {blocks} blocks; use more blocks.")


def _draw_problem(family: str, blocks: int, rng: random.Random) -> Problem:
    flat = (TABLE,) * blocks
    init = flat if family == "stack" else random_arrangement(blocks, rng)
    if family == "unstack":
        goal = Goal(table=tuple(range(blocks)))
    else:
        final = random_arrangement(blocks, rng)
        goal = Goal(on=tuple((block, support) for block, support in enumerate(final) if support != TABLE))
    return Problem(tuple(LETTERS[:blocks]), init, goal)


def random_arrangement(blocks: int, rng: random.Random) -> Arrangement:
    """Draw an arrangement with an empty hand, uniformly at random.

    n labeled blocks form k towers in n!/k! · C(n-1, k-1) ways. The function draws k with this weight, then an
    order of the blocks and the positions at which the order is cut into towers.
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
    """Return the part of a problem that no two splits may share.

    For "mixed" it is the problem up to renaming of the blocks. Up to renaming, "stack" and "unstack" problems are
    only lists of tower heights (two of them for three blocks), so their identity includes the names.
    """
    if family == "mixed":
        return family, canonical_form(problem)
    return family, problem.init, problem.goal


def canonical_form(problem: Problem) -> Hashable:
    """Return a value that two problems share exactly if a renaming of the blocks maps one to the other.

    The "on" facts of the initial arrangement and those of the goal each link a block to at most one below it and
    one above it. A traversal of these links visits a connected component in an order that depends only on its
    start, so the least description over all starts identifies the component, and the sorted descriptions identify
    the problem.
    """
    init, goal = problem.init, problem.goal
    below, above, wanted_below, wanted_above = ([-1] * len(init) for _ in range(4))
    for block, support in enumerate(init):
        if support >= 0:
            below[block], above[support] = support, block
    for block, support in goal.on:
        wanted_below[block], wanted_above[support] = support, block
    links = list(zip(below, above, wanted_below, wanted_above, strict=True))
    table, clear = set(goal.table), set(goal.clear)
    features = [(min(support, 0), int(b in table), int(b in clear)) for b, support in enumerate(init)]

    def traverse(start: int, order: list[int]) -> Iterator[str]:
        """Yield a row for each block of a component, and collect the blocks in `order`."""
        numbers = {-1: -1, start: 0}
        order.append(start)
        for block in order:  # grows during the iteration
            row = [*features[block]]
            for other in links[block]:
                if other not in numbers:
                    numbers[other] = len(order)
                    order.append(other)
                row.append(numbers[other])
            yield repr(tuple(row))

    components = []
    unseen = set(range(len(init)))
    while unseen:
        members: list[int] = []
        rows = list(traverse(min(unseen), members))
        unseen.difference_update(members)
        if len(members) > 1:
            rows = _least([traverse(member, []) for member in members], len(members))
        components.append(f"({', '.join(rows)}{',' * (len(rows) == 1)})")
    return goal.hand_empty, tuple(sorted(components))


def _least(descriptions: list[Iterator[str]], rows: int) -> list[str]:
    """Return the least of several descriptions, of which only the first rows are made where these differ."""
    least = []
    for _ in range(rows):
        current = [next(description) for description in descriptions]
        least.append(min(current))
        descriptions = [one for one, row in zip(descriptions, current, strict=True) if row == least[-1]]
    return least
