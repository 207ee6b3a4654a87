"""Plain values in the place of NumPy's, for files, protocols and comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

ValueT = TypeVar("ValueT")

_BUILT_IN = frozenset({str, int, float, bool, type(None)})


def plain_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step's `info` with Python's numbers for NumPy's scalars, and lists for arrays, at every depth."""
    return {key: value if type(value) in _BUILT_IN else _plain(value) for key, value in info.items()}


def plain_numbers(setting: ValueT) -> ValueT:
    """Return a setting with Python's numbers for NumPy's scalars in mappings, lists and tuples at any depth.

    Whatever holds none of them is the same object, which may be shared with an environment or an agent.
    """
    try:
        plain: ValueT = _plain_numbers(setting)
    except RecursionError:  # of an object that holds itself
        return setting
    return plain


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        items = {key: _plain_numbers(one) for key, one in value.items()}
        return items if any(items[key] is not one for key, one in value.items()) else value
    if type(value) in (list, tuple):
        found = [_plain_numbers(one) for one in value]
        return value if all(new is old for new, old in zip(found, value, strict=True)) else type(value)(found)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(one) for one in value)
    return value
