"""The commands of a game as functions."""

from __future__ import annotations

from functools import lru_cache

from ..tools import ANY_ACTION, Parameter, Tool
from .model import Piece, Wording


@lru_cache(maxsize=64)
def command_tools(wording: Wording) -> tuple[Tool, ...]:
    """Return a function for every verb of a grammar, named by the words before its first object.

    Two templates of the same words, such as those of "examine", are one function. A grammar in which a command
    begins with an object, or in which a verb has several forms, has the function `act` only.
    """
    templates: dict[str, tuple[Piece, ...]] = {}
    for pieces in wording.templates.values():
        verb = pieces[0]
        if not isinstance(verb, str):
            return (ANY_ACTION,)
        name = "_".join(verb.split())
        known = templates.setdefault(name, pieces)
        if known != pieces:
            merged = _merge(known, pieces)
            if merged is None:
                return (ANY_ACTION,)
            templates[name] = merged
    return tuple(_tool(name, pieces) for name, pieces in sorted(templates.items()))


def _merge(one: tuple[Piece, ...], other: tuple[Piece, ...]) -> tuple[Piece, ...] | None:
    """Return a template for two that differ in their roles only; None if they differ in words."""
    if [piece for piece in one if isinstance(piece, str)] != [piece for piece in other if isinstance(piece, str)]:
        return None
    pairs = zip(one, other, strict=True)
    return tuple(a if a == b else (f"{a[0]}_or_{b[0]}",) for a, b in pairs)


def _tool(name: str, pieces: tuple[Piece, ...]) -> Tool:
    form = "".join(piece if isinstance(piece, str) else f"{{{piece[0]}}}" for piece in pieces)
    roles = [piece[0] for piece in pieces if not isinstance(piece, str)]
    parameters = [
        Parameter(role, f"Name of the {role.replace('_or_', ' or ')} with its number.") for role in roles
    ]
    words = form.replace("{", "(").replace("}", ")")
    return Tool(name, f"Give the command: {words}.", form, tuple(parameters))
