"""Checks of the settings of agents, dialogues and engines, which suites and command lines give as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..envs.errors import ConfigurationError


def check_count(name: str, value: object, bound: int) -> None:
    """Raise `ConfigurationError` unless a setting is an integer of at least `bound`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < bound:
        raise ConfigurationError(f"{name} must be an integer of at least {bound}, not {value!r:.80}.")


def check_counts(settings: Mapping[str, Any], **bounds: int) -> None:
    """Raise `ConfigurationError` unless those of some settings that are given are integers of at least a bound."""
    for name, bound in bounds.items():
        if name in settings:
            check_count(name, settings[name], bound)


def check_number(name: str, value: object, low: float = -math.inf, high: float = math.inf) -> None:
    """Raise `ConfigurationError` unless a setting is a finite number between two bounds, which are included."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value <= high:  # type: ignore[operator]
        bounds = [f"of at least {low:g}"] * (low > -math.inf) + [f"of at most {high:g}"] * (high < math.inf)
        raise ConfigurationError(f"{name} must be a number {' and '.join(bounds)}, not {value!r:.80}.")
