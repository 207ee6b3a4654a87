"""What a file's PDDL domain says, checked against the actions that the engine can play.

The engine's rules are code. A domain is accepted when each of its actions means what the action of that name in
`assets/household.pddl` means, whatever the order of its conditions and the names of its variables. Three things
may differ between files: which actions there are, which types of receptacle clean, heat and cool and which types
of object cut, and whether things can be examined where they lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from ...assets import asset
from .pddl import Action, Domain, Expression, Malformed, read_domain, typed_names

Meaning: TypeAlias = "str | tuple[Meaning, ...] | frozenset[Meaning]"
"""An expression without accidents: conjunctions are sets, variables are numbered by their parameter."""

# Effects on these are dropped: no condition, goal or text reads them.
_UNREAD = frozenset({"checked", "examined", "full", "ison", "wasinreceptacle"})

ROLES: Mapping[str, tuple[str, ...]] = {
    "look": ("agent", "here"),
    "inventory": ("agent",),
    "help": ("agent",),
    "examinereceptacle": ("agent", "receptacle"),
    "examineobject": ("agent", "object"),
    "gotolocation": ("agent", "left", "here", "receptacle"),
    "openobject": ("agent", "here", "receptacle"),
    "closeobject": ("agent", "here", "receptacle"),
    "pickupobject": ("agent", "here", "object", "receptacle"),
    "putobject": ("agent", "here", "object", "receptacle", "otype", "rtype"),
    "cleanobject": ("agent", "here", "receptacle", "object"),
    "heatobject": ("agent", "here", "receptacle", "object"),
    "coolobject": ("agent", "here", "receptacle", "object"),
    "toggleobject": ("agent", "here", "object", "receptacle"),
    "sliceobject": ("agent", "here", "object", "tool"),
}
"""What each parameter of an action is to the engine, in the order of the action's parameters."""

_LYING_OPEN = """(exists (?l - location ?r - receptacle)
    (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (inReceptacle ?o ?r)
         (or (not (openable ?r)) (opened ?r))))"""


@dataclass(frozen=True)
class Rules:
    """What a domain leaves open.

    Attributes:
        roles: for each action, what each of its variables is (`{"gotolocation": {"r": "receptacle", …}, …}`).
        types: for `cleanobject`, `heatobject`, `coolobject` the types of receptacle that do it; for
            `sliceobject` the types of object that cut.
        examine_lying: whether `examine` works for things that lie in an open receptacle here. It does not in
            ALFWorld's own domain, where a stray comma makes that branch speak of an undeclared type.
    """

    roles: dict[str, dict[str, str]] = field(hash=False)
    types: dict[str, frozenset[str]] = field(hash=False)
    examine_lying: bool


@lru_cache(maxsize=16)
def read_rules(text: str) -> tuple[Domain, Rules]:
    """Parse a domain and find out what it leaves open.

    Raises:
        Malformed: it is no domain, or has an action that the engine does not know or knows otherwise.
    """
    domain = read_domain(text)
    roles: dict[str, dict[str, str]] = {}
    types: dict[str, frozenset[str]] = {}
    examine_lying = False
    for name, action in domain.actions.items():
        known = _known_actions().get(name)
        if known is None:
            raise Malformed(f"its domain has an action {name}, which this engine does not know")
        constants: set[str] = set()
        meaning = _meaning(action, domain.types, constants)
        if name == "examineobject" and meaning == _examine_lying():
            examine_lying = True
        elif meaning != known:
            raise Malformed(
                f"its domain gives the action {name} conditions or effects that this engine does not know"
            )
        roles[name] = {
            var.lstrip("?"): role for (var, _), role in zip(action.parameters, ROLES[name], strict=True)
        }
        if constants:
            types[name] = frozenset(constants)
    return domain, Rules(roles, types, examine_lying)


def household_text(suffix: str) -> str:
    """The text of `assets/household.<suffix>`: "pddl" for the domain, "twl" for the grammar."""
    return asset(f"household.{suffix}").read_text("utf-8")


@lru_cache(maxsize=1)
def _known_actions() -> dict[str, Meaning]:
    domain = read_domain(household_text("pddl"))
    return {name: _meaning(action, domain.types, set()) for name, action in domain.actions.items()}


@lru_cache(maxsize=1)
def _examine_lying() -> Meaning:
    domain = read_domain(household_text("pddl").replace("(holds ?a ?o)", f"(or (holds ?a ?o) {_LYING_OPEN})"))
    return _meaning(domain.actions["examineobject"], domain.types, set())


def _meaning(action: Action, types: frozenset[str], constants: set[str]) -> Meaning:
    """The action without accidents. Constants in type conditions are collected and replaced by a star."""
    numbers = {var: f"?{index}" for index, (var, _) in enumerate(action.parameters)}
    kinds = tuple(kind for _, kind in action.parameters)
    condition = _Normal(types, constants, frozenset()).of(action.precondition, numbers)
    effect = _Normal(types, set(), _UNREAD).of(action.effect, numbers)
    return (kinds, condition, effect)


_TRUE: Meaning = ("and", frozenset())
_FALSE: Meaning = ("or", frozenset())


@dataclass(frozen=True)
class _Normal:
    """Takes the accidents out of expressions.

    Attributes:
        types: the declared types.
        constants: collects the constants of type conditions.
        dropped: predicates that stand for nothing.
    """

    types: frozenset[str]
    constants: set[str]
    dropped: frozenset[str]

    def of(self, expression: Expression, numbers: dict[str, str]) -> Meaning:
        if isinstance(expression, str):
            return numbers.get(expression, expression)
        match expression:
            case []:
                return _TRUE
            case ["and" | "or" as word, *parts]:
                return self._joined(word, [self.of(part, numbers) for part in parts])
            case ["not", part]:
                inner = self.of(part, numbers)
                return _TRUE if inner == _TRUE and self.dropped else ("not", inner)
            case ["exists", list(variables), body]:
                bound = dict(numbers)
                sorts = []
                for var, kind in typed_names(variables):
                    if kind not in self.types:
                        return _FALSE  # nothing is of an undeclared type
                    bound[var] = f"?{len(bound)}"
                    sorts.append(kind)
                return ("exists", tuple(sorts), self.of(body, bound))
            case ["when", _, effect] if self.of(effect, numbers) == _TRUE:
                return _TRUE
            case ["increase", *_]:
                return _TRUE
            case ["receptacletype" | "objecttype" as word, str(var), str(constant)] if constant[0] != "?":
                self.constants.add(constant)
                return (word, numbers.get(var, var), "*")
            case [str(word), *_] if word in self.dropped:
                return _TRUE
            case _:
                return tuple(self.of(part, numbers) for part in expression)

    def _joined(self, word: str, parts: list[Meaning]) -> Meaning:
        """A conjunction or disjunction as a set: nested ones of its kind merged, a single member unwrapped."""
        members: set[Meaning] = set()
        for part in parts:
            match part:
                case (str(inner), frozenset() as nested) if inner == word:
                    members |= nested
                case _ if word == "and" and part in members:
                    return (word, tuple(parts))  # an X that is of two types at once: nothing we know
                case _:
                    members.add(part)
        return next(iter(members)) if len(members) == 1 else (word, frozenset(members))
