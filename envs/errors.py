"""Errors a user can cause, each one sentence: what is wrong, where, and how to mend it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class ConfigurationError(ValueError):
    """A setting that cannot work: an unknown name, an impossible value, a missing folder."""


class DataError(ConfigurationError):
    """A data file that is missing, truncated or malformed.

    Args:
        path: the file (or `archive:member`) at fault.
        problem: what was found and what was expected.
        line: 1-based line number, where the file has lines.
    """

    def __init__(self, path: str | Path, problem: str, line: int | None = None) -> None:
        where = f"{path}, line {line}" if line is not None else f"{path}"
        super().__init__(f"{where}: {problem}")
        self.path = str(path)
        self.problem = problem
        self.line = line

    def __reduce__(self) -> tuple[type[DataError], tuple[str, str, int | None]]:
        return DataError, (self.path, self.problem, self.line)


def unknown_name(kind: str, name: object, choices: Iterable[str]) -> ConfigurationError:
    """An error for a name that is not among `choices`, offering the nearest ones.

    Args:
        kind: what the name stands for, such as "environment" or "task".
        name: what was given.
        choices: the valid names; only the first few are listed when none is near.
    """
    names = list(choices)
    text = str(name)
    near = difflib.get_close_matches(text.lower(), [n.lower() for n in names], n=3, cutoff=0.5)
    nearest = [n for n in names if n.lower() in near][:3]
    if nearest:
        hint = f"did you mean {' or '.join(nearest)}?"
    else:
        hint = f"known: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}." if names else "there are none."
    shown = text if len(text) <= 80 else text[:77] + "…"
    return ConfigurationError(f"unknown {kind} {shown!r}; {hint}")
