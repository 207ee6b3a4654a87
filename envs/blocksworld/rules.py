"""Four-operator blocksworld as pure functions on tuples of integers.

Blocks are numbered from 0. An arrangement maps each block to its support: it is small, hashable and unique for
every situation.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Arrangement = tuple[int, ...]
"""Support of each block: the number of another block, `TABLE` or `HAND`."""

TABLE = -1
HAND = -2
NOTHING = -3

PICK_UP = "pick-up"
PUT_DOWN = "put-down"
STACK = "stack"
UNSTACK = "unstack"


class Action(NamedTuple):
    """Operator applied to blocks; `other` is `NOTHING` for pick-up and put-down."""

    verb: str
    block: int
    other: int = NOTHING


class Fact(NamedTuple):
    """Atom; `predicate` is "clear", "handempty", "holding", "on" or "ontable"."""

    predicate: str
    block: int = NOTHING
    other: int = NOTHING


class Goal(NamedTuple):
    """Conjunction of atoms to reach.

    Attributes:
        on: Pairs (block, block that must support it), sorted.
        table: Blocks that must be on the table, sorted.
        clear: Blocks that must be clear (neither covered nor held), sorted.
        hand_empty: True if the hand must be empty.
    """

    on: tuple[tuple[int, int], ...] = ()
    table: tuple[int, ...] = ()
    clear: tuple[int, ...] = ()
    hand_empty: bool = False

    def facts(self) -> tuple[Fact, ...]:
        """Return the atoms, ordered by predicate and blocks."""
        return (
            *(Fact("clear", block) for block in self.clear),
            *((Fact("handempty"),) if self.hand_empty else ()),
            *(Fact("on", block, other) for block, other in self.on),
            *(Fact("ontable", block) for block in self.table),
        )


class Problem(NamedTuple):
    """Planning problem: PDDL names of the blocks, initial arrangement and goal."""

    names: tuple[str, ...]
    init: Arrangement
    goal: Goal


def is_arrangement(supports: tuple[int, ...], count: int) -> bool:
    """Return True if the numbers describe a situation of `count` blocks.

    A block supports one other at most and none while it is held, one block at most is held, and every other block
    stands on the table or on a tower that does.
    """
    if len(supports) != count or not all(HAND <= support < count for support in supports):
        return False
    carried = [support for support in supports if support != TABLE]
    if len(set(carried)) != len(carried) or any(support >= 0 and supports[support] == HAND for support in carried):
        return False
    for block in range(count):
        height = 0
        while block >= 0:
            block = supports[block]
            height += 1
            if height > count:
                return False
    return True


def held(state: Arrangement) -> int:
    """Return the block in the hand, or `NOTHING`."""
    return state.index(HAND) if HAND in state else NOTHING


def clear_blocks(state: Arrangement) -> list[int]:
    """Return the blocks that are neither covered nor held, in ascending order."""
    covered = {*state}
    if HAND in covered:
        covered.add(state.index(HAND))
    return [block for block in range(len(state)) if block not in covered]


def clear_after(action: Action, clear: Sequence[int]) -> list[int]:
    """Return the clear blocks after a legal action, in ascending order, given those before it."""
    verb, block, other = action
    after = list(clear)
    if verb == PICK_UP:
        after.remove(block)
    elif verb == PUT_DOWN:
        insort(after, block)
    elif verb == STACK:
        after.remove(other)
        insort(after, block)
    else:
        after.remove(block)
        insort(after, other)
    return after


def facts(state: Arrangement) -> list[Fact]:
    """Return all atoms that hold, ordered by predicate and blocks."""
    blocks = range(len(state))
    holding = held(state)
    return [
        *(Fact("clear", block) for block in clear_blocks(state)),
        Fact("handempty") if holding == NOTHING else Fact("holding", holding),
        *(Fact("on", b, state[b]) for b in blocks if state[b] >= 0),
        *(Fact("ontable", b) for b in blocks if state[b] == TABLE),
    ]


def holds(fact: Fact, state: Arrangement) -> bool:
    """Return True if an atom holds."""
    predicate, block, other = fact
    if predicate == "on":
        return state[block] == other
    if predicate == "ontable":
        return state[block] == TABLE
    if predicate == "clear":
        return block not in state and state[block] != HAND
    if predicate == "holding":
        return state[block] == HAND
    return HAND not in state


def reached(goal: Goal, state: Arrangement) -> bool:
    """Return True if every atom of the goal holds."""
    on, table, clear, hand_empty = goal
    for block, other in on:
        if state[block] != other:
            return False
    for block in table:
        if state[block] != TABLE:
            return False
    for block in clear:
        if block in state or state[block] == HAND:
            return False
    return not (hand_empty and HAND in state)


def preconditions(action: Action) -> tuple[Fact, ...]:
    """Return the preconditions of an action, in the order in which they are checked."""
    verb, block, other = action
    if verb == PICK_UP:
        return Fact("handempty"), Fact("ontable", block), Fact("clear", block)
    if verb == PUT_DOWN:
        return (Fact("holding", block),)
    if verb == STACK:
        return Fact("holding", block), Fact("clear", other)
    return Fact("handempty"), Fact("on", block, other), Fact("clear", block)


def unmet(action: Action, state: Arrangement) -> Fact | None:
    """Return the first precondition that does not hold, or None if the action is legal."""
    return next((fact for fact in preconditions(action) if not holds(fact, state)), None)


def successor(action: Action, state: Arrangement) -> Arrangement:
    """Return the arrangement after a legal action."""
    verb, block, other = action
    support = TABLE if verb == PUT_DOWN else other if verb == STACK else HAND
    after = list(state)
    after[block] = support
    return tuple(after)


def legal_actions(state: Arrangement) -> Iterator[Action]:
    """Yield every legal action, ordered by blocks; there is always at least one."""
    holding = held(state)
    if holding != NOTHING:
        yield Action(PUT_DOWN, holding)
    for block in clear_blocks(state):
        if holding != NOTHING:
            yield Action(STACK, holding, block)
        elif state[block] == TABLE:
            yield Action(PICK_UP, block)
        else:
            yield Action(UNSTACK, block, state[block])
