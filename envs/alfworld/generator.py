"""Seeded generation of homes in the format of the original's game files.

A floor plan is a furnished room, determined by its number; a trial places objects in it and sets a task. The
splits mirror the original's: one floor plan in five is reserved for `valid_unseen`, and `train` and `valid_seen`
share the remaining floor plans but no trial. A task id is `<split>/<index>`.
"""

from __future__ import annotations

import random
from copy import deepcopy
from functools import lru_cache
from typing import Any, NamedTuple

from ..seeding import stable_seed
from ..tasks import ANY, GeneratedTasks
from .domain import household_text
from .gamefile import compile_game
from .grammar import MASK, mask_sentence
from .homes import ROOMS, THINGS, Furniture, Thing, receptacle_type
from .model import TASK_TYPES, Game
from .planner import plan
from .rules import format_command

FLOOR_PLANS = 400
EASY_FURNITURE = 8
"""Maximum number of pieces of furniture in an easy home."""
EASY_PER_KIND = 2
"""Maximum number of pieces of one kind in an easy home."""
EASY_TYPES = ("pick_and_place_simple", "look_at_obj_in_light")
"""Types of task in easy homes: nothing is cleaned, heated or cooled, and one object is enough."""


THING_COUNTS = (1, 1, 1, 2, 2, 3)
"""Numbers of objects of one kind in a home, all equally likely."""


class HomeTasks(GeneratedTasks):
    """Task ids `<split>/0`, `<split>/1`, … of generated games; None as the split stands for games of all three."""

    SPLITS = ("train", "valid_seen", "valid_unseen")


def parse_task(task: str) -> tuple[str, int]:
    """Return the split (or `ANY`) and the index of a generated game's task id.

    Raises:
        ConfigurationError: The text is not such a task id.
    """
    split = task.rpartition("/")[0]
    return split, HomeTasks(None if split == ANY else split).index(task)


def generate_game(task: str, easy: bool = False) -> Game:
    """Return the compiled game of a generated task.

    Args:
        task: Task id.
        easy: Generate an easy home: at most `EASY_FURNITURE` pieces of furniture, and tasks of `EASY_TYPES`.
    """
    return _generate(*parse_task(task), easy)[1]


def generate_file(task: str, easy: bool = False) -> dict[str, Any]:
    """Return the game file of a generated task as a dictionary (`pddl_domain`, `grammar`, `pddl_problem`, …)."""
    return deepcopy(_generate(*parse_task(task), easy)[0])


class _Home(NamedTuple):
    """A floor plan.

    Attributes:
        room: Kind of room.
        furniture: (id, kind, location) of each piece of furniture.
        start: Initial location of the agent.
    """

    room: str
    furniture: list[tuple[str, str, str]]
    start: str


class _Trial(NamedTuple):
    """Objects and task of a game.

    Attributes:
        things: (id, kind, receptacle id) of each object.
        sentence: Task in words.
        goal: Task in PDDL.
    """

    things: list[tuple[str, str, str]]
    sentence: str
    goal: str


@lru_cache(maxsize=64)
def _generate(split: str, index: int, easy: bool) -> tuple[dict[str, Any], Game]:
    """Return the file and the compiled game of the first solvable trial of the task's seed."""
    rng = random.Random(stable_seed("alfworld easy" if easy else "alfworld", split, index))
    task_type = rng.choice(list(EASY_TYPES if easy else TASK_TYPES))
    while True:
        number = rng.randrange(FLOOR_PLANS)
        trial_seed = rng.getrandbits(64)
        if split not in (ANY, _split_of(number, trial_seed)):
            continue
        home = _draw_floor_plan(number)
        if easy:
            home = _thin_out(home, number)
        trial = _draw_trial(home, task_type, random.Random(trial_seed))
        if trial is None:
            continue
        content = {
            "pddl_domain": household_text("pddl"),
            "grammar": _grammar().replace(MASK, trial.sentence),
            "pddl_problem": _problem_text(f"plan_{number}_trial_{trial_seed:016x}", home, trial),
            "solvable": True,
            "walkthrough": [],
        }
        game = compile_game(content)
        steps = plan(game, game.start)
        if steps:
            content["walkthrough"] = [format_command(game, *step) for step in steps]
            return content, compile_game(content)


def _split_of(floor_plan: int, trial_seed: int) -> str:
    """Return the only split to which a trial belongs."""
    if stable_seed("alfworld floor plan", floor_plan) % 5 == 0:
        return "valid_unseen"
    return "valid_seen" if trial_seed % 10 == 0 else "train"


@lru_cache(maxsize=1)
def _grammar() -> str:
    """Return the packaged grammar with the task sentence masked."""
    return mask_sentence(household_text("twl"))[0]


