"""Optimum of an episode in progress, of which the quality of single decisions is made."""

from __future__ import annotations

from typing import NamedTuple


class Optimum(NamedTuple):
    """Value that optimal play can still reach within the step limit, and its distance.

    Attributes:
        value: Maximum probability of success; in environments that score the end, the best score.
        steps: Fewest steps to it, an expected number in stochastic environments; 0 after the end, and None if
            `value` is 0.
    """

    value: float
    steps: float | None
