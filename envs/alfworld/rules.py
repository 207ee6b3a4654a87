"""Rules of the household as pure functions: parsing of commands, preconditions, effects and replies.

`parse_command` → `is_legal` → `apply_action` → `render_reply` is one step of the original's raw engine, and `step`
performs all four. The raw engine has no terminal state: it continues after the game is won, and later actions can
make a won game unwon.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from .model import NOTHING, Action, Game, Piece, State, members

REFUSAL = "Nothing happens."
"""Reply to every command that is not admissible."""

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
"""Actions that modify the household according to T-STAR's historical compatibility, which excludes walking."""


class StepResult(NamedTuple):
    """Result of one command.

    Attributes:
        state: State after the command.
        text: Reply to the command.
        action: Parsed action, or None if the command was refused.
    """

    state: State
    text: str
    action: Action | None


def step(game: Game, state: State, command: str) -> StepResult:
    """Perform one step of the raw engine."""
    action = parse_command(game, command)
    if action is None or not is_legal(game, state, action):
        return StepResult(state, REFUSAL, None)
    state = apply_action(game, state, action)
    return StepResult(state, render_reply(game, state, action), action)


def introduction(game: Game) -> str:
    """Return the first observation of a game."""
    return game.dialect.wording.intro(game, game.start, 0, 0)


def render_reply(game: Game, state: State, action: Action) -> str:
    """Return the reply to an action, given the state *after* the action."""
    return game.dialect.wording.replies[action.verb](game, state, action.object, action.other)


def is_won(game: Game, state: State) -> bool:
    """Return True if the goal holds in `state`, regardless of earlier states."""
    kind, objects, receptacles, number, flags, lamps = game.goal
    if kind == "light":
        if state.held == NOTHING or not objects >> state.held & 1:
            return False
        burning = state.toggled & lamps
        return burning != 0 and any(
            game.contents(state, there) & burning for there in game.receptacles_at[state.location]
        )
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


def is_state(game: Game, state: object) -> bool:
    """Return True if a value is a state of the game's locations, receptacles and objects."""
    if type(state) is not State or set(map(type, state)) != {int}:
        return False
    location, held, inside, near, taken, opened, *flags = state
    things, receptacles = game.width, len(game.receptacles)
    return (
        0 <= location < len(game.locations)
        and NOTHING <= held < things
        and inside >> receptacles * things == taken >> receptacles * things == 0
        and near >> len(game.locations) * things == opened >> receptacles == 0
        and all(flag >> things == 0 for flag in flags)
    )


# ---------------------------------------------------------------------- commands


def parse_command(game: Game, command: str) -> Action | None:
    """Return the action of a command, whether or not it is admissible; None if the command has no parse.

    Surrounding white space is ignored; otherwise the match is exact, including case and inner white space.
    """
    command = command.strip()
    action = game.parsed_commands.get(command)
    if action is None and len(command) < _MAX_COMMAND_LENGTH:
        action = _parse(game, command)
        if action is not None:
            game.parsed_commands[command] = action
    return action


_MAX_COMMAND_LENGTH = 400
"""Length in characters from which on a command is refused unparsed."""


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


def format_command(game: Game, verb: str, thing: int = 0, other: int = 0) -> str:
    """Return the command of an action."""
    command = game.formatted_commands.get((verb, thing, other))
    if command is None:
        names = {"object": game.objects, "tool": game.objects, "receptacle": game.receptacles}
        number = {"object": thing, "tool": other, "receptacle": other}
        pieces = game.dialect.wording.templates[verb]
        words = [piece if isinstance(piece, str) else names[piece[0]][number[piece[0]]] for piece in pieces]
        command = game.formatted_commands[verb, thing, other] = "".join(words)
    return command


# ---------------------------------------------------------------------- preconditions and effects


