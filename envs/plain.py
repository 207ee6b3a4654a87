"""Plain values in the place of NumPy's, for files, protocols and comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_BUILT_IN = frozenset({str, int, float, bool, type(None)})


def plain_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step's `info` with Python's numbers for NumPy's scalars, and lists for arrays, at every depth."""
    return {key: value if type(value) in _BUILT_IN else _plain(value) for key, value in info.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(one) for one in value)
    return value
