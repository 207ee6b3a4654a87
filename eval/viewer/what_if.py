"""Consequences of actions: the optimum after each, and its quality beside the best one."""

from __future__ import annotations

import time
from typing import Any, Literal, NamedTuple

from ...envs.core import TextEnv
from ...envs.optimum import Optimum
from ...envs.snapshots import Snapshot
from ..decisions.labels import Decision, judge

Quality = Literal["optimal", "costly", "fatal"]

BUDGET = 2.0
"""Seconds for the consequences of one state; further actions are left out."""


class Consequence(NamedTuple):
    """Consequence of an action.

    Attributes:
        action: The action.
        optimum: What optimal play still reaches after it, in expectation over its outcomes; None if it is unknown.
        quality: Quality of the action beside the best one; None if it is unknown.
        cost: The regret in words, such as "costs 2 steps"; empty without one.
        is_random: True if the environment draws the outcome of the action.
        valid: True if the environment accepts the action.
        ends: True if the episode ends with it, whatever the outcome.
        success: True if it solves the task, whatever the outcome.
    """

    action: str
    optimum: Optimum | None
    quality: Quality | None
    cost: str
    is_random: bool
    valid: bool
    ends: bool
    success: bool


def quality_of(decision: Decision) -> Quality | None:
    """Return the quality of a labelled decision; None if it is unknown, or nothing was left to lose."""
    if decision.fatal:
        return "fatal"
    if decision.optimal is None:
        return None
    return "optimal" if decision.optimal else "costly"


def describe_cost(decision: Decision, measure: str) -> str:
    """Return the regret of a decision in words; empty without one.

    Args:
        decision: The decision.
        measure: Quantity of the regret in value, see `TextEnv.optimum_measure`.
    """
    if decision.value_regret and decision.value_regret > 0:
        if measure == "probability of success":
            return f"costs {100 * decision.value_regret:.2g} points of success"
        return f"costs {decision.value_regret:.3g} of the {measure}"
    if decision.step_regret and decision.step_regret > 0:
        steps = f"{decision.step_regret:.1f}".removesuffix(".0")
        return f"costs {steps} step{'' if steps == '1' else 's'}"
    return ""


def optimum_at(env: TextEnv[Any], snapshot: Snapshot) -> Optimum | None:
    """Return the optimum in a state; None if it is unknown, or the environment fails to compute it."""
    env.restore(snapshot)
    try:
        return env.optimum()
    except Exception:  # Environments may come from plug-ins.
        return None


def judge_action(
    env: TextEnv[Any], snapshot: Snapshot, action: str, before: Optimum | None
) -> tuple[Decision, Optimum | None]:
    """Return the label of an action in a state, and the expected optimum after it.

    Args:
        env: Environment; it is left in any state.
        snapshot: State before the action.
        action: The action.
        before: Optimum in that state.
    """
    env.restore(snapshot)
    try:
        after = env.optimum_after(action)
    except Exception:  # Environments may come from plug-ins.
        after = None
    return judge(before, after, env.optimum_is_exact, False, False), after


def consequence(env: TextEnv[Any], snapshot: Snapshot, action: str, before: Optimum | None) -> Consequence:
    """Return the consequence of an action; see `judge_action`."""
    decision, after = judge_action(env, snapshot, action, before)
    env.restore(snapshot)
    _, _, terminated, truncated, info = env.step(action)
    is_random = env.rng_state != snapshot.rng_state
    ended = not is_random and (terminated or truncated)
    return Consequence(
        action,
        after,
        quality_of(decision),
        describe_cost(decision, env.optimum_measure),
        is_random,
        bool(info["valid"]),
        ended,
        ended and bool(info["success"]),
    )


class WhatIf(NamedTuple):
    """Alternatives in a state.

    Attributes:
        optimum: Optimum in the state; None if it is unknown.
        measure: Quantity of its value, see `TextEnv.optimum_measure`.
        is_exact: True if the optimum is proven; otherwise it is that of the best plan known.
        plan: Actions of the environment's expert from the state; empty if it has none.
        consequences: Consequences of admissible actions, the best first; empty if actions cannot be listed.
        left_out: Number of admissible actions whose consequences would have taken too long.
        lists_actions: True if the environment can list its admissible actions.
    """

    optimum: Optimum | None
    measure: str
    is_exact: bool
    plan: list[str]
    consequences: list[Consequence]
    left_out: int
    lists_actions: bool


def what_if(env: TextEnv[Any], snapshot: Snapshot, budget: float = BUDGET) -> WhatIf:
    """Return the alternatives in a state.

    Args:
        env: Environment; it is left in any state.
        snapshot: The state.
        budget: Seconds for all consequences.
    """
    end = time.monotonic() + budget
    before = optimum_at(env, snapshot)
    env.restore(snapshot)
    try:
        plan = env.expert_actions() or []
    except Exception:  # Environments may come from plug-ins.
        plan = []
    actions = env.admissible_actions()
    if actions is not None:  # The expert's action first, so that it is never left out.
        actions = tuple(sorted(actions, key=lambda action: action not in plan[:1]))
    found: list[Consequence] = []
    for action in actions or ():
        if time.monotonic() > end:
            break
        found.append(consequence(env, snapshot, action, before))
    found.sort(key=_rank)
    left_out = len(actions or ()) - len(found)
    return WhatIf(before, env.optimum_measure, env.optimum_is_exact, plan, found, left_out, actions is not None)


def _rank(one: Consequence) -> tuple[float, float]:
    if one.optimum is None:
        return 1.0, 0.0
    return -one.optimum.value, one.optimum.steps if one.optimum.steps is not None else float("inf")
