"""Recognition of the six kinds of goal of ALFWorld's tasks in PDDL."""

from __future__ import annotations

from collections.abc import Mapping

from .model import Flag, Goal
from .pddl import Expression, Fact, Malformed, typed_names

_FLAGS: dict[str, Flag] = {"isclean": "clean", "ishot": "hot", "iscool": "cool", "issliced": "sliced"}
_UNKNOWN_GOAL = "its :goal matches none of ALFWorld's six kinds of task"


def read_goal(
    expression: Expression,
    types: Mapping[str, int],
    receptacle_types: Mapping[str, int],
    static: Mapping[str, int],
) -> Goal:
    """Compile a goal.

    Args:
        expression: Condition of the `:goal` section.
        types: Bit set of the objects of each type.
        receptacle_types: Bit set of the receptacles of each type.
        static: Bit set of the objects with each immutable property ("cleanable", …).

    Raises:
        Malformed: The goal is of no known kind.
    """
    conditions = [_Condition(part) for part in _conjuncts(expression)]
    if len(conditions) == 1:
        return _read_place_goal(conditions[0], types, receptacle_types, static)
    if len(conditions) == 2:
        lamp, held = sorted(conditions, key=lambda condition: any(fact[0] == "holds" for fact in condition.facts))
        return _read_light_goal(lamp, held, types, static)
    raise Malformed(_UNKNOWN_GOAL)


def _read_place_goal(
    condition: _Condition, types: Mapping[str, int], receptacle_types: Mapping[str, int], static: Mapping[str, int]
) -> Goal:
    """Compile the goal of placing objects of a type, in some state, in one receptacle of a type."""
    (receptacle,) = condition.variables_of_type("receptacle", 1)
    things = condition.variables_of_type("object", len(condition.different) or 1)
    kind = condition.remove_type("receptacletype", receptacle)
    goals = set()
    for thing in things:
        condition.remove("inreceptacle", thing, receptacle)
        objects = types.get(condition.remove_type("objecttype", thing), 0)
        flags = tuple(flag for name, flag in _FLAGS.items() if condition.remove_if_present(name, thing))
        for name, bits in static.items():
            if condition.remove_if_present(name, thing):
                objects &= bits
        goals.add((objects, flags))
    if condition.facts or len(goals) != 1 or (condition.different and condition.different != set(things)):
        raise Malformed(_UNKNOWN_GOAL)
    ((objects, flags),) = goals
    return Goal("place", objects, receptacle_types.get(kind, 0), len(things), flags)


def _read_light_goal(
    lamp: _Condition, held: _Condition, types: Mapping[str, int], static: Mapping[str, int]
) -> Goal:
    """Compile the goal of holding an object of a type at a lamp of a type that is switched on."""
    (light,) = lamp.variables_of_type("object", 1)
    (receptacle,) = lamp.variables_of_type("receptacle", 1)
    (agent,) = lamp.variables_of_type("agent", 1)
    (location,) = lamp.variables_of_type("location", 1)
    lamps = types.get(lamp.remove_type("objecttype", light), 0)
    lamp.remove("istoggled", light)
    lamp.remove("receptacleatlocation", receptacle, location)
    lamp.remove("atlocation", agent, location)
    lamp.remove("inreceptacle", light, receptacle)
    if lamp.remove_if_present("toggleable", light):
        lamps &= static["toggleable"]
    (thing,) = held.variables_of_type("object", 1)
    (agent,) = held.variables_of_type("agent", 1)
    objects = types.get(held.remove_type("objecttype", thing), 0)
    held.remove("holds", agent, thing)
    if lamp.facts or held.facts or lamp.different or held.different:
        raise Malformed(_UNKNOWN_GOAL)
    return Goal("light", objects, lamps=lamps)


class _Condition:
    """An expression `(exists (variables) (and facts))`, with nested ones flattened.

    The reader of a goal removes each fact that it recognizes; a fact that is left over makes the goal unknown.

    Attributes:
        kinds: Type of each variable.
        facts: Facts that have not been removed.
        different: Two variables that must be bound to different objects; empty if there are none.
    """

    def __init__(self, expression: Expression) -> None:
        self.kinds: dict[str, str] = {}
        self.facts: set[Fact] = set()
        self.different: set[str] = set()
        self._read(expression)

    def _read(self, expression: Expression) -> None:
        match expression:
            case ["exists", list(variables), body]:
                for name, kind in typed_names(variables):
                    if name in self.kinds:
                        raise Malformed(f"its :goal binds {name} twice")
                    self.kinds[name] = kind
                self._read(body)
            case ["and", *parts]:
                for part in parts:
                    self._read(part)
            case ["not", ["=", str(one), str(other)]] if one != other and not self.different:
                self.different = {one, other}
            case [str(), *arguments] if all(isinstance(argument, str) for argument in arguments):
                self.facts.add(tuple(str(word) for word in expression))
            case _:
                raise Malformed(_UNKNOWN_GOAL)

    def variables_of_type(self, kind: str, count: int) -> list[str]:
        """Return the `count` variables of a type.

        Raises:
            Malformed: The number of variables of this type is different.
        """
        names = [name for name, found in self.kinds.items() if found == kind]
        if len(names) != count:
            raise Malformed(_UNKNOWN_GOAL)
        return names

    def remove(self, *fact: str) -> None:
        """Remove a fact that must be present."""
        if fact not in self.facts:
            raise Malformed(f"its :goal lacks the condition ({' '.join(fact)})")
        self.facts.remove(fact)

    def remove_if_present(self, *fact: str) -> bool:
        """Remove a fact and return True, or return False if it is absent."""
        if fact not in self.facts:
            return False
        self.facts.remove(fact)
        return True

    def remove_type(self, predicate: str, variable: str) -> str:
        """Remove the fact that gives the type of a variable, and return that type."""
        for fact in self.facts:
            if fact[:2] == (predicate, variable) and len(fact) == 3:
                self.facts.remove(fact)
                return fact[2]
        raise Malformed(f"its :goal does not give the type of {variable}")


def _conjuncts(expression: Expression) -> list[Expression]:
    match expression:
        case ["and", *parts]:
            return [inner for part in parts for inner in _conjuncts(part)]
        case _:
            return [expression]