def is_legal(game: Game, state: State, action: Action) -> bool:
    """Return True if an action is admissible."""
    verb, thing, other = action
    match verb:
        case "look" | "inventory" | "help":
            return True
        case "gotolocation":
            return game.location_of[other] not in (-1, state.location)
        case "examineobject":
            return state.held == thing or (
                game.dialect.rules.examine_in_place and _is_in_open_receptacle(game, state, thing)
            )
        case "toggleobject":
            return game.toggleable >> thing & 1 != 0 and any(
                game.contents(state, there) >> thing & 1 for there in game.receptacles_at[state.location]
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
            return state.held == NOTHING and not is_closed(game, state, other) and reachable >> thing & 1 != 0
    if state.held != thing:
        return False
    match verb:
        case "putobject":
            return not is_closed(game, state, other) and game.accepts[other] >> thing & 1 != 0
        case "cleanobject":
            return (game.cleanable >> thing & game.cleaners >> other & 1) != 0
        case "heatobject":
            return (game.heatable >> thing & game.heaters >> other & 1) != 0
        case "coolobject":
            return (game.coolable >> thing & game.coolers >> other & 1) != 0
    return False


def apply_action(game: Game, state: State, action: Action) -> State:
    """Return the state after an admissible action."""
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


def is_closed(game: Game, state: State, receptacle: int) -> bool:
    """Return True if a receptacle has a door or lid that is closed."""
    return (game.openable & ~state.opened) >> receptacle & 1 != 0


def _is_in_open_receptacle(game: Game, state: State, thing: int) -> bool:
    return any(
        game.contents(state, there) >> thing & 1 and not is_closed(game, state, there)
        for there in game.receptacles_at[state.location]
    )


def admissible_commands(game: Game, state: State) -> list[str]:
    """Return all admissible commands in lexicographic order."""
    verbs = game.dialect.wording.templates
    here = game.receptacles_at[state.location]
    commands: list[str] = []
    held, width, all_objects = state.held, game.width, game.all_objects
    closed = game.openable & ~state.opened
    for receptacle in here:
        contents = state.inside >> receptacle * width & all_objects
        if game.openable >> receptacle & 1:
            verb = "openobject" if closed >> receptacle & 1 else "closeobject"
            if verb in verbs:
                commands.append(format_command(game, verb, 0, receptacle))
        if not closed >> receptacle & 1:
            if held == NOTHING:
                if "pickupobject" in verbs:
                    for thing in members(contents & game.pickupable):
                        commands.append(format_command(game, "pickupobject", thing, receptacle))
            elif game.accepts[receptacle] >> held & 1 and "putobject" in verbs:
                commands.append(format_command(game, "putobject", held, receptacle))
        if contents & game.toggleable and "toggleobject" in verbs:
            for thing in members(contents & game.toggleable):
                commands.append(format_command(game, "toggleobject", thing))
        if held != NOTHING:
            for verb, able, places in (
                ("cleanobject", game.cleanable, game.cleaners),
                ("heatobject", game.heatable, game.heaters),
                ("coolobject", game.coolable, game.coolers),
            ):
                if places >> receptacle & able >> held & 1 and verb in verbs:
                    commands.append(format_command(game, verb, held, receptacle))
        if game.dialect.rules.examine_in_place and not closed >> receptacle & 1 and "examineobject" in verbs:
            for thing in members(contents):
                commands.append(format_command(game, "examineobject", thing))
    if held != NOTHING:
        if "examineobject" in verbs:
            commands.append(format_command(game, "examineobject", held))
        if game.knives >> held & 1 and "sliceobject" in verbs:
            for thing in members(state.near >> state.location * width & game.sliceable):
                commands.append(format_command(game, "sliceobject", thing, held))
    # `sorted` merges the two sorted runs in linear time. The set removes duplicates of a lamp in two receptacles.
    return sorted(_location_commands(game, state.location) + sorted(set(commands)))


def _location_commands(game: Game, location: int) -> list[str]:
    """Return the commands that are admissible at a location in every state, sorted."""
    commands = game.location_commands.get(location)
    if commands is None:
        verbs = game.dialect.wording.templates
        commands = [format_command(game, verb) for verb in ("look", "inventory", "help") if verb in verbs]
        for receptacle, there in enumerate(game.location_of):
            verb = "examinereceptacle" if there == location else "gotolocation"
            if there >= 0 and verb in verbs:
                commands.append(format_command(game, verb, 0, receptacle))
        commands.sort()
        game.location_commands[location] = commands
    return commands
