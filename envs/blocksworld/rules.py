"""The four-operator blocksworld as pure functions on tuples of integers.

Blocks are numbered 0 … n-1. An arrangement says for each block what it rests on, so it is small, hashable and
has exactly one form for every situation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

Arrangement = tuple[int, ...]
"""What each block rests on: another block's number, `TABLE`, or `HAND`."""

TABLE = -1
HAND = -2
NOTHING = -3

PICK_UP = "pick-up"
PUT_DOWN = "put-down"
STACK = "stack"
UNSTACK = "unstack"
ARITY = {PICK_UP: 1, PUT_DOWN: 1, STACK: 2, UNSTACK: 2}
"""How many blocks each operator names."""


class Action(NamedTuple):
    """One operator with its blocks; `other` is `NOTHING` for pick-up and put-down."""

    verb: str
    block: int
    other: int = NOTHING


class Fact(NamedTuple):
    """One atom: `predicate` is "clear", "handempty", "holding", "on" or "ontable"."""

    predicate: str
    block: int = NOTHING
    other: int = NOTHING


class Goal(NamedTuple):
    """A conjunction of atoms that must hold at the end.

    Attributes:
        on: pairs (block, the block it must rest on), sorted.
        table: blocks that must stand on the table, sorted.
        clear: blocks that must be clear (nothing on them, and not held), sorted.
        hand_empty: whether the hand must be empty.
    """

    on: tuple[tuple[int, int], ...] = ()
    table: tuple[int, ...] = ()
    clear: tuple[int, ...] = ()
    hand_empty: bool = False

    def facts(self) -> tuple[Fact, ...]:
        """The atoms, ordered by predicate and blocks."""
        return (
            *(Fact("clear", block) for block in self.clear),
            *((Fact("handempty"),) if self.hand_empty else ()),
            *(Fact("on", block, other) for block, other in self.on),
            *(Fact("ontable", block) for block in self.table),
        )


class Problem(NamedTuple):
    """A task: the blocks' names (as in PDDL), the initial arrangement and the goal."""

    names: tuple[str, ...]
    init: Arrangement
    goal: Goal


def held(state: Arrangement) -> int:
    """The block in the hand, or `NOTHING`."""
    return state.index(HAND) if HAND in state else NOTHING


def facts(state: Arrangement) -> list[Fact]:
    """All atoms that hold, ordered by predicate and blocks."""
    covered = set(state)
    blocks = range(len(state))
    holding = held(state)
    return [
        *(Fact("clear", b) for b in blocks if b not in covered and b != holding),
        Fact("handempty") if holding == NOTHING else Fact("holding", holding),
        *(Fact("on", b, state[b]) for b in blocks if state[b] >= 0),
        *(Fact("ontable", b) for b in blocks if state[b] == TABLE),
    ]


def holds(fact: Fact, state: Arrangement) -> bool:
    """Whether an atom holds."""
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
    """Whether every atom of the goal holds."""
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
    """What must hold for an action, in the order in which a refusal names them."""
    verb, block, other = action
    if verb == PICK_UP:
        return Fact("handempty"), Fact("ontable", block), Fact("clear", block)
    if verb == PUT_DOWN:
        return (Fact("holding", block),)
    if verb == STACK:
        return Fact("holding", block), Fact("clear", other)
    return Fact("handempty"), Fact("on", block, other), Fact("clear", block)


def unmet(action: Action, state: Arrangement) -> Fact | None:
    """The first precondition that does not hold, or None where the action is legal."""
    return next((fact for fact in preconditions(action) if not holds(fact, state)), None)


def successor(action: Action, state: Arrangement) -> Arrangement:
    """The arrangement after a legal action."""
    verb, block, other = action
    support = TABLE if verb == PUT_DOWN else other if verb == STACK else HAND
    return (*state[:block], support, *state[block + 1 :])


def legal_actions(state: Arrangement) -> Iterator[Action]:
    """Every legal action, ordered by blocks; there is always one."""
    holding = held(state)
    covered = set(state)
    if holding != NOTHING:
        yield Action(PUT_DOWN, holding)
    for block, support in enumerate(state):
        if block in covered or block == holding:
            continue
        if holding != NOTHING:
            yield Action(STACK, holding, block)
        elif support == TABLE:
            yield Action(PICK_UP, block)
        else:
            yield Action(UNSTACK, block, support)
