"""A game as the engine plays it: numbered things, bit sets of numbers, and the state as eleven integers.

Objects, receptacles and locations are numbered in the order of their sorted ids, which is the order in which the
original lists them; a set of objects is an integer whose bit `o` stands for object `o`. A relation between
receptacles (or locations) and objects is one integer too, receptacle by receptacle: bit `r * width + o`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from .domain import Rules

Flag: TypeAlias = Literal["clean", "hot", "cool", "sliced"]
TaskType: TypeAlias = Literal["Pick", "Look", "Clean", "Heat", "Cool", "Pick2"]
"""The six task types by the short names of the literature's tables."""

TASK_TYPES: dict[str, TaskType] = {
    "pick_and_place_simple": "Pick",
    "look_at_obj_in_light": "Look",
    "pick_clean_then_place_in_recep": "Clean",
    "pick_heat_then_place_in_recep": "Heat",
    "pick_cool_then_place_in_recep": "Cool",
    "pick_two_obj_and_place": "Pick2",
}
"""Task types by the names that ALFWorld's folders start with."""

NOTHING = -1
"""The object held by empty hands."""


class State(NamedTuple):
    """All that can change in a game. A value: states are equal exactly when the same things are true.

    Attributes:
        location: where the agent is.
        held: the object in its hands, or NOTHING.
        inside: relation of receptacles and the objects in them. An object may be in two receptacles.
        near: relation of locations and objects there (ALFWorld's objectAtLocation, which `look` and `slice` read).
        taken: relation of receptacles and the objects last taken out of them, which `look` reads.
        opened: the set of open receptacles.
        clean, hot, cool, toggled, sliced: sets of objects.
    """

    location: int
    held: int
    inside: int
    near: int
    taken: int
    opened: int
    clean: int
    hot: int
    cool: int
    toggled: int
    sliced: int


class Goal(NamedTuple):
    """When a game is won.

    Attributes:
        kind: "place": `number` different objects of the set `objects`, each with all of `flags`, lie in the same
            one of the receptacles `receptacles`. "light": the agent holds one of `objects`, and one of `lamps`
            is switched on and lies in a receptacle where the agent is.
    """

    kind: Literal["place", "light"]
    objects: int
    receptacles: int = 0
    number: int = 1
    flags: tuple[Flag, ...] = ()
    lamps: int = 0

    @property
    def task_type(self) -> TaskType:
        if self.kind == "light":
            return "Look"
        if self.number == 2:
            return "Pick2"
        names: dict[Flag, TaskType] = {"clean": "Clean", "hot": "Heat", "cool": "Cool"}
        return next((names[flag] for flag in self.flags if flag in names), "Pick")


class Action(NamedTuple):
    """A command understood.

    Attributes:
        verb: name of the PDDL action, lower-case.
        object: the object acted upon, or 0.
        other: the receptacle, or the tool of `sliceobject`, or 0.
    """

    verb: str
    object: int
    other: int


Render: TypeAlias = "Callable[[Game, State, int, int], str]"
"""Words for an action's object and other, given the game and the state after the action."""

Piece: TypeAlias = str | tuple[str]
"""Of a command template: a literal, or a role in a one-tuple."""


@dataclass(frozen=True, eq=False)
class Wording:
    """How a file's grammar speaks.

    Attributes:
        templates: for each action the command that means it.
        replies: for each action the reply.
        intro: the first observation.
    """

    templates: dict[str, tuple[Piece, ...]]
    replies: dict[str, Render]
    intro: Render


@dataclass(frozen=True, eq=False)
class Dialect:
    """What many files share: domain and grammar, as texts and as worked out.

    Attributes:
        domain: the text of the PDDL domain.
        grammar: the text of the grammar, the task sentence masked.
    """

    domain: str
    grammar: str
    rules: Rules
    wording: Wording


@dataclass(frozen=True, eq=False)
class Game:
    """One game, compiled. Immutable, so any number of environments share it.

    Attributes:
        task_line: the paragraph that states the task.
        walkthrough: the plan stored in the file.
        objects, receptacles, locations: names by number.
        location_of: the location of each receptacle, or -1.
        openable, cleaners, heaters, coolers: sets of receptacles.
        accepts: for each receptacle the set of objects that may be put there.
        pickupable, cleanable, heatable, coolable, sliceable, toggleable, containers, knives: sets of objects.
        contained: for each container what it holds from the start to the end.
    """

    dialect: Dialect
    task_line: str
    walkthrough: tuple[str, ...]
    objects: tuple[str, ...]
    receptacles: tuple[str, ...]
    locations: tuple[str, ...]
    location_of: tuple[int, ...]
    openable: int
    cleaners: int
    heaters: int
    coolers: int
    accepts: tuple[int, ...]
    pickupable: int
    cleanable: int
    heatable: int
    coolable: int
    sliceable: int
    toggleable: int
    containers: int
    knives: int
    contained: dict[int, int]
    goal: Goal
    start: State

    fixed_commands: dict[int, list[str]] = field(default_factory=dict, repr=False)
    """By location, the commands that depend on nothing else; filled as locations are seen."""
    understood: dict[str, Action] = field(default_factory=dict, repr=False)
    """Commands already parsed: at most as many as the game has."""

    phrased: dict[tuple[str, int, int], str] = field(default_factory=dict, repr=False)
    """The commands of actions, as they are first listed."""

    @cached_property
    def width(self) -> int:
        return len(self.objects)

    @cached_property
    def everything(self) -> int:
        """The set of all objects."""
        return (1 << len(self.objects)) - 1

    @cached_property
    def here(self) -> tuple[tuple[int, ...], ...]:
        """For each location the receptacles there, in order."""
        rows: list[list[int]] = [[] for _ in self.locations]
        for receptacle, location in enumerate(self.location_of):
            if location >= 0:
                rows[location].append(receptacle)
        return tuple(map(tuple, rows))

    @cached_property
    def object_numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.objects)}

    @cached_property
    def receptacle_numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.receptacles)}

    @property
    def task_type(self) -> TaskType:
        return self.goal.task_type

    def contents(self, state: State, receptacle: int) -> int:
        """The set of objects in a receptacle."""
        return state.inside >> receptacle * self.width & self.everything


def members(bits: int) -> Iterator[int]:
    """The numbers in a set, ascending."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
