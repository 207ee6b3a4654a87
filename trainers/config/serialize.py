"""Configurations as plain data for JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypeVar, cast

import numpy as np

from ..algorithms.additions import ADDED
from ..algorithms.overrides import convert
from ..algorithms.registry import is_part, part_name

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Return settings as plain data for JSON; a part of a recipe carries its name."""
    if is_dataclass(value) and not isinstance(value, type):
        data = {
            field.name: to_plain(getattr(value, field.name))
            for field in fields(value)
            if not _is_left_out(field, getattr(value, field.name))
        }
        named = any(is_part(base) for base in type(value).__mro__)
        return {"name": part_name(value), **data} if named else data
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, np.generic):
        return to_plain(value.item())
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _is_left_out(field: Field[Any], value: Any) -> bool:
    """Return True for a setting that earlier versions did not have, at its default; see `ADDED`."""
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return ADDED.items() <= field.metadata.items() and bool(value == default)


def from_plain(kind: type[T], data: object, path: str = "") -> T:
    """Return the configuration that `to_plain` wrote.

    Args:
        kind: Class of the configuration.
        data: Plain data.
        path: Path of the configuration, for messages.

    Raises:
        ConfigurationError: A setting is unknown, missing, of the wrong type, or cannot work.
    """
    return cast(T, convert(data, kind, path))


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Return plain settings by path, such as {"recipe.sampler.rollouts": 16}; lists stay whole."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= flatten(inner, f"{path}.{key}" if path else str(key))
    return flat
