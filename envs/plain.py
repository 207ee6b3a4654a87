"""Plain values in the place of NumPy's, for files, protocols and comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

ValueT = TypeVar("ValueT")

_BUILT_IN = frozenset({str, int, float, bool, type(None)})


def plain_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step's `info` with Python's numbers for NumPy's scalars, and lists for arrays, at every depth."""
    kinds = (np.generic, np.ndarray)
    return {key: value if type(value) in _BUILT_IN else _plain(value, kinds) for key, value in info.items()}


def plain_numbers(setting: ValueT) -> ValueT:
    """Return a setting with Python's numbers for NumPy's scalars, at every depth; arrays stay."""
    plain: ValueT = _plain(setting, np.generic)
    return plain


def _plain(value: Any, kinds: type | tuple[type, ...]) -> Any:
    if isinstance(value, kinds):
        return value.tolist()  # type: ignore[attr-defined]
    if isinstance(value, dict):
        return {key: _plain(one, kinds) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(one, kinds) for one in value)
    return value
