r"""Compilation of a game file's grammar: command templates and replies as functions.

The grammars of ALFWorld are written in TextWorld's `.twl` format, which embeds Tracery-like JSON:

* `action Name { template :: "take {o} from {r}"; feedback :: "#Name.feedback#"; grammar :: \"\"\"{…}\"\"\"; }`
  defines the texts of an action.
* A rule is a list of alternatives; the first one whose `condition` holds yields the text.
* In a text, `{o.name}` is the name of an action's parameter, `#rule#` is the text of another rule, and
  `[{o.indefinite + ' ' + o.name | inreceptacle(o:object, r:receptacle)}]` lists all `o` for which a condition
  holds.

A condition is a conjunction of facts, and its result depends on which of its variables are bound: the action
`look` binds a location, so its list contains the receptacles at that location; the introduction binds none, so its
list contains all receptacles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from .domain import Rules
from .model import NOTHING, Game, Piece, Render, State, Wording, members
from .pddl import Malformed

Roles: TypeAlias = Mapping[str, str]
"""Engine role of each bound variable ("object", "receptacle", "tool", "here", …)."""

Atom: TypeAlias = tuple[str, ...]
"""A predicate followed by, for each argument, `@role` of a bound variable or the type of an unbound one."""

MASK = "\x00"
"""Placeholder of the task sentence in a masked grammar."""

MAX_EXPANSIONS = 10_000
"""Maximum number of references to rules that are compiled in a grammar; ALFWorld's have 24."""

_SENTENCE = re.compile(r'("rhs"\s*:\s*"Your task is to: )((?:[^"\\]|\\.)*)"')
_ENTRY = re.compile(
    r"""\s*(?: action\s+(?P<action>\w+)\s*\{
          | (?P<key>\w+)\s*::\s*(?:\"\"\"(?P<long>.*?)\"\"\"|"(?P<short>(?:[^"\\]|\\.)*)")\s*;
          | (?P<end>\}) )""",
    re.DOTALL | re.VERBOSE,
)
_PART = re.compile(r"#(?P<rule>[^#\s]+)#|\[\{(?P<item>[^{}|]+)\|(?P<where>[^{}]+)\}\]|\{(?P<name>[^{}|]+)\}")
_ATOM = re.compile(r"\s*(\w+)\s*\(([^()]*)\)\s*")


def mask_sentence(grammar: str) -> tuple[str, str | None]:
    """Separate the task sentence, which is the only difference between the grammars of a release.

    Returns:
        The grammar with `MASK` in place of the sentence, and the sentence; or the unchanged grammar and None.
    """
    found = _SENTENCE.search(grammar)
    if found is None:
        return grammar, None
    try:
        sentence = json.loads(f'"{found[2]}"')
    except json.JSONDecodeError as error:
        raise Malformed(f"its task sentence is not a JSON string ({error})") from None
    return grammar[: found.start(2)] + MASK + grammar[found.end(2) :], sentence


def read_wording(grammar: str, rules: Rules) -> Wording:
    """Compile a (masked) grammar.

    Raises:
        Malformed: The text is not such a grammar, or uses a construct that the engine does not support.
    """
    templates, feedback, texts = _read_entries(grammar)
    compiler = _TextCompiler(texts)
    for name in rules.roles:
        if name not in templates:
            raise Malformed(f"its grammar has no command template for the action {name}")
    return Wording(
        {name: _template(name, templates[name], roles) for name, roles in rules.roles.items()},
        {name: compiler.text(feedback.get(name, ""), roles) for name, roles in rules.roles.items()},
        compiler.text("#intro#", {}),
    )


def task_line(grammar: str, sentence: str | None) -> str:
    """Return the paragraph that states the task: the rule `task` with the sentence in place of `MASK`."""
    text = _first_text(_read_entries(grammar)[2], "task")
    return text if sentence is None else text.replace(MASK, sentence)


@lru_cache(maxsize=16)
def _read_entries(grammar: str) -> tuple[dict[str, str], dict[str, str], dict[str, list[dict[str, Any]]]]:
    """Return the command templates and the feedback texts by action, and all rules, including those of actions."""
    templates: dict[str, str] = {}
    feedback: dict[str, str] = {}
    rules: dict[str, list[dict[str, Any]]] = {}
    action: str | None = None
    position, end = 0, len(grammar.rstrip())
    while position < end:
        entry = _ENTRY.match(grammar, position)
        if entry is None:
            line = grammar.count("\n", 0, position) + 1
            raise Malformed(f"its grammar cannot be parsed from line {line} on")
        position = entry.end()
        text = entry["long"] if entry["long"] is not None else entry["short"]
        if entry["action"]:
            action = entry["action"].lower()
        elif entry["end"]:
            action = None
        elif entry["key"] == "grammar":
            rules |= _read_rules(text)
        elif action and entry["key"] == "template":
            templates[action] = text
        elif action and entry["key"] == "feedback":
            feedback[action] = text
    return templates, feedback, rules


