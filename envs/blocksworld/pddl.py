"""Strict parser of PDDL problem files of the four-operator blocksworld (PlanBench's format)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..errors import DataError
from .rules import HAND, TABLE, Arrangement, Fact, Goal, Problem, facts, reached
from .solver import contradiction

ARGUMENTS = {"clear": 1, "handempty": 0, "holding": 1, "on": 2, "ontable": 1}
"""Predicates of the domain and their numbers of arguments."""

MAX_OBJECTS = 256
"""Maximum number of blocks of a problem; wordings are precomputed for every pair of blocks."""

_MAX_DEPTH = 32
_SECTIONS = (":domain", ":requirements", ":objects", ":init", ":goal")
_TOKEN = re.compile(r";[^\n]*|[()]|[^\s();]+")
_NAME = re.compile(r"[a-z][a-z0-9_-]*", re.ASCII)


class _Word(NamedTuple):
    text: str
    line: int


class _List(NamedTuple):
    items: list[_Word | _List]
    line: int


def read_problem(text: str, path: str) -> Problem:
    """Parse the text of a PDDL problem file.

    Args:
        text: Content of the file.
        path: Path of the file, for error messages.

    Raises:
        DataError: The text is not a complete problem of this domain, or it is inconsistent.
    """
    return _Parser(path).problem(text)


class _Parser:
    def __init__(self, path: str) -> None:
        self.path = path
        self.numbers: dict[str, int] = {}
        """From the name of a block to its number."""

    def problem(self, text: str) -> Problem:
        define = self._parse(text)
        if not define.items or not _is_word(define.items[0], "define"):
            raise self._error(define.line, "expected (define (problem …) …).")
        parts = define.items[1:]
        head = parts[0] if parts else None
        if not isinstance(head, _List) or not head.items or not _is_word(head.items[0], "problem"):
            raise self._error(define.line, "expected (problem NAME) after define; this may be a domain file.")
        sections = self._sections(parts[1:])
        for name in (":objects", ":init", ":goal"):
            if name not in sections:
                raise self._error(define.line, f"expected a ({name} …) section, found none.")
        names = self._objects(sections[":objects"])
        init = self._init(sections[":init"], names)
        goal = self._goal(sections[":goal"], names)
        if reached(goal, init):
            raise self._error(
                sections[":goal"].line, "the goal already holds in :init; expected a goal that does not."
            )
        return Problem(names, init, goal)

    # ------------------------------------------------------------------ parentheses

    def _parse(self, text: str) -> _List:
        stack: list[_List] = []
        root: _List | None = None
        line = 1
        for line, token in _tokens(text):
            if root is not None:
                raise self._error(line, f"expected the end of the file, found {token[:40]!r}.")
            if token == "(":
                if len(stack) == _MAX_DEPTH:
                    raise self._error(line, f"parentheses are nested more than {_MAX_DEPTH} deep.")
                stack.append(_List([], line))
            elif not stack:
                raise self._error(line, f"expected an opening parenthesis, found {token[:40]!r}.")
            elif token != ")":
                stack[-1].items.append(_Word(token.lower(), line))
            else:
                closed = stack.pop()
                if stack:
                    stack[-1].items.append(closed)
                else:
                    root = closed
        if stack:
            opened = f"the parenthesis opened in line {stack[-1].line}"
            raise self._error(line, f"expected a closing parenthesis; the file ends inside {opened} (truncated?).")
        if root is None:
            raise self._error(1, "expected (define (problem …) …), found an empty file.")
        return root

    def _sections(self, parts: Sequence[_Word | _List]) -> dict[str, _List]:
        sections: dict[str, _List] = {}
        for part in parts:
            head = part.items[0] if isinstance(part, _List) and part.items else None
            if not isinstance(part, _List) or not isinstance(head, _Word) or head.text not in _SECTIONS:
                raise self._error(part.line, "expected (:domain …), (:objects …), (:init …) or (:goal …).")
            name = head.text
            if name in sections:
                raise self._error(part.line, f"expected one {name} section, found a second.")
            sections[name] = part
        return sections

    # ------------------------------------------------------------------ sections

    def _objects(self, section: _List) -> tuple[str, ...]:
        typed = False
        for item in section.items[1:]:
            if isinstance(item, _List):
                raise self._error(item.line, "expected a block's name, found a parenthesis.")
            if typed:  # "a b - block": the domain has only one type
                typed = False
            elif item.text == "-":
                typed = True
            elif not _NAME.fullmatch(item.text):
                raise self._error(item.line, f"expected a block's name, found {item.text[:40]!r}.")
            elif item.text in self.numbers:
                raise self._error(item.line, f"block {item.text} is declared twice.")
            else:
                self.numbers[item.text] = len(self.numbers)
        if not 1 <= len(self.numbers) <= MAX_OBJECTS:
            found = len(self.numbers)
            raise self._error(section.line, f"expected 1 to {MAX_OBJECTS} blocks in :objects, found {found}.")
        return tuple(self.numbers)

    def _atom(self, item: _Word | _List) -> Fact:
        if isinstance(item, _Word):
            raise self._error(item.line, f"expected an atom such as (clear a), found {item.text[:40]!r}.")
        words = [word.text for word in item.items if isinstance(word, _Word)]
        if not words or len(words) < len(item.items):
            raise self._error(item.line, "expected an atom such as (clear a).")
        predicate, *blocks = words
        if predicate not in ARGUMENTS:
            known = ", ".join(ARGUMENTS)
            raise self._error(item.line, f"unknown predicate {predicate[:40]!r}; expected one of {known}.")
        if len(blocks) != ARGUMENTS[predicate]:
            raise self._error(
                item.line, f"expected {ARGUMENTS[predicate]} block(s) after {predicate}, found {len(blocks)}."
            )
        for block in blocks:
            if block not in self.numbers:
                raise self._error(item.line, f"block {block[:40]!r} is not declared in :objects.")
        return Fact(predicate, *(self.numbers[block] for block in blocks))

    def _init(self, section: _List, names: tuple[str, ...]) -> Arrangement:
        support: dict[int, int] = {}
        occupant: dict[int, int] = {}
        given: dict[Fact, int] = {}
        for item in section.items[1:]:
            fact = self._atom(item)
            given.setdefault(fact, item.line)
            predicate, block, other = fact
            if predicate not in ("on", "ontable", "holding"):
                continue
            place = other if predicate == "on" else TABLE if predicate == "ontable" else HAND
            if support.setdefault(block, place) != place:
                raise self._error(item.line, f"block {names[block]} is in two places at once.")
            if place != TABLE and occupant.setdefault(place, block) != block:
                other_name = names[occupant[place]]
                where = "in the hand" if place == HAND else f"on block {names[place]}"
                raise self._error(item.line, f"blocks {other_name} and {names[block]} are both {where}.")
        for block, name in enumerate(names):
            if block not in support:
                raise self._error(section.line, f"expected (on {name} …), (ontable {name}) or (holding {name}).")
        for block, name in enumerate(names):
            step, height = block, 0
            while step >= 0:
                step, height = support[step], height + 1
                if height > len(names):
                    raise self._error(section.line, f"block {name} is in a cycle of blocks on each other.")
            if step == HAND and support[block] != HAND:
                raise self._error(section.line, f"block {name} is above a block that is in the hand.")
        state = tuple(support[block] for block in range(len(names)))
        implied = facts(state)
        for fact, line in given.items():
            if fact not in implied:
                raise self._error(line, f"{_atom_text(fact, names)} contradicts the other atoms of :init.")
        for fact in implied:
            if fact not in given:
                raise self._error(
                    section.line, f"expected {_atom_text(fact, names)}, which the other atoms imply."
                )
        return state

    def _goal(self, section: _List, names: tuple[str, ...]) -> Goal:
        if len(section.items) != 2:
            raise self._error(section.line, "expected one condition in :goal.")
        condition = section.items[1]
        atoms: list[_Word | _List] = [condition]
        if isinstance(condition, _List) and condition.items and _is_word(condition.items[0], "and"):
            atoms = condition.items[1:]
        wanted = {self._atom(atom) for atom in atoms}
        if not wanted:
            raise self._error(section.line, "expected at least one atom in :goal.")
        if any(fact.predicate == "holding" for fact in wanted):
            raise self._error(section.line, "(holding …) is not supported in :goal; expected on, ontable, clear.")
        goal = Goal(
            tuple(sorted((f.block, f.other) for f in wanted if f.predicate == "on")),
            tuple(sorted(f.block for f in wanted if f.predicate == "ontable")),
            tuple(sorted(f.block for f in wanted if f.predicate == "clear")),
            any(f.predicate == "handempty" for f in wanted),
        )
        problem = contradiction(goal, names)
        if problem is not None:
            raise self._error(section.line, f"the goal is impossible: {problem}.")
        return goal

    def _error(self, line: int, problem: str) -> DataError:
        return DataError(self.path, problem, line)


def _is_word(item: _Word | _List, text: str) -> bool:
    return isinstance(item, _Word) and item.text == text


def _tokens(text: str) -> Iterator[tuple[int, str]]:
    line, start = 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", start, match.start())
        start = match.start()
        token = match.group()
        if not token.startswith(";"):
            yield line, token


def _atom_text(fact: Fact, names: Sequence[str]) -> str:
    return f"({' '.join([fact.predicate, *(names[b] for b in fact[1:] if b >= 0)])})"
