"""A household as parts: what the agent holds, and every receptacle with its contents."""

from __future__ import annotations

from collections.abc import Iterator

from ..rendering import Part
from .model import NOTHING, Game, State, members
from .rules import is_closed

_FLAGS = ("clean", "hot", "cool", "sliced")


def household_parts(game: Game, state: State) -> tuple[Part, ...]:
    """Return the parts of a household: the agent's hand, the receptacles at its location, and the others."""
    here = set(game.receptacles_at[state.location])
    order = sorted(range(len(game.receptacles)), key=lambda one: (one not in here, not _note(game, state, one)))
    holding = () if state.held == NOTHING else (_describe(game, state, state.held),)
    return (Part("hand", holding, "" if holding else "empty"), *_receptacles(game, state, order, here))


def _receptacles(game: Game, state: State, order: list[int], here: set[int]) -> Iterator[Part]:
    for place in order:
        items = tuple(_describe(game, state, thing) for thing in members(game.contents(state, place)))
        yield Part(game.receptacles[place], items, _note(game, state, place), place in here)


def _note(game: Game, state: State, receptacle: int) -> str:
    if not game.openable >> receptacle & 1:
        return ""
    return "closed" if is_closed(game, state, receptacle) else "open"


def _describe(game: Game, state: State, thing: int) -> str:
    flags = [name for name in _FLAGS if getattr(state, name) >> thing & 1]
    if state.toggled >> thing & 1:
        flags.append("on")
    return f"{game.objects[thing]} ({', '.join(flags)})" if flags else game.objects[thing]
