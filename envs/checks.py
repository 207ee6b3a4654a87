"""Checks of settings. Each failure is a `ConfigurationError` of one sentence that names the setting."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from .errors import ConfigurationError


def flag(name: str, value: object) -> None:
    """Raise unless the value is True or False, also where another one has a truth value, such as "flase"."""
    if type(value) is not bool:
        raise ConfigurationError(f"{name} must be True or False, not {value!r}.")


def fraction(name: str, value: object) -> None:
    """Raise unless the value is a number and 0 ≤ value ≤ 1."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 <= float(value) <= 1.0:
        raise ConfigurationError(f"{name} must be between 0 and 1, but is {value!r}.")


def one_of(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise unless the value is one of the choices."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ConfigurationError(f"{name} must be one of {listed}, not {value!r}.")


def at_least(name: str, value: float | None, bound: float) -> None:
    """Raise unless the value is a number and value ≥ bound; None passes."""
    if value is not None:
        _number(name, value)
        if not value >= bound:
            raise ConfigurationError(f"{name} must be at least {bound:g}, but is {value}.")


def integer(name: str, value: object) -> None:
    """Raise unless the value is an integer, of Python or of NumPy; None passes."""
    if value is not None:
        try:
            if isinstance(value, bool):
                raise TypeError
            operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise ConfigurationError(f"{name} must be a whole number, not {value!r}.") from None


def integer_at_least(name: str, value: Any, least: int) -> None:
    """Raise unless the value is an integer, of Python or of NumPy, and value ≥ least; None passes."""
    integer(name, value)
    at_least(name, value, least)


def positive(name: str, value: float) -> None:
    """Raise unless the value is a number and value > 0."""
    _number(name, value)
    if not value > 0:
        raise ConfigurationError(f"{name} must be above 0, but is {value}.")


def _number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigurationError(f"{name} must be a number, not {value!r}.")


def user_path(name: str, value: object) -> Path:
    """Return a path, with the home folder for a leading `~` or `~user`.

    Raises:
        ConfigurationError: The value is no path, or there is no such user.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise ConfigurationError(f"{name} must be a path, not {value!r}.")
    return expand_home(value)


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Return a path with the home folder in place of `~` or `~user`.

    Raises:
        ConfigurationError: There is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigurationError(
            f"{path}: there is no home folder of {Path(path).parts[0]!r}; write ./{path} for a folder here."
        ) from None


def expand_option(argument: str) -> str:
    """Return an argument with the home folder in `--out=~/runs`, which shells expand only as `--out ~/runs`."""
    option, equals, value = argument.partition("=")
    if not (option.startswith("--") and value.startswith("~")):
        return argument
    return f"{option}{equals}{expand_home(value)}"


def check_port(name: str, value: int) -> None:
    """Raise unless the value is a TCP port, or 0 for a free one."""
    if not 0 <= value <= 65535:
        raise ConfigurationError(f"{name} must be between 0 and 65535, not {value}.")


def first_difference(before: Any, now: Any, path: str = "") -> str | None:
    """Return the first difference of two plain values in words; None if they are equal."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in {**before, **now}:
            found = first_difference(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))
            if found is not None:
                return found
        return None
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True), 1)
        return next((found for n, (a, b) in pairs if (found := first_difference(a, b, f"{path}[{n}]"))), None)
    return None if before == now else f"{path or 'it'} was {before!r} and is {now!r}"
