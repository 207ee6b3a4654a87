"""Checks of settings. Each failure is a `ConfigurationError` of one sentence that names the setting."""

from __future__ import annotations

import math
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from .errors import ConfigurationError


def fraction(name: str, value: float) -> None:
    """Raise unless 0 ≤ value ≤ 1."""
    if not 0.0 <= value <= 1.0:
        raise ConfigurationError(f"{name} must be between 0 and 1, but is {value}.")


def one_of(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise unless the value is one of the choices."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ConfigurationError(f"{name} must be one of {listed}, not {value!r}.")


def at_least(name: str, value: float | None, bound: float) -> None:
    """Raise unless value ≥ bound; None passes."""
    if value is not None and not value >= bound:
        raise ConfigurationError(f"{name} must be at least {bound:g}, but is {value}.")


def positive(name: str, value: float) -> None:
    """Raise unless value > 0."""
    if not value > 0:
        raise ConfigurationError(f"{name} must be above 0, but is {value}.")


def fits(value: object, kind: Any) -> bool:
    """Return True if a value conforms to a type annotation.

    Args:
        value: Value to check.
        kind: Annotation: int, float (finite), bool, str, None, another class, or a union or fixed-length tuple of
            these. For a `Literal` any string conforms; check its choices with `one_of`, which lists them.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(fits(value, member) for member in inner)
    if origin is Literal:
        return isinstance(value, str)
    if origin is tuple:
        return (
            isinstance(value, (tuple, list))
            and len(value) == len(inner)
            and all(fits(item, item_kind) for item, item_kind in zip(value, inner, strict=True))
        )
    if kind is int or kind is float:
        number_types = (int,) if kind is int else (int, float)
        return isinstance(value, number_types) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind)


def described(kind: Any) -> str:
    """Return a type annotation in words, such as "a whole number or null"."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(described(member) for member in inner)
    if origin is tuple:
        return f"a list of {len(inner)} ({', '.join(described(item_kind) for item_kind in inner)})"
    if origin is Literal:
        return " or ".join(repr(choice) for choice in inner)
    words = {
        int: "a whole number",
        float: "a finite number",
        bool: "true or false",
        str: "a text",
        NoneType: "null",
    }
    return words.get(kind) or f"a {kind.__name__}"
