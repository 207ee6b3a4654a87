"""Validation of a game file's PDDL domain against the actions that the engine implements.

The engine's rules are Python code, so a domain is accepted only if each of its actions is equivalent to the action
of the same name in `assets/household.pddl`, up to the order of conditions and the names of variables. Three
properties may differ between files: the set of actions; the receptacle types that clean, heat and cool, and the
object types that cut; and whether an object can be examined while it is in a receptacle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from ...assets import asset
from .pddl import Action, Domain, Expression, Malformed, read_domain, typed_names

NormalForm: TypeAlias = "str | tuple[NormalForm, ...] | frozenset[NormalForm]"
"""An expression in normal form: conjunctions are sets, and variables are numbered in order of their binding."""

# Predicates that no condition, goal or text reads; effects on them are ignored.
_IGNORED = frozenset({"checked", "examined", "full", "ison", "wasinreceptacle"})

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
"""Engine role of each parameter of an action, in the order of the action's parameters."""

_IN_OPEN_RECEPTACLE = """(exists (?l - location ?r - receptacle)
    (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (inReceptacle ?o ?r)
         (or (not (openable ?r)) (opened ?r))))"""


@dataclass(frozen=True)
class Rules:
    """The properties in which accepted domains may differ.

    Attributes:
        roles: Role of each variable, by action (`{"gotolocation": {"r": "receptacle", …}, …}`).
        types: Receptacle types that perform `cleanobject`, `heatobject` and `coolobject`, and object types that
            serve as the tool of `sliceobject`, by action.
        examine_in_place: True if `examine` also accepts objects in an open receptacle at the agent's location.
            False for ALFWorld's published domain, in which a stray comma makes that condition refer to an
            undeclared type.
    """

    roles: dict[str, dict[str, str]] = field(hash=False)
    types: dict[str, frozenset[str]] = field(hash=False)
    examine_in_place: bool


@lru_cache(maxsize=16)
def read_rules(text: str) -> tuple[Domain, Rules]:
    """Parse a domain and extract its variable properties.

    Raises:
        Malformed: The text is not a PDDL domain, or an action is unsupported or differs from the engine's.
    """
    domain = read_domain(text)
    roles: dict[str, dict[str, str]] = {}
    types: dict[str, frozenset[str]] = {}
    examine_in_place = False
    for name, action in domain.actions.items():
        reference = _reference_actions().get(name)
        if reference is None:
            raise Malformed(f"its domain has an action {name}, which this engine does not support")
        constants: set[str] = set()
        form = _normal_form(action, domain.types, constants)
        if name == "examineobject" and form == _examine_in_place():
            examine_in_place = True
        elif form != reference:
            raise Malformed(
                f"its domain gives the action {name} conditions or effects that this engine does not support"
            )
        roles[name] = {
            var.lstrip("?"): role for (var, _), role in zip(action.parameters, ROLES[name], strict=True)
        }
        if constants:
            types[name] = frozenset(constants)
    return domain, Rules(roles, types, examine_in_place)


def household_text(suffix: str) -> str:
    """Return the text of `assets/household.<suffix>`: "pddl" is the domain, "twl" the grammar."""
    return asset(f"household.{suffix}").read_text("utf-8")


@lru_cache(maxsize=1)
def _reference_actions() -> dict[str, NormalForm]:
    domain = read_domain(household_text("pddl"))
    return {name: _normal_form(action, domain.types, set()) for name, action in domain.actions.items()}


@lru_cache(maxsize=1)
def _examine_in_place() -> NormalForm:
    domain = read_domain(
        household_text("pddl").replace("(holds ?a ?o)", f"(or (holds ?a ?o) {_IN_OPEN_RECEPTACLE})")
    )
    return _normal_form(domain.actions["examineobject"], domain.types, set())


def _normal_form(action: Action, types: frozenset[str], constants: set[str]) -> NormalForm:
    """Return the normal form of an action.

    Args:
        action: Action schema.
        types: Types that the domain declares.
        constants: Set to which the constants of type conditions are added; the normal form has a star instead.
    """
    numbers = {var: f"?{index}" for index, (var, _) in enumerate(action.parameters)}
    kinds = tuple(kind for _, kind in action.parameters)
    condition = _Normalizer(types, constants, frozenset()).normalize(action.precondition, numbers)
    effect = _Normalizer(types, set(), _IGNORED).normalize(action.effect, numbers)
    return (kinds, condition, effect)


_TRUE: NormalForm = ("and", frozenset())
_FALSE: NormalForm = ("or", frozenset())


@dataclass(frozen=True)
class _Normalizer:
    """Rewriter of expressions to normal form.

    Attributes:
        types: Types that the domain declares.
        constants: Set to which the constants of type conditions are added.
        ignored: Predicates whose facts are treated as true.
    """

    types: frozenset[str]
    constants: set[str]
    ignored: frozenset[str]

    def normalize(self, expression: Expression, numbers: dict[str, str]) -> NormalForm:
        """Return the normal form of an expression whose variables have the given numbers."""
        if isinstance(expression, str):
            return numbers.get(expression, expression)
        match expression:
            case []:
                return _TRUE
            case ["and" | "or" as word, *parts]:
                return self._flatten(word, [self.normalize(part, numbers) for part in parts])
            case ["not", part]:
                inner = self.normalize(part, numbers)
                return _TRUE if inner == _TRUE and self.ignored else ("not", inner)
            case ["exists", list(variables), body]:
                bound = dict(numbers)
                kinds = []
                for var, kind in typed_names(variables):
                    if kind not in self.types:
                        return _FALSE  # No object has an undeclared type.
                    bound[var] = f"?{len(bound)}"
                    kinds.append(kind)
                return ("exists", tuple(kinds), self.normalize(body, bound))
            case ["when", _, effect] if self.normalize(effect, numbers) == _TRUE:
                return _TRUE
            case ["increase", *_]:
                return _TRUE
            case ["receptacletype" | "objecttype" as word, str(var), str(constant)] if constant[0] != "?":
                self.constants.add(constant)
                return (word, numbers.get(var, var), "*")
            case [str(word), *_] if word in self.ignored:
                return _TRUE
            case _:
                return tuple(self.normalize(part, numbers) for part in expression)

    def _flatten(self, word: str, parts: list[NormalForm]) -> NormalForm:
        """Return a conjunction or disjunction as a set, with nested ones merged and a single member unwrapped."""
        members: set[NormalForm] = set()
        for part in parts:
            match part:
                case (str(inner), frozenset() as nested) if inner == word:
                    members |= nested
                case _ if word == "and" and part in members:
                    # A duplicate means two type constants for one variable; a tuple equals no reference form.
                    return (word, tuple(parts))
                case _:
                    members.add(part)
        return next(iter(members)) if len(members) == 1 else (word, frozenset(members))
