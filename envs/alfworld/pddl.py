"""Parser for the subset of PDDL that ALFWorld's domain and problem files use.

PDDL is case-insensitive, so all text is lower-cased. The parser is independent of the meaning of predicates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

Expression: TypeAlias = "str | list[Expression]"
Fact: TypeAlias = tuple[str, ...]
"""A predicate followed by its arguments."""


class Malformed(ValueError):
    """Malformed content of a game file.

    The message is a clause without the file's name, which the caller adds.
    """


@dataclass(frozen=True)
class Action:
    """An action schema.

    Attributes:
        parameters: (name, type) of each parameter, in order.
        precondition: Condition over the parameters.
        effect: Effect over the parameters.
    """

    parameters: tuple[tuple[str, str], ...]
    precondition: Expression
    effect: Expression


@dataclass(frozen=True)
class Domain:
    """A PDDL domain.

    Attributes:
        types: Declared types.
        predicates: Number of arguments of each predicate.
        actions: Action schemas by name.
    """

    types: frozenset[str]
    predicates: dict[str, int]
    actions: dict[str, Action]


@dataclass(frozen=True)
class Problem:
    """A PDDL problem.

    Attributes:
        types: Type of each object, by name.
        goal: Goal condition.
        by_predicate: Arguments of the facts that hold in the initial state, by predicate.
    """

    types: dict[str, str]
    goal: Expression
    by_predicate: dict[str, list[tuple[str, ...]]] = field(repr=False)

    def pairs(self, predicate: str) -> list[tuple[str, str]]:
        """Return the arguments of the facts of a binary predicate."""
        return [(first, second) for first, second in self.by_predicate.get(predicate, ())]

    def members(self, predicate: str) -> set[str]:
        """Return the arguments of the facts of a unary predicate."""
        return {name for (name,) in self.by_predicate.get(predicate, ())}


MAX_DEPTH = 100
"""Maximum depth of nested parentheses; ALFWorld's domain has 11."""

_COMMENT = re.compile(r";[^\n]*")
_TOKEN = re.compile(r"[()]|[^\s()]+")
_SECTION = re.compile(r"\(\s*:([a-z-]+)")
_FACT = re.compile(r"\(([^()]*)\)")


def read_expressions(text: str) -> list[Expression]:
    """Parse parenthesized expressions into nested lists of words.

    Raises:
        Malformed: The parentheses are unbalanced or nested too deeply.
    """
    top: list[Expression] = []
    stack = [top]
    for token in _TOKEN.findall(_COMMENT.sub("", text.lower())):
        if token == "(":
            if len(stack) > MAX_DEPTH:
                raise Malformed(f"its PDDL nests parentheses more than {MAX_DEPTH} deep")
            inner: list[Expression] = []
            stack[-1].append(inner)
            stack.append(inner)
        elif token == ")":
            stack.pop()
            if not stack:
                raise Malformed("its PDDL closes a parenthesis that was never opened")
        else:
            stack[-1].append(token)
    if len(stack) != 1:
        raise Malformed("its PDDL ends inside a parenthesis")
    return top


def typed_names(words: Iterable[Expression]) -> list[tuple[str, str]]:
    """Parse `a b - t c - u` into [(a, t), (b, t), (c, u)]; untyped names are of type "object"."""
    names: list[tuple[str, str]] = []
    waiting: list[str] = []
    queue = iter(words)
    for word in queue:
        if not isinstance(word, str):
            raise Malformed("its PDDL has a list in place of a typed name")
        if word == "-":
            kind = next(queue, None)
            if not isinstance(kind, str):
                raise Malformed("its PDDL has a dash without a type after it")
            names += ((name, kind) for name in waiting)
            waiting = []
        else:
            waiting.append(word)
    return names + [(name, "object") for name in waiting]


