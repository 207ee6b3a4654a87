"""The rules of the household: what a command means, when it is admissible and what it does. Pure functions.

`understand` → `legal` → `effect` → `reply` is one step of the original's raw engine, which has no end: it goes on
after the game is won, and a won game can be un-won. `play` does the four in a row.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from .model import NOTHING, Action, Game, Piece, State, members

REFUSAL = "Nothing happens."
"""The reply to whatever is not admissible."""

MODIFYING = frozenset(
    {
        "pickupobject",
        "putobject",
        "openobject",
        "closeobject",
        "toggleobject",
        "cleanobject",
        "heatobject",
        "coolobject",
        "sliceobject",
    }
)
"""Actions that change the world, as T-STAR's historical compatibility counts them. Walking is not among them."""


class Turn(NamedTuple):
    """What one command did: the state after it, the text shown, and the action, or None where it was refused."""

    state: State
    text: str
    action: Action | None


def play(game: Game, state: State, command: str) -> Turn:
    """One step of the raw engine."""
    action = understand(game, command)
    if action is None or not legal(game, state, action):
        return Turn(state, REFUSAL, None)
    state = effect(game, state, action)
    return Turn(state, reply(game, state, action), action)


def introduction(game: Game) -> str:
    """The first observation."""
    return game.dialect.wording.intro(game, game.start, 0, 0)


def reply(game: Game, state: State, action: Action) -> str:
    """The text for an action, given the state *after* it."""
    return game.dialect.wording.replies[action.verb](game, state, action.object, action.other)


def won(game: Game, state: State) -> bool:
    """Whether the goal holds now. It is not latched."""
    kind, objects, receptacles, number, flags, lamps = game.goal
    if kind == "light":
        if state.held == NOTHING or not objects >> state.held & 1:
            return False
        burning = state.toggled & lamps
        return burning != 0 and any(game.contents(state, there) & burning for there in game.here[state.location])
    for flag in flags:
        objects &= getattr(state, flag)
    if not objects:
        return False
    inside, width = state.inside, game.width
    for receptacle in members(receptacles):
        found = inside >> receptacle * width & objects
        if found.bit_count() >= number:
            return True
    return False


# ---------------------------------------------------------------------- commands


def understand(game: Game, command: str) -> Action | None:
    """The action that a command means in this game, admissible or not; None if it means none.

    Outer blanks do not count; otherwise the match is exact: case, inner blanks and all.
    """
    command = command.strip()
    action = game.understood.get(command)
    if action is None and len(command) < _LONGEST:
        action = _parse(game, command)
        if action is not None:
            game.understood[command] = action
    return action


_LONGEST = 400


def _parse(game: Game, command: str) -> Action | None:
    for verb, pattern, roles in _patterns(tuple(game.dialect.wording.templates.items())):
        match = pattern.fullmatch(command)
        if match is None:
            continue
        thing = other = 0
        for role, name in zip(roles, match.groups(), strict=True):
            number = (game.receptacle_numbers if role == "receptacle" else game.object_numbers).get(name)
            if number is None:
                break
            if role == "object":
                thing = number
            else:
                other = number
        else:
            return Action(verb, thing, other)
    return None


@lru_cache(maxsize=16)
def _patterns(
    templates: tuple[tuple[str, tuple[Piece, ...]], ...],
) -> list[tuple[str, re.Pattern[str], tuple[str, ...]]]:
    table = []
    for verb, pieces in templates:
        pattern = "".join(re.escape(piece) if isinstance(piece, str) else r"(\S+ \d+)" for piece in pieces)
        table.append(
            (verb, re.compile(pattern), tuple(piece[0] for piece in pieces if not isinstance(piece, str)))
        )
    return table


def phrase(game: Game, verb: str, thing: int = 0, other: int = 0) -> str:
    """The command for an action."""
    command = game.phrased.get((verb, thing, other))
    if command is None:
        names = {"object": game.objects, "tool": game.objects, "receptacle": game.receptacles}
        number = {"object": thing, "tool": other, "receptacle": other}
        pieces = game.dialect.wording.templates[verb]
        words = [piece if isinstance(piece, str) else names[piece[0]][number[piece[0]]] for piece in pieces]
        command = game.phrased[verb, thing, other] = "".join(words)
    return command


# ---------------------------------------------------------------------- when and what


def legal(game: Game, state: State, action: Action) -> bool:
    """Whether an action is admissible."""
    verb, thing, other = action
    match verb:
        case "look" | "inventory" | "help":
            return True
        case "gotolocation":
            return game.location_of[other] not in (-1, state.location)
        case "examineobject":
            return state.held == thing or (game.dialect.rules.examine_lying and _lies_open(game, state, thing))
        case "toggleobject":
            return game.toggleable >> thing & 1 != 0 and any(
                game.contents(state, there) >> thing & 1 for there in game.here[state.location]
            )
        case "sliceobject":
            return (
                state.held == other
                and game.knives >> other & 1 != 0
                and (game.sliceable & state.near >> state.location * game.width) >> thing & 1 != 0
            )
    if game.location_of[other] != state.location:
        return False
    match verb:
        case "examinereceptacle":
            return True
        case "openobject":
            return (game.openable & ~state.opened) >> other & 1 != 0
        case "closeobject":
            return (game.openable & state.opened) >> other & 1 != 0
        case "pickupobject":
            reachable = game.contents(state, other) & game.pickupable
            return state.held == NOTHING and not shut(game, state, other) and reachable >> thing & 1 != 0
    if state.held != thing:
        return False
    match verb:
        case "putobject":
            return not shut(game, state, other) and game.accepts[other] >> thing & 1 != 0
        case "cleanobject":
            return (game.cleanable >> thing & game.cleaners >> other & 1) != 0
        case "heatobject":
            return (game.heatable >> thing & game.heaters >> other & 1) != 0
        case "coolobject":
            return (game.coolable >> thing & game.coolers >> other & 1) != 0
    return False


