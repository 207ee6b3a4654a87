"""Expert that searches: it chooses its next command from the commands and replies so far, and from nothing else.

It visits receptacles in the order in which the first observation lists them, opens closed ones, takes the first
object of the wanted kind that it sees, treats it, and brings it to its destination. `planner` in contrast walks
straight to objects that nobody has seen, which a policy cannot imitate.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_NAME = r"(\w+ \d+)"
_LISTED = re.compile(rf"\ba {_NAME}")
_ARRIVED = re.compile(rf"You arrive at {_NAME}\.")
_OPEN = re.compile(rf"(?:On the {_NAME}|The {_NAME} is open\. In it), you see ([^.]*)\.")
_CLOSED = re.compile(rf"(?:The {_NAME} is closed|You close the {_NAME})\.")
_TAKEN = re.compile(rf"You pick up the {_NAME} from the {_NAME}\.")
_MOVED = re.compile(rf"You move the {_NAME} to the {_NAME}\.")
_TREATED = re.compile(rf"You (clean|heat|cool) the {_NAME} using the ")
_REFUSAL = "Nothing happens."

_SENTENCES = (
    (re.compile(r"(?:look at|examine the) (?P<thing>\w+) (?:under|with) the (?P<lamp>\w+)"), ""),
    (re.compile(r"(?:put two (?P<thing>\w+)|find two (?P<same>\w+) and put them) (?:in|on) (?P<place>\w+)"), ""),
    (re.compile(r"clean some (?P<thing>\w+) and put it (?:in|on) (?P<place>\w+)"), "clean"),
    (re.compile(r"heat some (?P<thing>\w+) and put it (?:in|on) (?P<place>\w+)"), "heat"),
    (re.compile(r"cool some (?P<thing>\w+) and put it (?:in|on) (?P<place>\w+)"), "cool"),
    (re.compile(r"put a clean (?P<thing>\w+) (?:in|on) (?P<place>\w+)"), "clean"),
    (re.compile(r"put a hot (?P<thing>\w+) (?:in|on) (?P<place>\w+)"), "heat"),
    (re.compile(r"put a cool (?P<thing>\w+) (?:in|on) (?P<place>\w+)"), "cool"),
    (re.compile(r"put (?:a|some) (?P<thing>\w+) (?:in|on) (?P<place>\w+)"), ""),
)
_APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_OPPOSITES = {"heat": "cool", "cool": "heat"}


class _Goal(NamedTuple):
    """Task as its sentence states it.

    Attributes:
        thing: Kind of the wanted object.
        place: Kind of its destination; empty if it is to be looked at.
        lamp: Kind of the lamp to look at it with; empty otherwise.
        treatment: "clean", "heat", "cool" or empty.
    """

    thing: str
    place: str
    lamp: str
    treatment: str


def next_command(observations: Sequence[str], commands: Sequence[str]) -> str | None:
    """Return the next command of a search, or None if nothing is left to try or the task is worded otherwise.

    Args:
        observations: The first observation, and the reply to every command.
        commands: The commands so far, which may be those of another agent.
    """
    goal = _read_goal(observations[0])
    if goal is None:
        return None
    known = _Knowledge(observations[0])
    for command, reply in zip(commands, observations[1:], strict=True):
        known.learn(command, reply)
    if known.held is not None and _kind(known.held) == goal.thing:
        return _use(known, goal, known.held)
    if known.held is not None:  # picked up by another agent
        return _at(known, known.origin, f"move {known.held} to {known.origin}")
    return _fetch(known, goal)


class _Knowledge:
    """What the replies have shown.

    Attributes:
        receptacles: All receptacles in the order of the first observation.
        contents: Objects of each receptacle that has been seen open, in the order of the reply.
        closed: Receptacles last seen closed.
        places: Location of each receptacle that was reached, as a number. Receptacles can share one.
        here: Location of the agent; None at the start.
        held: Object in the hand.
        origin: Receptacle from which that object was taken.
        treatments: (treatment, object) in effect.
        refused: Commands that were refused.
    """

    def __init__(self, introduction: str) -> None:
        self.receptacles = _LISTED.findall(introduction.partition("Your task is to:")[0])
        self.contents: dict[str, list[str]] = {}
        self.closed: set[str] = set()
        self.places: dict[str, int] = {}
        self.here: int | None = None
        self.held: str | None = None
        self.origin = ""
        self.treatments: set[tuple[str, str]] = set()
        self.refused: set[str] = set()

    def learn(self, command: str, reply: str) -> None:
        """Take a command and its reply into account."""
        if reply == _REFUSAL:
            self.refused.add(command)
            # A receptacle to which one cannot go is already here: several can share a location.
            receptacle = command.removeprefix("go to ")
            if self.here is not None and receptacle in self.receptacles:
                self.places.setdefault(receptacle, self.here)
            return
        if arrived := _ARRIVED.match(reply):
            self.here = self.places.setdefault(arrived[1], len(self.places))
        if opened := _OPEN.search(reply):
            receptacle = opened[1] or opened[2]
            self.contents[receptacle] = _LISTED.findall(opened[3])
            self.closed.discard(receptacle)
        if closed := _CLOSED.search(reply):
            self.closed.add(closed[1] or closed[2])
        if taken := _TAKEN.match(reply):
            self.held, self.origin = taken[1], taken[2]
            if taken[1] in self.contents.get(taken[2], ()):
                self.contents[taken[2]].remove(taken[1])
        if moved := _MOVED.match(reply):
            self.held = None
            self.contents.setdefault(moved[2], []).append(moved[1])
        if treated := _TREATED.match(reply):
            self.treatments.discard((_OPPOSITES.get(treated[1], ""), treated[2]))
            self.treatments.add((treated[1], treated[2]))

    def of_kind(self, kind: str) -> list[str]:
        """Return the receptacles of a kind."""
        return [receptacle for receptacle in self.receptacles if _kind(receptacle) == kind]

    def seen(self, kind: str) -> list[tuple[str, str]]:
        """Return (object, receptacle) for every object of a kind that has been seen and not moved since."""
        return [
            (thing, receptacle)
            for receptacle in self.receptacles
            for thing in self.contents.get(receptacle, ())
            if _kind(thing) == kind
        ]


def _use(known: _Knowledge, goal: _Goal, thing: str) -> str | None:
    """Return the next command with the wanted object in the hand."""
    if goal.lamp:
        lamps = known.seen(goal.lamp)
        return _at(known, lamps[0][1], f"use {lamps[0][0]}", inside=False) if lamps else _explore(known)
    if goal.treatment and (goal.treatment, thing) not in known.treatments:
        appliances = known.of_kind(_APPLIANCES[goal.treatment])
        if not appliances:
            return None
        return _at(known, appliances[0], f"{goal.treatment} {thing} with {appliances[0]}", inside=False)
    destinations = known.of_kind(goal.place)
    return _at(known, destinations[0], f"move {thing} to {destinations[0]}") if destinations else None


def _fetch(known: _Knowledge, goal: _Goal) -> str | None:
    """Return the next command with an empty hand."""
    delivered = known.of_kind(goal.place)[:1]
    for thing, receptacle in known.seen(goal.thing):
        is_done = receptacle in delivered and (not goal.treatment or (goal.treatment, thing) in known.treatments)
        command = f"take {thing} from {receptacle}"
        if not is_done and command not in known.refused:
            return _at(known, receptacle, command)
    return _explore(known)


def _explore(known: _Knowledge) -> str | None:
    """Return the command to look into the next receptacle."""
    for receptacle in known.receptacles:
        if receptacle not in known.contents:
            return _at(known, receptacle, f"examine {receptacle}")
    return None


def _at(known: _Knowledge, receptacle: str, command: str, *, inside: bool = True) -> str:
    """Return a command if it can be given now, or else the one that prepares it: going there, or opening.

    Args:
        known: What is known.
        receptacle: Receptacle where the command has to be given.
        command: The command.
        inside: True if the receptacle must be open.
    """
    if known.here is None or known.places.get(receptacle) != known.here:
        return f"go to {receptacle}"
    if inside and receptacle in known.closed:
        return f"open {receptacle}"
    if inside and receptacle not in known.contents:
        return f"examine {receptacle}"
    return command


def _read_goal(introduction: str) -> _Goal | None:
    sentence = introduction.rpartition("Your task is to: ")[2].strip().removesuffix(".")
    for pattern, treatment in _SENTENCES:
        found = pattern.fullmatch(sentence)
        if found is not None:
            parts = {"place": "", "lamp": "", **found.groupdict()}
            return _Goal(parts["thing"] or parts["same"], parts["place"], parts["lamp"], treatment)
    return None


def _kind(name: str) -> str:
    """Return the kind of a numbered name, such as "mug" of "mug 2"."""
    return name.rpartition(" ")[0]
