"""Compilation of game files to `Game` objects, and the records in which compiled games are cached.

A game file is one JSON object with the fields `pddl_domain`, `grammar`, `pddl_problem`, `solvable` and
`walkthrough`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from .domain import read_rules
from .goal import read_goal
from .grammar import mask_sentence, read_wording, task_line
from .model import NOTHING, Dialect, Game, Goal, State
from .pddl import Malformed, Problem, read_problem

_FIELDS = {"pddl_domain": str, "grammar": str, "pddl_problem": str, "walkthrough": list}


def read_game(content: bytes | str) -> Game:
    """Compile a game file.

    Raises:
        Malformed: The file is not playable, or has `"solvable": false`. The message is a clause about "it".
    """
    try:
        return compile_game(json.loads(content))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"it is not JSON ({error})") from None
    except RecursionError:
        raise Malformed("it is nested too deeply") from None


def compile_game(data: object) -> Game:
    """Compile the parsed JSON of a game file; raises as `read_game` does."""
    if not isinstance(data, Mapping):
        raise Malformed("it is JSON, but not an object with the fields of a game")
    if data.get("solvable") is False:
        raise Malformed("it is marked unsolvable")
    for name, kind in _FIELDS.items():
        if name not in data:
            raise Malformed(f"it has no field {name}")
        if not isinstance(data[name], kind):
            raise Malformed(f"its field {name} is not a {'list' if kind is list else 'text'}")
    walkthrough = data["walkthrough"]
    if not all(isinstance(command, str) for command in walkthrough):
        raise Malformed("its walkthrough is not a list of commands")
    grammar, sentence = mask_sentence(data["grammar"])
    dialect = read_dialect(data["pddl_domain"], grammar)
    domain, _ = read_rules(data["pddl_domain"])
    problem = read_problem(data["pddl_problem"], domain)
    return _compile(problem, dialect, task_line(grammar, sentence), tuple(walkthrough))


@lru_cache(maxsize=16)
def read_dialect(domain: str, grammar: str) -> Dialect:
    """Compile a domain and a masked grammar, once for all files that share them."""
    _, rules = read_rules(domain)
    return Dialect(domain, grammar, rules, read_wording(grammar, rules))


def display_names(ids: Iterable[str]) -> dict[str, str]:
    """Return the display name of each id, as ALFWorld's demangler assigns them.

    For example, `drawer_bar__minus_00_dot_51…` becomes `drawer 3`. Ids with the same base are numbered downward in
    sorted order: the first of three drawers is `drawer 3`.
    """
    ordered = sorted(ids)
    bases: dict[str, str] = {}
    left: dict[str, int] = {}
    for name in ordered:
        head, bar, _ = name.partition("_bar_")
        base = bases[name] = head + "basin" if bar and "basin" in name else head
        left[base] = left.get(base, 0) + bool(bar)
    names: dict[str, str] = {}
    for name in ordered:
        base = bases[name]
        if "_bar_" in name:
            names[name] = f"{base} {left[base]}"
            left[base] -= 1
        else:
            names[name] = f"{base} "
    return names


def _compile(problem: Problem, dialect: Dialect, line: str, walkthrough: tuple[str, ...]) -> Game:
    kinds = problem.types
    mentioned = {name for rows in problem.by_predicate.values() for row in rows for name in row}
    names = display_names(mentioned)

    # Number only objects that can be listed or acted upon; wall pictures, for example, never appear in a text.
    listed = {thing for thing, _ in problem.pairs("inreceptacle")} | problem.members("sliceable")
    for pair in problem.pairs("inreceptacleobject"):
        listed.update(pair)
    for _, thing in problem.pairs("holds"):
        listed.add(thing)
    things = sorted(listed)
    receptacles = sorted(name for name in mentioned if kinds[name] == "receptacle")
    thing_of = {thing: number for number, thing in enumerate(things)}
    receptacle_of = {receptacle: number for number, receptacle in enumerate(receptacles)}
    width = len(things)

    place, start, held = _initial_places(problem)
    locations = sorted({*place.values(), start})
    location_of = {location: number for number, location in enumerate(locations)}

    def objects(predicate: str) -> int:
        return _bits(thing_of, problem.members(predicate))

    types = _bits_by_type(thing_of, problem.pairs("objecttype"))
    receptacle_types = _bits_by_type(receptacle_of, problem.pairs("receptacletype"))
    accepted: dict[str, int] = {}
    for receptacle_type, kind in problem.pairs("cancontain"):
        accepted[receptacle_type] = accepted.get(receptacle_type, 0) | types.get(kind, 0)
    accepts = [0] * len(receptacles)
    for receptacle, kind in problem.pairs("receptacletype"):
        accepts[receptacle_of[receptacle]] |= accepted.get(kind, 0)

    def of_types(action: str, table: dict[str, int]) -> int:
        bits = 0
        for kind in dialect.rules.types.get(action, ()):
            bits |= table.get(kind, 0)
        return bits

    contained: dict[int, int] = {}
    for inner, outer in problem.pairs("inreceptacleobject"):
        contained[thing_of[outer]] = contained.get(thing_of[outer], 0) | 1 << thing_of[inner]
    inside = near = 0
    for thing, receptacle in problem.pairs("inreceptacle"):
        inside |= 1 << receptacle_of[receptacle] * width + thing_of[thing]
    for thing, location in problem.pairs("objectatlocation"):
        if thing in thing_of and location in location_of:
            near |= 1 << location_of[location] * width + thing_of[thing]

    traits = ("pickupable", "cleanable", "heatable", "coolable", "sliceable", "toggleable")
    static: dict[str, Any] = {name: objects(name) for name in traits}
    return Game(
        dialect=dialect,
        task_line=line,
        walkthrough=walkthrough,
        objects=tuple(names[thing] for thing in things),
        receptacles=tuple(names[receptacle] for receptacle in receptacles),
        locations=tuple(names[location] for location in locations),
        location_of=tuple(location_of[place[name]] if name in place else -1 for name in receptacles),
        openable=_bits(receptacle_of, problem.members("openable")),
        cleaners=of_types("cleanobject", receptacle_types),
        heaters=of_types("heatobject", receptacle_types),
        coolers=of_types("coolobject", receptacle_types),
        accepts=tuple(accepts),
        containers=objects("isreceptacleobject"),
        knives=of_types("sliceobject", types),
        contained=contained,
        goal=read_goal(problem.goal, types, receptacle_types, static),
        start=State(
            location=location_of[start],
            held=NOTHING if held is None else thing_of[held],
            inside=inside,
            near=near,
            taken=0,
            opened=_bits(receptacle_of, problem.members("opened")),
            clean=objects("isclean"),
            hot=objects("ishot"),
            cool=objects("iscool"),
            toggled=objects("istoggled"),
            sliced=objects("issliced"),
        ),
        **static,
    )


def _initial_places(problem: Problem) -> tuple[dict[str, str], str, str | None]:
    """Return the location of each receptacle, that of the agent, and the object that it holds, if any.

    Raises:
        Malformed: One of them is not unique, or the agent is nowhere.
    """
    place: dict[str, str] = {}
    for receptacle, location in problem.pairs("receptacleatlocation"):
        if place.setdefault(receptacle, location) != location:
            raise Malformed(f"its receptacle {receptacle} is at two locations")
    starts = [location for _, location in problem.pairs("atlocation")]
    if len(starts) != 1:
        raise Malformed(f"its :init puts the agent at {len(starts)} locations instead of one")
    held = [thing for _, thing in problem.pairs("holds")]
    if len(held) > 1:
        raise Malformed(f"its :init gives the agent {len(held)} objects to hold instead of at most one")
    return place, starts[0], held[0] if held else None


def _bits_by_type(number_of: Mapping[str, int], typed: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return the bits of the numbered names of each type, from pairs of name and type."""
    bits: dict[str, int] = {}
    for name, kind in typed:
        if name in number_of:
            bits[kind] = bits.get(kind, 0) | 1 << number_of[name]
    return bits


