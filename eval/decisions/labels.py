"""Labels of an episode's decisions: what each action cost, and why the episode failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ...envs.optimum import Optimum

VALUE_DECIMALS, STEP_DECIMALS = 9, 6
"""Decimals of regrets in value and in steps. Optima of stochastic environments have rounding errors below that."""

SOLVED = "solved"
DEAD_END = "dead end"
OUT_OF_STEPS = "out of steps"
RISK = "risk"
CHANCE = "chance"
WORSE_END = "worse end"
UNFINISHED = "unfinished"
IMPOSSIBLE = "impossible"
UNKNOWN = "unknown"

REASONS: Mapping[str, str] = {
    SOLVED: "The task was solved.",
    DEAD_END: "An action made success impossible, whatever the step limit: the fatal decision.",
    OUT_OF_STEPS: "After an action, the remaining steps of the environment's limit were too few.",
    RISK: "Random events made success impossible, after decisions that had given away at least half of the"
    " probability that was lost.",
    CHANCE: "Random events made success impossible, after decisions that had given away less than that.",
    WORSE_END: "The episode ended with a lower score or payment than was attainable.",
    UNFINISHED: "Success was still possible at the end: a limit of the agent's own, on turns or actions, or the"
    " agent itself ended the episode.",
    IMPOSSIBLE: "The step limit was too low for success from the start.",
    UNKNOWN: "The optimum of a state on the way is not known.",
}
"""Outcomes of an episode, with their meanings."""


class Decision(NamedTuple):
    """Quality of one action, measured by the environment's optimum before it and in expectation after it.

    The optimum respects the environment's own step limit. The limits of an agent's dialogue on turns and actions
    do not enter: they are the agent's, and an episode that they end is `UNFINISHED`.

    With V the value of `optimum()` in the state before the action and Q that of `optimum_after(action)`, the
    expectation over the outcomes of the action, `value_regret` is V - Q. The outcome that happened to occur does
    not enter. Over an episode, V at the start minus the value at the end is the sum of these regrets, and of the
    chance in the outcomes.

    Attributes:
        optimal: True if the action has no regret, neither in value nor in steps. None if it cannot be judged: the
            optimum is unknown, or nothing was left to lose.
        value_regret: Loss of attainable value, to nine decimals: probability of success, score or payment
            (`optimum_measure`). None if it is unknown. Where the optimum is not exact it is negative for an action
            that is better than the best known plan.
        step_regret: Additional steps that the action costs, Q.steps + 1 - V.steps; a detour of one step away and
            one back costs 2. None if value is lost, where steps cannot be compared, and if `optimal` is None.
        fatal: True if success (or any score) was attainable before the action and is not after it, whatever the
            outcome. None if it is unknown.
        repeated: True if the episode had taken the same action in the same state (`state_key`) before.
        returned: True if the action led from one state to another one that the episode had visited before.
    """

    optimal: bool | None
    value_regret: float | None
    step_regret: float | None
    fatal: bool | None
    repeated: bool
    returned: bool


@dataclass(frozen=True, slots=True)
class EpisodeDecisions:
    """Labels of one episode.

    Attributes:
        decisions: Labels of its actions, in order; of the last trial of an agent that retries.
        outcome: One of `REASONS`.
        exact: True if the environment's optimum is proven; otherwise regrets are over the shortest known.
        measure: Quantity of the regrets in value: "probability of success", "score" or "payment".
    """

    decisions: tuple[Decision, ...]
    outcome: str
    exact: bool
    measure: str

    @property
    def judged(self) -> int:
        """Number of actions that are optimal or not."""
        return sum(d.optimal is not None for d in self.decisions)

    @property
    def optimal(self) -> int:
        """Number of optimal actions."""
        return sum(d.optimal is True for d in self.decisions)

    @property
    def unknown(self) -> int:
        """Number of actions whose optimum is unknown."""
        return sum(d.fatal is None for d in self.decisions)

    @property
    def first_fatal(self) -> int | None:
        """Number of the first action that is known to be fatal, counted from 1; None without one."""
        return next((number for number, d in enumerate(self.decisions, 1) if d.fatal), None)

    @property
    def fatal(self) -> bool | None:
        """True if an action is known to be fatal; None if none is and the optimum of some action is unknown."""
        if self.first_fatal is not None:
            return True
        return None if self.unknown else False

    @property
    def step_regret(self) -> float | None:
        """Sum of the regrets in steps; None if the optimum of an action is unknown. In a deterministic environment
        with an exact optimum, the additional length of a solved episode over the shortest one."""
        return None if self.unknown else sum(d.step_regret or 0.0 for d in self.decisions)

    @property
    def value_regret(self) -> float | None:
        """Sum of the regrets in value; None if the optimum of an action is unknown."""
        return None if self.unknown else sum(d.value_regret or 0.0 for d in self.decisions)


@dataclass(frozen=True, slots=True)
class Unlabelled:
    """Result for an episode that cannot be labelled.

    Attributes:
        reason: The reason, in one sentence.
    """

    reason: str


@lru_cache(maxsize=4096)
def judge(before: Optimum | None, after: Optimum | None, exact: bool, repeated: bool, returned: bool) -> Decision:
    """Return the label of one action.

    Args:
        before: Optimum before the action; None if it is unknown.
        after: Expected optimum after the action; None if it is unknown.
        exact: True if optima are proven, so that a negative regret is a rounding error.
        repeated: See `Decision`.
        returned: See `Decision`.
    """
    if exact and before is not None and before.value == 0.0:  # Whatever the outcome, nothing was left to lose.
        return Decision(None, 0.0, None, False, repeated, returned)
    if before is None or after is None:
        return Decision(None, None, None, None, repeated, returned)
    value = round(before.value - after.value, VALUE_DECIMALS)
    if before.value == 0.0 or before.steps is None:
        better = not exact and value < 0.0  # More was attainable than was known.
        return Decision(better or None, value if better else 0.0, None, False, repeated, returned)
    steps = None
    if value == 0.0 and after.steps is not None:
        steps = round(after.steps + 1.0 - before.steps, STEP_DECIMALS)
    if exact:
        value, steps = max(value, 0.0), None if steps is None else max(steps, 0.0)
    fatal = after.value == 0.0  # Also where the value before rounds to 0.
    optimal = not fatal and (value < 0.0 or (value == 0.0 and (steps or 0.0) <= 0.0))
    return Decision(optimal, value, steps, fatal, repeated, returned)