# ---------------------------------------------------------------------- floor plans


def _draw_floor_plan(number: int) -> _Home:
    rng = random.Random(stable_seed("alfworld furniture", number))
    room = list(ROOMS)[number % len(ROOMS)]
    places: dict[str, list[str]] = {}
    furniture: list[tuple[str, str, str]] = []
    taken: set[str] = set()
    for kind, traits in ROOMS[room].items():
        for _ in range(rng.randint(traits.min_count, traits.max_count)):
            near = places.get(traits.beside)
            if near and rng.random() < 0.5:
                place = rng.choice(near)
            else:
                place = _draw_location(rng, taken)
                places.setdefault(kind, []).append(place)
            furniture.append((_draw_id(rng, taken, kind, traits.part), kind, place))
    return _Home(room, furniture, _draw_location(rng, taken))


def _thin_out(home: _Home, number: int) -> _Home:
    """Return a floor plan with a random part of its furniture, in the original order."""
    rng = random.Random(stable_seed("alfworld easy furniture", number))
    kept: list[tuple[str, str, str]] = []
    for piece in rng.sample(home.furniture, len(home.furniture)):
        if len(kept) < EASY_FURNITURE and [kind for _, kind, _ in kept].count(piece[1]) < EASY_PER_KIND:
            kept.append(piece)
    return home._replace(furniture=[piece for piece in home.furniture if piece in kept])


def _draw_location(rng: random.Random, taken: set[str]) -> str:
    """Draw the unused id of a location: two coordinates, a heading and a camera tilt."""
    while True:
        x, z = rng.randint(-9, 9), rng.randint(-9, 9)
        tilt = rng.choice((0, 15, 30, 45, 60))
        name = "_bar_".join(
            ("loc", _format_coordinate(x), _format_coordinate(z), str(rng.randrange(4)), str(tilt))
        )
        if name not in taken:
            taken.add(name)
            return name


def _format_coordinate(value: int) -> str:
    return f"_minus_{-value}" if value < 0 else str(value)


def _draw_id(rng: random.Random, taken: set[str], kind: str, part: str = "") -> str:
    """Draw an unused id in the simulator's format: kind, three coordinates in meters, and optionally a part."""
    while True:
        centimeters = (rng.randint(-300, 300), rng.randint(1, 200), rng.randint(-300, 300))
        coordinates = []
        for value in centimeters:
            sign = "_minus_" if value < 0 else "_plus_" if value else ""
            coordinates.append(f"{sign}{abs(value) // 100:02d}_dot_{abs(value) % 100:02d}")
        name = "_bar_".join((kind, *coordinates, *([part] if part else [])))
        if name not in taken:
            taken.add(name)
            return name


# ---------------------------------------------------------------------- trials


