"""Choice of a setting for each recipe in each environment, on validation tasks and with seeds of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ...envs.checks import at_least
from ...envs.errors import ConfigurationError

FIRST_TUNING_SEED = 1000
"""Seed of the first tuning run. Runs whose policies are evaluated have the seeds 0, 1, …"""


@dataclass(frozen=True)
class Tuning:
    """Runs that choose the value of one setting.

    The value with the largest area under the curve of success on validation tasks over generated tokens is chosen,
    so that a value which learns fast and then collapses loses against one which does not. A run that the monitor
    ends early keeps its last success until the end of the others.

    Attributes:
        values: Values of the setting to choose from.
        setting: Path of the setting.
        seeds: Runs of each value, with seeds that no other run has.
        settings: Settings by path of the tuning runs only, such as fewer `optimization.updates`.
        part: Part of a run's `optimization.max_tokens` that its tuning runs generate, more than 0 and at most 1.
    """

    values: Sequence[int | float]
    setting: str = "optimization.lr"
    seeds: int = 1
    settings: Mapping[str, object] = field(default_factory=dict)
    part: float = 1.0

    def check(self) -> None:
        """Raise `ConfigurationError` for a value out of range."""
        at_least("tuning.seeds", self.seeds, 1)
        if len(set(self.values)) < 2:
            raise ConfigurationError("tuning.values must be two or more different values.")
        if not 0 < self.part <= 1:
            raise ConfigurationError(f"tuning.part must be more than 0 and at most 1, not {self.part:g}.")

    def settings_of(
        self, max_tokens: int | None, candidate: float | None, chosen: float | None
    ) -> Mapping[str, object]:
        """Return the settings of a run by path.

        Args:
            max_tokens: `optimization.max_tokens` of the run's recipe.
            candidate: Value that the run tests; None for a run whose policy is evaluated.
            chosen: Value that was chosen for it; None if none was chosen yet.
        """
        if candidate is not None:
            budget = {} if max_tokens is None else {"optimization.max_tokens": math.ceil(max_tokens * self.part)}
            return {**budget, **self.settings, self.setting: candidate}
        return {} if chosen is None else {self.setting: chosen}

    def choose(self, areas: Mapping[float, Sequence[float]]) -> float:
        """Return the value with the largest mean area; the first of `values` among equals.

        Args:
            areas: Areas under the curves of the runs of each value.
        """
        return max(self.values, key=lambda value: fmean(areas[value]))
