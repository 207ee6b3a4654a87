"""Errors that a user can cause and fix. Each message is one sentence: what is wrong, where, and how to fix it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class ConfigurationError(ValueError):
    """Invalid setting: an unknown name, an impossible value or a missing folder."""


class DataError(ConfigurationError):
    """Data file that is missing, truncated or malformed.

    Args:
        path: Path of the file, or `archive:member`.
        problem: Description of the fault: what was found, what was expected, or how to fix it.
        line: Line number, counted from 1. None if the fault belongs to no line.
    """

    def __init__(self, path: str | Path, problem: str, line: int | None = None) -> None:
        where = f"{path}, line {line}" if line is not None else f"{path}"
        super().__init__(f"{where}: {problem}")
        self.path = str(path)
        self.problem = problem
        self.line = line

    def __reduce__(self) -> tuple[type[DataError], tuple[str, str, int | None]]:
        return DataError, (self.path, self.problem, self.line)


def cannot_be_read(error: ConfigurationError) -> bool:
    """Return True if an environment could not be made for a missing file, or a server that is down.

    Where a split was named, such an error does not say that the environment has no such split.
    """
    return isinstance(error.__cause__, OSError)


FEW = 24
"""Names that an error message lists as a whole."""


def unknown_name(kind: str, name: object, choices: Iterable[str]) -> ConfigurationError:
    """Return an error for a name that is not among `choices`; its message suggests names, nearest first.

    Args:
        kind: Kind of thing that the name denotes, such as "environment" or "task".
        name: Unknown name.
        choices: Valid names. If none is near, the message lists all if they are few, or the first eight.
    """
    names = list(choices)
    text = str(name)
    near = difflib.get_close_matches(text.lower(), [n.lower() for n in names], n=3, cutoff=0.6)
    nearest = sorted((n for n in names if n.lower() in near), key=lambda n: near.index(n.lower()))[:3]
    if nearest:
        hint = f"did you mean {' or '.join(nearest)}?"
    else:
        few = names if len(names) <= FEW else names[:8]
        hint = f"known: {', '.join(few)}{', …' if len(few) < len(names) else ''}." if names else "there are none."
    shown = text if len(text) <= 80 else text[:77] + "…"
    return ConfigurationError(f"unknown {kind} {shown!r}; {hint}")