def effect(game: Game, state: State, action: Action) -> State:
    """The state after an admissible action."""
    verb, thing, other = action
    location, held, inside, near, taken, opened, clean, hot, cool, toggled, sliced = state
    match verb:
        case "gotolocation":
            location = game.location_of[other]
        case "openobject":
            opened |= 1 << other
        case "closeobject":
            opened &= ~(1 << other)
        case "pickupobject":
            pair = 1 << other * game.width + thing
            held = thing
            inside &= ~pair
            taken |= pair
            near &= ~(1 << location * game.width + thing)
        case "putobject":
            pair = 1 << other * game.width + thing
            held = NOTHING
            inside |= pair
            taken &= ~pair
            near |= 1 << location * game.width + thing
        case "cleanobject":
            clean |= 1 << thing
        case "heatobject":
            hot |= 1 << thing
            cool &= ~(1 << thing)
        case "coolobject":
            cool |= 1 << thing
            hot &= ~(1 << thing)
        case "toggleobject":
            toggled |= 1 << thing
        case "sliceobject":
            sliced |= 1 << thing
        case _:
            return state
    return State(location, held, inside, near, taken, opened, clean, hot, cool, toggled, sliced)


def shut(game: Game, state: State, receptacle: int) -> bool:
    """Whether a receptacle has a door, and it is closed."""
    return (game.openable & ~state.opened) >> receptacle & 1 != 0


def _lies_open(game: Game, state: State, thing: int) -> bool:
    return any(
        game.contents(state, there) >> thing & 1 and not shut(game, state, there)
        for there in game.here[state.location]
    )


def admissible(game: Game, state: State) -> list[str]:
    """All admissible commands, sorted as strings."""
    verbs = game.dialect.wording.templates
    here = game.here[state.location]
    commands: list[str] = []
    held, width, everything = state.held, game.width, game.everything
    closed = game.openable & ~state.opened
    for receptacle in here:
        contents = state.inside >> receptacle * width & everything
        if game.openable >> receptacle & 1:
            verb = "openobject" if closed >> receptacle & 1 else "closeobject"
            if verb in verbs:
                commands.append(phrase(game, verb, 0, receptacle))
        if not closed >> receptacle & 1:
            if held == NOTHING:
                if "pickupobject" in verbs:
                    for thing in members(contents & game.pickupable):
                        commands.append(phrase(game, "pickupobject", thing, receptacle))
            elif game.accepts[receptacle] >> held & 1 and "putobject" in verbs:
                commands.append(phrase(game, "putobject", held, receptacle))
        if contents & game.toggleable and "toggleobject" in verbs:
            for thing in members(contents & game.toggleable):
                commands.append(phrase(game, "toggleobject", thing))
        if held != NOTHING:
            for verb, able, places in (
                ("cleanobject", game.cleanable, game.cleaners),
                ("heatobject", game.heatable, game.heaters),
                ("coolobject", game.coolable, game.coolers),
            ):
                if places >> receptacle & able >> held & 1 and verb in verbs:
                    commands.append(phrase(game, verb, held, receptacle))
        if game.dialect.rules.examine_lying and not closed >> receptacle & 1 and "examineobject" in verbs:
            for thing in members(contents):
                commands.append(phrase(game, "examineobject", thing))
    if held != NOTHING:
        if "examineobject" in verbs:
            commands.append(phrase(game, "examineobject", held))
        if game.knives >> held & 1 and "sliceobject" in verbs:
            for thing in members(state.near >> state.location * width & game.sliceable):
                commands.append(phrase(game, "sliceobject", thing, held))
    # Two sorted runs are merged in one pass. A lamp in two receptacles is named twice.
    return sorted(_fixed(game, state.location) + sorted(set(commands)))


def _fixed(game: Game, location: int) -> list[str]:
    """The commands that are admissible at a location whatever has happened."""
    commands = game.fixed_commands.get(location)
    if commands is None:
        verbs = game.dialect.wording.templates
        commands = [phrase(game, verb) for verb in ("look", "inventory", "help") if verb in verbs]
        for receptacle, there in enumerate(game.location_of):
            verb = "examinereceptacle" if there == location else "gotolocation"
            if there >= 0 and verb in verbs:
                commands.append(phrase(game, verb, 0, receptacle))
        commands.sort()
        game.fixed_commands[location] = commands
    return commands