def _read_rules(text: str) -> dict[str, list[dict[str, Any]]]:
    try:
        # Strict JSON forbids control characters such as the mask in strings.
        rules = json.loads(text, strict=False)
    except json.JSONDecodeError as error:
        raise Malformed(f"a part of its grammar is not JSON ({error})") from None
    if not isinstance(rules, dict) or not all(isinstance(rule, list) for rule in rules.values()):
        raise Malformed("a part of its grammar is not a table of rules")
    return rules


def _first_text(rules: Mapping[str, list[dict[str, Any]]], name: str) -> str:
    """Return the text of the first alternative of a rule."""
    match rules.get(name):
        case [{"rhs": str(text)}, *_]:
            return text
    raise Malformed(f"its grammar has no rule {name} with a text")


def _template(action: str, text: str, roles: Roles) -> tuple[Piece, ...]:
    """Parse the command template of an action.

    A list over a variable that the action binds is replaced by that variable.
    """
    pieces: list[Piece] = []
    position = 0
    for part in _PART.finditer(text):
        if part.start() > position:
            pieces.append(text[position : part.start()])
        position = part.end()
        variable = (part["item"] or part["name"] or "").strip().partition(".")[0]
        if roles.get(variable) not in ("object", "receptacle", "tool"):
            raise Malformed(f"its grammar has a command template that the engine does not support: {text[:80]!r}")
        pieces.append((roles[variable],))
    if position < len(text):
        pieces.append(text[position:])
    for role in ("object", "receptacle", "tool"):
        # A lamp is switched on without naming the receptacle in which it is.
        if role in roles.values() and (role,) not in pieces and (action, role) != ("toggleobject", "receptacle"):
            raise Malformed(f"its grammar's command for the action {action} names no {role}: {text[:80]!r}")
    return tuple(pieces)


# ---------------------------------------------------------------------- names, conditions and lists in texts

_NAMES: dict[str, Render] = {
    "object": lambda game, state, thing, other: game.objects[thing],
    "tool": lambda game, state, thing, other: game.objects[other],
    "receptacle": lambda game, state, thing, other: game.receptacles[other],
    "here": lambda game, state, thing, other: game.locations[state.location],
}

Test: TypeAlias = Callable[[Game, State, int, int], object]
"""Function (game, state, object, other) whose value is truthy if a condition holds."""

_TESTS: dict[Atom, Test] = {
    ("holdsany", "agent"): lambda game, state, thing, other: state.held != NOTHING,
    ("openable", "@receptacle"): lambda game, state, thing, other: game.openable >> other & 1,
    ("opened", "@receptacle"): lambda game, state, thing, other: state.opened >> other & 1,
    ("isreceptacleobject", "@object"): lambda game, state, thing, other: game.containers >> thing & 1,
    ("pickupable", "@object"): lambda game, state, thing, other: game.pickupable >> thing & 1,
    ("cleanable", "@object"): lambda game, state, thing, other: game.cleanable >> thing & 1,
    ("heatable", "@object"): lambda game, state, thing, other: game.heatable >> thing & 1,
    ("coolable", "@object"): lambda game, state, thing, other: game.coolable >> thing & 1,
    ("sliceable", "@object"): lambda game, state, thing, other: game.sliceable >> thing & 1,
    ("toggleable", "@object"): lambda game, state, thing, other: game.toggleable >> thing & 1,
    ("isclean", "@object"): lambda game, state, thing, other: state.clean >> thing & 1,
    ("ishot", "@object"): lambda game, state, thing, other: state.hot >> thing & 1,
    ("iscool", "@object"): lambda game, state, thing, other: state.cool >> thing & 1,
    ("issliced", "@object"): lambda game, state, thing, other: state.sliced >> thing & 1,
    ("istoggled", "@object"): lambda game, state, thing, other: state.toggled >> thing & 1,
    # In the original, a negated fact holds only after an action made it false, and no action switches a lamp off.
    ("not_istoggled", "@object"): lambda game, state, thing, other: False,
}