def read_domain(text: str) -> Domain:
    """Parse a domain file.

    Raises:
        Malformed: The text is not a PDDL domain.
    """
    types: frozenset[str] = frozenset()
    predicates: dict[str, int] = {}
    actions: dict[str, Action] = {}
    for section in _definition(text, "domain"):
        match section:
            case [":types", *names]:
                types = frozenset(name for name, _ in typed_names(names))
            case [":predicates", *declared]:
                for predicate in declared:
                    if not isinstance(predicate, list) or not predicate or not isinstance(predicate[0], str):
                        raise Malformed("its domain declares a predicate without a name")
                    predicates[predicate[0]] = len(typed_names(predicate[1:]))
            case [":action", str(name), *rest]:
                actions[name] = _read_action(name, rest)
    if not types or not predicates or not actions:
        raise Malformed("its pddl_domain lacks :types, :predicates or :action")
    return Domain(types, predicates, actions)


def _read_action(name: str, rest: list[Expression]) -> Action:
    parts = {key: value for key, value in zip(rest[::2], rest[1::2], strict=False) if isinstance(key, str)}
    parameters = parts.get(":parameters")
    if not isinstance(parameters, list):
        raise Malformed(f"its action {name} has no :parameters")
    return Action(tuple(typed_names(parameters)), parts.get(":precondition", []), parts.get(":effect", []))


def read_problem(text: str, domain: Domain) -> Problem:
    """Parse a problem file and validate it against its domain.

    Facts make up nearly all of the text. They are extracted with one regular expression, because a general parser
    of nested lists takes three times as long.

    Raises:
        Malformed: The text is not a PDDL problem, or uses an undeclared type, predicate or name.
    """
    text = _COMMENT.sub("", text.lower()) if ";" in text else text.lower()
    starts = list(_SECTION.finditer(text))
    if not starts:
        raise Malformed("its pddl_problem has no :objects")
    ends = [start.start() for start in starts[1:]] + [len(text)]
    sections = {start[1]: text[start.start() : end] for start, end in zip(starts, ends, strict=True)}
    for name in ("objects", "init", "goal"):
        if name not in sections:
            raise Malformed(f"its pddl_problem has no :{name}")
    if text.count("(") != text.count(")"):
        raise Malformed("the parentheses of its pddl_problem do not match")

    types = dict(typed_names(_TOKEN.findall(_balanced(sections["objects"]))[2:-1]))
    for name, kind in types.items():
        if kind not in domain.types:
            raise Malformed(f"its object {name} is of type {kind}, which the domain does not declare")

    texts = _FACT.findall(sections["init"])
    if sections["init"].count("(") != len(texts) + 1:
        raise Malformed("its :init contains an expression that is not a plain fact")
    facts = frozenset(tuple(fact.split()) for fact in texts)
    by_predicate: dict[str, list[tuple[str, ...]]] = {}
    for fact in facts:
        if not fact:
            raise Malformed("its :init has an empty fact")
        by_predicate.setdefault(fact[0], []).append(fact[1:])
    for predicate, rows in by_predicate.items():
        arity = domain.predicates.get(predicate)
        if arity is None:
            raise Malformed(f"its :init uses the predicate {predicate}, which the domain does not declare")
        for row in rows:
            if len(row) != arity:
                raise Malformed(f"its :init gives {predicate} {len(row)} arguments instead of {arity}")
            for name in row:
                if name not in types:
                    raise Malformed(f"its :init refers to {name}, which :objects does not declare")

    (expression,) = read_expressions(_balanced(sections["goal"]))
    if not isinstance(expression, list) or len(expression) != 2:
        raise Malformed("its :goal is not one condition")
    return Problem(types, expression[1], by_predicate)


def _definition(text: str, kind: str) -> list[Expression]:
    """Return the sections of `(define (kind name) section …)`."""
    match read_expressions(text):
        case [["define", [str(found), str()], *sections]] if found == kind:
            return sections
    raise Malformed(f"its pddl_{kind} is not a single (define ({kind} …) …)")


def _balanced(text: str) -> str:
    """Return the first expression of `text`, which must begin with a parenthesis."""
    depth = 0
    for match in re.finditer(r"[()]", text):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return text[: match.end()]
    raise Malformed("a section of its pddl_problem is not closed")