def _draw_trial(home: _Home, task_type: str, rng: random.Random) -> _Trial | None:
    """Draw objects and a task of the given type; return None if the home does not support such a task."""
    stock = THINGS[home.room]
    kinds = {kind for _, kind, _ in home.furniture}
    placeable = {name: thing for name, thing in stock.items() if kinds & set(thing.places)}
    things: list[tuple[str, str, str]] = []
    taken: set[str] = set()
    for name in rng.sample(sorted(placeable), rng.randint(len(placeable) // 2, len(placeable))):
        for _ in range(rng.choice(THING_COUNTS)):
            where = rng.choice([piece for piece, kind, _ in home.furniture if kind in placeable[name].places])
            things.append((_draw_id(rng, taken, name), name, where))

    present = sorted({name for _, name, _ in things})
    wanted = [name for name in present if not stock[name].lamp and _supports_task(stock[name], task_type)]
    lamps = [name for name in present if stock[name].lamp]
    if not wanted or (task_type == "look_at_obj_in_light" and not lamps):
        return None
    name = rng.choice(wanted)
    if task_type == "look_at_obj_in_light":
        lamp = rng.choice(lamps)
        return _Trial(things, _draw_sentence(rng, task_type, name, lamp), _light_goal(name, lamp))
    targets = sorted(kinds & set(stock[name].places))
    target = rng.choice(targets)
    sentence = _draw_sentence(rng, task_type, name, receptacle_type(target).removesuffix("Type"))
    return _Trial(things, sentence, _place_goal(task_type, name, receptacle_type(target)))


def _supports_task(thing: Thing, task_type: str) -> bool:
    match task_type.split("_")[1]:
        case "clean":
            return thing.cleanable
        case "heat":
            return thing.heatable
        case "cool":
            return thing.coolable
    return True


SENTENCES = {
    "pick_and_place_simple": ("put a {o} in {r}.", "put some {o} on {r}."),
    "look_at_obj_in_light": ("look at {o} under the {r}.", "examine the {o} with the {r}."),
    "pick_clean_then_place_in_recep": ("put a clean {o} in {r}.", "clean some {o} and put it in {r}."),
    "pick_heat_then_place_in_recep": ("put a hot {o} in {r}.", "heat some {o} and put it in {r}."),
    "pick_cool_then_place_in_recep": ("put a cool {o} in {r}.", "cool some {o} and put it in {r}."),
    "pick_two_obj_and_place": ("put two {o} in {r}.", "find two {o} and put them in {r}."),
}
"""Task sentences by type of task, with the kinds of object and of receptacle or lamp left open."""


def _draw_sentence(rng: random.Random, task_type: str, thing: str, receptacle: str) -> str:
    return rng.choice(SENTENCES[task_type]).format(o=thing.lower(), r=receptacle.lower())


def _place_goal(task_type: str, thing: str, receptacle: str) -> str:
    state = {
        "clean": "(cleanable ?o) (isClean ?o)",
        "heat": "(heatable ?o) (isHot ?o)",
        "cool": "(coolable ?o) (isCool ?o)",
    }.get(task_type.split("_")[1], "")
    first = f"(objectType ?o {thing}Type) (inReceptacle ?o ?r) (receptacleType ?r {receptacle}) {state}"
    if task_type == "pick_two_obj_and_place":
        second = f"(objectType ?p {thing}Type) (inReceptacle ?p ?r) (receptacleType ?r {receptacle})"
        first += f"(exists (?p - object) (and (not (= ?o ?p)) {second}))"
    return f"(and (exists (?r - receptacle) (exists (?o - object) (and {first}))))"


def _light_goal(thing: str, lamp: str) -> str:
    at_lamp = "(receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?b ?r)"
    return (
        "(and (exists (?b - object ?r - receptacle ?a - agent ?l - location)"
        f" (and (objectType ?b {lamp}Type) (toggleable ?b) (isToggled ?b) {at_lamp}))"
        f" (exists (?o - object ?a - agent) (and (objectType ?o {thing}Type) (holds ?a ?o))))"
    )


# ---------------------------------------------------------------------- PDDL


def _problem_text(name: str, home: _Home, trial: _Trial) -> str:
    kinds: dict[str, Furniture] = ROOMS[home.room]
    stock = THINGS[home.room]
    place_of = {piece: place for piece, _, place in home.furniture}
    kind_of = {piece: kind for piece, kind, _ in home.furniture}

    receptacle_types = {receptacle_type(kind) for room in ROOMS.values() for kind in room}
    object_types = {f"{thing}Type" for room in THINGS.values() for thing in room} | {"SinkType"}
    objects = ["agent1 - agent"]
    objects += [f"{kind} - rtype" for kind in sorted(receptacle_types)]
    objects += [f"{kind} - otype" for kind in sorted(object_types)]
    objects += [f"{thing} - object" for thing, _, _ in trial.things]
    objects += [f"{piece} - receptacle" for piece in place_of]
    objects += [f"{place} - location" for place in sorted({*place_of.values(), home.start})]

    facts = [f"atLocation agent1 {home.start}"]
    for piece, kind, place in home.furniture:
        facts += [f"receptacleType {piece} {receptacle_type(kind)}", f"receptacleAtLocation {piece} {place}"]
        if kinds[kind].openable:
            facts.append(f"openable {piece}")
    for kind in kinds:
        facts += [
            f"canContain {receptacle_type(kind)} {thing}Type"
            for thing, traits in stock.items()
            if kind in traits.places and not traits.lamp
        ]
    for thing, kind, where in trial.things:
        traits = stock[kind]
        facts += [
            f"objectType {thing} {kind}Type",
            f"inReceptacle {thing} {where}",
            f"objectAtLocation {thing} {place_of[where]}",
        ]
        facts.append(f"toggleable {thing}" if traits.lamp else f"pickupable {thing}")
        for trait in ("cleanable", "heatable", "coolable", "sliceable"):
            if getattr(traits, trait):
                facts.append(f"{trait} {thing}")
        if traits.container:
            facts.append(f"isReceptacleObject {thing}")
        if traits.coolable and kind_of[where] == "Fridge":
            facts.append(f"isCool {thing}")
    return "\n".join(
        (
            f"(define (problem {name})",
            "(:domain alfred)",
            "(:objects",
            *(f"    {line}" for line in objects),
            ")",
            "(:init",
            *(f"    ({fact})" for fact in facts),
            ")",
            f"(:goal {trial.goal})",
            ")",
        )
    )