Query: TypeAlias = Callable[[Game, State, int, int], list[str]]
"""Function (game, state, object, other) → names for which a condition holds, in the original's order."""


def _names_of(game: Game, bits: int) -> list[str]:
    return [game.objects[thing] for thing in members(bits)]


def _held(game: Game, state: State, thing: int, other: int) -> list[str]:
    return [] if state.held == NOTHING else [game.objects[state.held]]


def _contents(game: Game, state: State, thing: int, other: int) -> list[str]:
    return _names_of(game, game.contents(state, other))


def _contained(game: Game, state: State, thing: int, other: int) -> list[str]:
    return _names_of(game, game.contained.get(thing, 0))


def _receptacles_here(game: Game, state: State, thing: int, other: int) -> list[str]:
    return [game.receptacles[receptacle] for receptacle in game.receptacles_at[state.location]]


def _all_receptacles(game: Game, state: State, thing: int, other: int) -> list[str]:
    return [name for name, location in zip(game.receptacles, game.location_of, strict=True) if location >= 0]


def _removed_objects(game: Game, state: State, thing: int, other: int) -> list[str]:
    """Return the objects at this location that were taken out of a receptacle here, once per receptacle."""
    if not state.taken:
        return []
    near = state.near >> state.location * game.width & game.all_objects
    taken = [state.taken >> receptacle * game.width & near for receptacle in game.receptacles_at[state.location]]
    return [game.objects[thing] for thing in members(near) for bits in taken if bits >> thing & 1]


def _queries() -> dict[frozenset[Atom], Query]:
    table: dict[frozenset[Atom], Query] = {
        frozenset({("holds", "agent", "object")}): _held,
        frozenset({("inreceptacle", "object", "@receptacle")}): _contents,
        frozenset({("inreceptacleobject", "object", "@object")}): _contained,
        frozenset({("receptacleatlocation", "receptacle", "location")}): _all_receptacles,
        frozenset({("receptacleatlocation", "receptacle", "@here")}): _receptacles_here,
    }
    for place in ("location", "@here"):  # Bound by the fact atlocation(agent, location), or by the action.
        here = {("atlocation", "agent", place), ("receptacleatlocation", "receptacle", place)}
        removed = {("objectatlocation", "object", place), ("not_inreceptacle", "object", "receptacle")}
        table[frozenset(here)] = _receptacles_here
        table[frozenset(here | removed)] = _removed_objects
    return table


_QUERIES = _queries()


