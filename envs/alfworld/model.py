"""Data model of the engine: a compiled game with bit sets, and its state as eleven integers.

Objects, receptacles and locations are numbered in the order of their sorted ids, which is the order in which the
original lists them. A set of objects is an integer whose bit `o` represents object `o`. A relation between
receptacles (or locations) and objects is also a single integer: bit `r * width + o` represents the pair (r, o).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from hashlib import blake2b
from typing import Literal, NamedTuple, TypeAlias

from .domain import Rules

Flag: TypeAlias = Literal["clean", "hot", "cool", "sliced"]
TaskType: TypeAlias = Literal["Pick", "Look", "Clean", "Heat", "Cool", "Pick2"]
"""Short names of the six task types, as in the tables of the literature."""

TASK_TYPES: dict[str, TaskType] = {
    "pick_and_place_simple": "Pick",
    "look_at_obj_in_light": "Look",
    "pick_clean_then_place_in_recep": "Clean",
    "pick_heat_then_place_in_recep": "Heat",
    "pick_cool_then_place_in_recep": "Cool",
    "pick_two_obj_and_place": "Pick2",
}
"""Task types by the prefix of ALFWorld's folder names."""

NOTHING = -1
"""Value of `State.held` if the agent holds no object."""


class State(NamedTuple):
    """Mutable part of a game, as an immutable value. Two states are equal exactly if the same facts hold.

    Attributes:
        location: Location of the agent.
        held: Object that the agent holds, or NOTHING.
        inside: Relation of receptacles to the objects in them. An object may be in two receptacles.
        near: Relation of locations to the objects there (ALFWorld's objectAtLocation, used by `look` and `slice`).
        taken: Relation of receptacles to the objects last taken out of them, used by `look`.
        opened: Set of open receptacles.
        clean, hot, cool, toggled, sliced: Sets of objects.
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
    """Condition under which a game is won.

    Attributes:
        kind: "place" requires `number` different objects of the set `objects`, each with all of `flags`, in the
            same receptacle of the set `receptacles`. "light" requires that the agent holds one of `objects`, and
            that one of `lamps` is switched on and is in a receptacle at the agent's location.
        objects: Set of objects that count.
        receptacles: Set of receptacles that count; 0 for "light".
        number: Number of objects required.
        flags: States that each object must have.
        lamps: Set of lamps that count; 0 for "place".
    """

    kind: Literal["place", "light"]
    objects: int
    receptacles: int = 0
    number: int = 1
    flags: tuple[Flag, ...] = ()
    lamps: int = 0

    @property
    def task_type(self) -> TaskType:
        """Task type to which the goal belongs."""
        if self.kind == "light":
            return "Look"
        if self.number == 2:
            return "Pick2"
        names: dict[Flag, TaskType] = {"clean": "Clean", "hot": "Heat", "cool": "Cool"}
        return next((names[flag] for flag in self.flags if flag in names), "Pick")


class Action(NamedTuple):
    """A parsed command.

    Attributes:
        verb: Lower-case name of the PDDL action.
        object: Object acted upon; 0 if the action has none.
        other: Receptacle, or the tool of `sliceobject`; 0 if the action has neither.
    """

    verb: str
    object: int
    other: int


Render: TypeAlias = "Callable[[Game, State, int, int], str]"
"""Function (game, state after the action, object, other) → text."""

Piece: TypeAlias = str | tuple[str]
"""Part of a command template: a literal, or a role in a one-tuple."""


@dataclass(frozen=True, eq=False)
class Wording:
    """Compiled texts of a grammar.

    Attributes:
        templates: Command template of each action.
        replies: Reply to each action.
        intro: First observation.
    """

    templates: dict[str, tuple[Piece, ...]]
    replies: dict[str, Render]
    intro: Render


@dataclass(frozen=True, eq=False)
class Dialect:
    """Domain and grammar that many files share, as source texts and compiled.

    Attributes:
        domain: Text of the PDDL domain.
        grammar: Text of the grammar with the task sentence masked.
        rules: Compiled domain.
        wording: Compiled grammar.
    """

    domain: str
    grammar: str
    rules: Rules
    wording: Wording


@dataclass(frozen=True, eq=False)
class Game:
    """A compiled game. It is immutable except for its caches, so any number of environments can share it.

    Attributes:
        dialect: Domain and grammar.
        task_line: Paragraph that states the task.
        walkthrough: Plan that is stored in the file.
        objects, receptacles, locations: Display names by number.
        location_of: Location of each receptacle, or -1.
        openable, cleaners, heaters, coolers: Sets of receptacles.
        accepts: Set of objects that may be put into each receptacle.
        pickupable, cleanable, heatable, coolable, sliceable, toggleable, containers, knives: Sets of objects.
        contained: Set of objects in each container object, constant during a game.
        goal: Condition under which the game is won.
        start: Initial state.
        location_commands: Cache of the commands that are admissible at a location in every state.
        parsed_commands: Cache of parsed commands; bounded by the number of commands of the game.
        formatted_commands: Cache of the command of each action.
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

    location_commands: dict[int, list[str]] = field(default_factory=dict, repr=False)
    parsed_commands: dict[str, Action] = field(default_factory=dict, repr=False)
    formatted_commands: dict[tuple[str, int, int], str] = field(default_factory=dict, repr=False)

    @cached_property
    def width(self) -> int:
        """Number of objects: the number of bits per receptacle or location in a relation."""
        return len(self.objects)

    @cached_property
    def all_objects(self) -> int:
        """Set of all objects."""
        return (1 << len(self.objects)) - 1

    @cached_property
    def receptacles_at(self) -> tuple[tuple[int, ...], ...]:
        """Receptacles at each location, in ascending order."""
        rows: list[list[int]] = [[] for _ in self.locations]
        for receptacle, location in enumerate(self.location_of):
            if location >= 0:
                rows[location].append(receptacle)
        return tuple(map(tuple, rows))

    @cached_property
    def object_numbers(self) -> dict[str, int]:
        """Number of each object, by display name."""
        return {name: number for number, name in enumerate(self.objects)}

    @cached_property
    def receptacle_numbers(self) -> dict[str, int]:
        """Number of each receptacle, by display name."""
        return {name: number for number, name in enumerate(self.receptacles)}

    @cached_property
    def digest(self) -> str:
        """Digest of everything that the game consists of; equal games have equal digests in every process."""
        caches = {"dialect", "location_commands", "parsed_commands", "formatted_commands"}
        content = [getattr(self, entry.name) for entry in fields(self) if entry.name not in caches]
        text = repr((self.dialect.domain, self.dialect.grammar, content))
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()

    @property
    def task_type(self) -> TaskType:
        """Task type to which the game's goal belongs."""
        return self.goal.task_type

    def contents(self, state: State, receptacle: int) -> int:
        """Return the set of objects in a receptacle."""
        return state.inside >> receptacle * self.width & self.all_objects


def members(bits: int) -> Iterator[int]:
    """Yield the elements of a bit set in ascending order."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
