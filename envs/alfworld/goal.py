"""The six shapes of goal that ALFWorld's tasks have, recognised in PDDL."""

from __future__ import annotations

from collections.abc import Mapping

from .model import Flag, Goal
from .pddl import Expression, Fact, Malformed, typed_names

_FLAGS: dict[str, Flag] = {"isclean": "clean", "ishot": "hot", "iscool": "cool", "issliced": "sliced"}


def read_goal(
    expression: Expression,
    types: Mapping[str, int],
    receptacle_types: Mapping[str, int],
    static: Mapping[str, int],
) -> Goal:
    """Compile a goal.

    Args:
        expression: the condition behind `:goal`.
        types: the set of objects of each type.
        receptacle_types: the set of receptacles of each type.
        static: the set of objects for each of the properties that never change ("cleanable", …).

    Raises:
        Malformed: a goal of another shape.
    """
    claims = [_Claim(part) for part in _conjuncts(expression)]
    if len(claims) == 1:
        return _placed(claims[0], types, receptacle_types, static)
    if len(claims) == 2:
        lamp, held = sorted(claims, key=lambda claim: any(fact[0] == "holds" for fact in claim.facts))
        return _lit(lamp, held, types, static)
    raise Malformed("its :goal is none of the six kinds of task")


def _placed(
    claim: _Claim, types: Mapping[str, int], receptacle_types: Mapping[str, int], static: Mapping[str, int]
) -> Goal:
    """Some things of a type, in some state, in one receptacle of a type."""
    (receptacle,) = claim.of_kind("receptacle", 1)
    things = claim.of_kind("object", len(claim.different) or 1)
    kind = claim.take_constant("receptacletype", receptacle)
    goals = set()
    for thing in things:
        claim.take("inreceptacle", thing, receptacle)
        objects = types.get(claim.take_constant("objecttype", thing), 0)
        flags = tuple(flag for name, flag in _FLAGS.items() if claim.take_if(name, thing))
        for name, bits in static.items():
            if claim.take_if(name, thing):
                objects &= bits
        goals.add((objects, flags))
    if claim.facts or len(goals) != 1 or (claim.different and claim.different != set(things)):
        raise Malformed("its :goal is none of the six kinds of task")
    ((objects, flags),) = goals
    return Goal("place", objects, receptacle_types.get(kind, 0), len(things), flags)


def _lit(lamp: _Claim, held: _Claim, types: Mapping[str, int], static: Mapping[str, int]) -> Goal:
    """Something of a type in the hands, and a burning lamp of a type where the agent is."""
    (light,) = lamp.of_kind("object", 1)
    (receptacle,) = lamp.of_kind("receptacle", 1)
    (agent,) = lamp.of_kind("agent", 1)
    (location,) = lamp.of_kind("location", 1)
    lamps = types.get(lamp.take_constant("objecttype", light), 0)
    lamp.take("istoggled", light)
    lamp.take("receptacleatlocation", receptacle, location)
    lamp.take("atlocation", agent, location)
    lamp.take("inreceptacle", light, receptacle)
    if lamp.take_if("toggleable", light):
        lamps &= static["toggleable"]
    (thing,) = held.of_kind("object", 1)
    (agent,) = held.of_kind("agent", 1)
    objects = types.get(held.take_constant("objecttype", thing), 0)
    held.take("holds", agent, thing)
    if lamp.facts or held.facts or lamp.different or held.different:
        raise Malformed("its :goal is none of the six kinds of task")
    return Goal("light", objects, lamps=lamps)


class _Claim:
    """`(exists (variables) (and facts))`, nested ones flattened. Facts are taken out as they are understood."""

    def __init__(self, expression: Expression) -> None:
        self.kinds: dict[str, str] = {}
        self.facts: set[Fact] = set()
        self.different: set[str] = set()
        """Two variables that must not be the same thing."""
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
                raise Malformed("its :goal is none of the six kinds of task")

    def of_kind(self, kind: str, count: int) -> list[str]:
        """The variables of a type, which must be `count`."""
        names = [name for name, found in self.kinds.items() if found == kind]
        if len(names) != count:
            raise Malformed("its :goal is none of the six kinds of task")
        return names

    def take(self, *fact: str) -> None:
        if fact not in self.facts:
            raise Malformed(f"its :goal lacks the condition ({' '.join(fact)})")
        self.facts.remove(fact)

    def take_if(self, *fact: str) -> bool:
        if fact not in self.facts:
            return False
        self.facts.remove(fact)
        return True

    def take_constant(self, predicate: str, variable: str) -> str:
        """The type that a variable must have."""
        for fact in self.facts:
            if fact[:2] == (predicate, variable) and len(fact) == 3:
                self.facts.remove(fact)
                return fact[2]
        raise Malformed(f"its :goal does not say the type of {variable}")


def _conjuncts(expression: Expression) -> list[Expression]:
    match expression:
        case ["and", *parts]:
            return [inner for part in parts for inner in _conjuncts(part)]
        case _:
            return [expression]