class _TextCompiler:
    """Compiler of texts and the rules that they refer to.

    Rules are compiled on demand, because some unused rules of the original's grammars are broken.
    """

    def __init__(self, rules: Mapping[str, list[dict[str, Any]]]) -> None:
        self._rules = rules
        self._expansions = 0
        self._separator = self._literal("list_separator", ", ")
        self._last_separator = self._literal("list_last_separator", ", and ")
        self._empty = self._literal("list_empty", "nothing")

    def text(self, text: str, roles: Roles) -> Render:
        """Compile a text with the bound variables `roles`."""
        text = text.lstrip()  # As in the original, for the text of every rule.
        parts: list[str | Render] = []
        position = 0
        for part in _PART.finditer(text):
            if part.start() > position:
                parts.append(text[position : part.start()])
            position = part.end()
            if part["rule"]:
                parts.append(self._rule(part["rule"], roles))
            elif part["item"]:
                parts.append(self._list(part["item"], part["where"], roles))
            else:
                parts.append(self._name(part["name"], roles))
        if position < len(text):
            parts.append(text[position:])
        return _concatenate(parts)

    def _literal(self, rule: str, default: str) -> str:
        """Return the text of the first alternative of a rule, uncompiled."""
        return _first_text(self._rules, rule) if self._rules.get(rule) else default

    def _rule(self, name: str, roles: Roles) -> Render:
        """Compile the alternatives of a rule, up to the first one without a condition."""
        if name == "task":
            return lambda game, state, thing, other: game.task_line
        if name not in self._rules:
            raise Malformed(f"its grammar refers to a rule {name}, which it does not have")
        self._expansions += 1
        if self._expansions > MAX_EXPANSIONS:  # Rules that refer to each other twice grow exponentially.
            raise Malformed(f"its grammar refers to rules more than {MAX_EXPANSIONS} times")
        alternatives: list[tuple[Test | None, Render]] = []
        for alternative in self._rules[name]:
            if not isinstance(alternative, dict) or not isinstance(alternative.get("rhs"), str):
                raise Malformed(f"its grammar's rule {name} has an alternative without a text")
            condition = alternative.get("condition")
            test = self._condition(str(condition), roles) if condition else None
            alternatives.append((test, self.text(alternative["rhs"], roles)))
            if test is None:
                break
        if len(alternatives) == 1 and alternatives[0][0] is None:
            return alternatives[0][1]

        def choose(game: Game, state: State, thing: int, other: int) -> str:
            for test, render in alternatives:
                if test is None or test(game, state, thing, other):
                    return render(game, state, thing, other)
            return ""

        return choose

    def _name(self, expression: str, roles: Roles) -> Render:
        """Compile the name of a bound variable."""
        variable, _, attribute = expression.strip().partition(".")
        render = _NAMES.get(roles.get(variable, ""))
        if render is None or attribute not in ("", "name"):
            raise Malformed(f"its grammar uses the name {{{expression}}}, which the engine does not support there")
        return render

    def _list(self, item: str, where: str, roles: Roles) -> Render:
        """Compile a list of all objects for which the condition `where` holds."""
        prefix, suffix = self._item(item)
        query = self._query(_atoms(where, roles), where)
        separator, last, empty = self._separator, self._last_separator, self._empty

        def listing(game: Game, state: State, thing: int, other: int) -> str:
            names = [f"{prefix}{name}{suffix}" for name in query(game, state, thing, other)]
            if not names:
                return empty
            if len(names) == 1:
                return names[0]
            return separator.join(names[:-1]) + last + names[-1]

        return listing

    def _item(self, item: str) -> tuple[str, str]:
        """Return the text before and after the name of a listed object."""
        item = item.strip()
        if item.startswith("#") and item.endswith("#"):
            words = re.split(r"(\{[^{}]*\})", _first_text(self._rules, item[1:-1]))
            parts = [word[1:-1] if word[:1] == "{" else repr(word) for word in words if word]
        else:
            parts = [part.strip() for part in item.split("+")]
        sides = ["", ""]
        named = 0
        for part in parts:
            if part.startswith(("'", '"')):
                sides[named] += part[1:-1]
            elif re.fullmatch(r"\w+\.indefinite", part):
                sides[named] += "a"  # The original uses the article "a" for every name.
            elif re.fullmatch(r"\w+(\.name( or \w+\.id)?)?", part) and not named:
                named = 1
            else:
                raise Malformed(f"its grammar lists {item!r}, which the engine does not support")
        return sides[0], sides[1]

    def _condition(self, text: str, roles: Roles) -> Test:
        """Compile the condition of an alternative."""
        atoms = _atoms(text, roles)
        tests = [_TESTS[atom] for atom in atoms if atom in _TESTS]
        rest = frozenset(atom for atom in atoms if atom not in _TESTS)
        if rest:
            tests.append(self._query(rest, text))
        if len(tests) == 1:
            return tests[0]
        return lambda game, state, thing, other: all(test(game, state, thing, other) for test in tests)

    def _query(self, atoms: frozenset[Atom], text: str) -> Query:
        """Return the implementation of a query, which `text` identifies in the error message."""
        query = _QUERIES.get(atoms)
        if query is None:
            raise Malformed(
                f"its grammar has the query {text.strip()[:120]!r}, which the engine does not support there"
            )
        return query


def _atoms(condition: str, roles: Roles) -> frozenset[Atom]:
    """Return the facts of a condition, with each variable replaced by its role or type."""
    atoms: set[Atom] = set()
    for text in condition.split("&"):
        match = _ATOM.fullmatch(text)
        if match is None:
            raise Malformed(
                f"its grammar has a condition {condition.strip()[:120]!r}, which is not a list of facts"
            )
        arguments = []
        for argument in match[2].split(","):
            variable, _, kind = (part.strip() for part in argument.partition(":"))
            role = roles.get(variable)
            arguments.append(kind if role in (None, "agent") else f"@{role}")
        atoms.add((match[1].lower(), *arguments))
    return frozenset(atoms)


def _concatenate(parts: list[str | Render]) -> Render:
    """Combine literals and functions into one function."""
    match parts:
        case []:
            return lambda game, state, thing, other: ""
        case [str(only)]:
            return lambda game, state, thing, other: only
        case [single] if not isinstance(single, str):
            return single

    def join(game: Game, state: State, thing: int, other: int) -> str:
        return "".join([part if isinstance(part, str) else part(game, state, thing, other) for part in parts])

    return join