def _bits(number_of: Mapping[str, int], names: Iterable[str]) -> int:
    bits = 0
    for name in names:
        if name in number_of:
            bits |= 1 << number_of[name]
    return bits


def to_record(game: Game) -> list[Any]:
    """Return a game as JSON values, without its dialect, for the cache of compiled games."""
    fields = [getattr(game, name) for name in _RECORDED]
    return [*fields, list(game.contained.items()), list(game.goal), [hex(part) for part in game.start]]


def from_record(record: list[Any], dialect: Dialect) -> Game:
    """Rebuild a game from its record and its dialect.

    Raises:
        ValueError, TypeError, KeyError: The value is not a record that `to_record` returned.
    """
    *fields, contained, (kind, objects, receptacles, count, flags, lamps), start = record
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in zip(_RECORDED, fields, strict=True)
    }
    return Game(
        dialect=dialect,
        contained=dict(contained),
        goal=Goal(kind, objects, receptacles, count, tuple(flags), lamps),
        start=State(*[int(part, 16) for part in start]),
        **values,
    )


_RECORDED = (
    "task_line",
    "walkthrough",
    "objects",
    "receptacles",
    "locations",
    "location_of",
    "openable",
    "cleaners",
    "heaters",
    "coolers",
    "accepts",
    "pickupable",
    "cleanable",
    "heatable",
    "coolable",
    "sliceable",
    "toggleable",
    "containers",
    "knives",
)
