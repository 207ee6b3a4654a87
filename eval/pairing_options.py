"""Options of `arboretum compare` for evaluation runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PairingOptions:
    """Options of a comparison of evaluation runs.

    Attributes:
        agent: Agents of evaluation runs to compare, by name. None given takes all but the random agent and the
            expert, and these in runs without others.
        pool: Count evaluation runs of the same agent with different seeds as repeats of one run.
        detect: Difference in percentage points; adds the number of tasks that would show it with a power of 80 %.
            None leaves this out.
    """

    agent: tuple[str, ...] = ()
    pool: bool = False
    detect: float | None = None


NO_OPTIONS = PairingOptions()
"""Comparison of all agents, each run on its own."""
