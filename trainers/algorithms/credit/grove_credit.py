"""GROVE's credit on rollouts: turns as visits of states, and the advantage of each turn on its sampled tokens.

`grove.py` has the formulas. Here turns get the numbers of their states and actions, and outcomes the states that
they lead to.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ....agents.forks import Keep
from ....envs.checks import at_least, fraction, integer_at_least, one_of, positive
from ...data.rollouts import Rollouts
from ...data.segments import BoolArray, FloatArray, IntArray, group_statistics
from .base import Advantages, Credit
from .group import group_advantages
from .grove import ENDED, UNVISITED, Layers, Outcomes, Values, Visits, back_up, baselines, limit_layers
from .tree import prefix_weights

Key = Literal["state", "step_state"]
BranchWeighting = Literal["flow", "once"]

NOISE = 1e-12
"""Absolute advantage below which a number is a rounding error."""


def describe_visits(rollouts: Rollouts, key: Key = "state") -> tuple[Visits, Outcomes]:
    """Return the turns of rollouts as visits of states, and the outcomes of their actions.

    The outcomes are those of the turns, in their order, and then the redrawn ones that ended or led to a visited
    state.

    Args:
        rollouts: Episodes, with the state keys of their turns. Turns without a key have a state of their own; in a
            tree, so have all turns that follow the same turn.
        key: "state" pools the turns of a group that start in the same state; "step_state" only those among them
            with the same number of turns before.
    """
    turns, episodes = rollouts.paths
    group = np.zeros(rollouts.turns, dtype=np.int64)
    group[turns] = rollouts.group[episodes]
    parents, depths, groups = rollouts.turn_parent.tolist(), rollouts.turn_depth.tolist(), group.tolist()
    # A turn in which the context window left no room for a reply has no action of the policy.
    sampled = (np.bincount(rollouts.action_turn, minlength=rollouts.turns) > 0).tolist()
    by_step = key == "step_state"
    states: dict[Hashable, int] = {}
    actions: dict[Hashable, int] = {}
    state, action, next_state = [0] * rollouts.turns, [0] * rollouts.turns, [ENDED] * rollouts.turns
    for turn, name in enumerate(rollouts.turn_state):
        parent = parents[turn]
        identity: Hashable
        if not sampled[turn]:
            identity = ("unsampled", turn)
        elif name is None:
            identity = ("after", parent) if parent >= 0 else ("start", turn)
        else:
            identity = (groups[turn], depths[turn], name) if by_step else (groups[turn], name)
        number = states.setdefault(identity, len(states))
        state[turn] = number
        action[turn] = actions.setdefault((number, rollouts.turn_actions[turn]), len(actions))
        if parent >= 0:
            next_state[parent] = number
    for turn in np.flatnonzero(_is_continued(rollouts)).tolist():
        name = rollouts.turn_next_state[turn]
        identity = (groups[turn], depths[turn] + 1, name) if by_step else (groups[turn], name)
        next_state[turn] = states.get(identity, UNVISITED)
    limited = _has_action_limits(rollouts, group)
    drawn: list[tuple[int, float, int, int]] = []
    done: set[int] = set()
    for turn, redraws in enumerate(rollouts.turn_redraws or ()):
        if action[turn] in done or not sampled[turn]:
            continue
        done.add(action[turn])
        for reward, name, _, cost in redraws:
            identity = (groups[turn], depths[turn] + 1, name) if by_step else (groups[turn], name)
            number = ENDED if name is None else states.get(identity, UNVISITED)
            if number != UNVISITED:
                drawn.append((action[turn], reward, number, cost if limited[turn] else 0))
    drawn_action, drawn_reward, drawn_next, drawn_spent = (
        np.array(column) for column in (zip(*drawn, strict=True) if drawn else [[]] * 4)
    )
    spent = np.zeros(rollouts.turns)
    if rollouts.turn_limits is not None:
        before, after = rollouts.turn_limits[limited, :, 1].T
        spent[limited] = before - after
    numbers = [np.array(values, dtype=np.int64) for values in (state, action, next_state)]
    penalty = rollouts.turn_scores - rollouts.turn_reward
    return (
        Visits(group, rollouts.turn_parent, rollouts.turn_depth, numbers[0], numbers[1], penalty),
        Outcomes(
            np.concatenate([numbers[1], drawn_action.astype(np.int64)]),
            np.concatenate([rollouts.turn_reward, drawn_reward]),
            np.concatenate([numbers[2], drawn_next.astype(np.int64)]),
            np.concatenate([spent, drawn_spent]),
        ),
    )


def _turn_envs(rollouts: Rollouts, group: IntArray) -> IntArray:
    """Return the number of each turn's environment, [S]; 0 in a run on a single one."""
    return np.zeros(len(group), dtype=np.int64) if rollouts.episode_env is None else rollouts.group_env[group]


def _has_action_limits(rollouts: Rollouts, group: IntArray) -> BoolArray:
    """Return True for turns of environments in which every episode has a limit of actions, [S]."""
    if rollouts.turn_limits is None:
        return np.zeros(len(group), dtype=bool)
    is_finite, envs = np.isfinite(rollouts.turn_limits[:, :, 1]).all(axis=1), _turn_envs(rollouts, group)
    return ~np.isin(envs, envs[~is_finite])


def layers_by_env(rollouts: Rollouts, visits: Visits, outcomes: Outcomes) -> Layers:
    """Return the layers of turns and outcomes, in the unit of the limit that binds in their environment."""
    limits = rollouts.turn_limits
    left = np.full((rollouts.turns, 2), np.inf) if limits is None else limits[:, 0]
    envs = _turn_envs(rollouts, visits.group)
    env_of_action = np.zeros(int(visits.action.max(initial=-1)) + 1, dtype=np.int64)
    env_of_action[visits.action] = envs
    outcome_envs = env_of_action[outcomes.action]
    sizes = (len(envs), len(envs), len(outcome_envs), len(outcome_envs))
    layers = Layers(*(np.zeros(size, dtype=np.int64) for size in sizes))
    for env in np.unique(envs):
        turns, ends = envs == env, outcome_envs == env
        found = limit_layers(left[turns], outcomes.spent[ends], visits.depth[turns])
        layers.row[turns], layers.column[turns] = found.row, found.column
        layers.row_cost[ends], layers.column_cost[ends] = found.row_cost, found.column_cost
    if layers.column.any():  # In column 0 no action is left, also for environments that have no other column.
        np.maximum(layers.column, 1, out=layers.column)
    return layers


def _is_continued(rollouts: Rollouts) -> BoolArray:
    """Return True for last turns whose state would have gone on: a counted limit cut the episode there, [S]."""
    last = np.zeros(rollouts.turns, dtype=bool)
    last[rollouts.episode_leaf[rollouts.episode_leaf >= 0]] = True
    last &= np.array([name is not None for name in rollouts.turn_next_state], dtype=bool)
    if rollouts.turn_limits is not None:
        # Otherwise the context window was full, which is an end: more turns would not have helped.
        last &= ~(rollouts.turn_limits[:, 1] > 0).all(axis=1)
    return last


def flow_weights(parent: IntArray, depth: IntArray) -> FloatArray:
    """Return the share of its chain that each turn stands for, [S]: turns after the same turn divide its share.

    A first turn has weight 1. So the expected sum over the turns of a tree is that over the turns of a chain.

    Args:
        parent: Turn before each turn; -1 at a start, [S].
        depth: Number of turns before it, [S].
    """
    weights = np.ones(len(parent))
    later = parent >= 0
    children = np.bincount(parent[later], minlength=len(parent))
    for level in range(1, int(depth.max(initial=0)) + 1):
        here = np.flatnonzero(depth == level)
        weights[here] = weights[parent[here]] / children[parent[here]]
    return weights


@dataclass(frozen=True)
class Grove(Credit):
    """GROVE's advantage of each turn, on all its sampled tokens: values from the graph of visited states.

    Attributes:
        gamma: Discount γ per turn of the values, above 0.
        key: Turns of a group that are pooled: "state" for those that start in the same state, at any time, or
            "step_state" for those that do so at the same turn number.
        before: Baseline of the turn before, towards which that of a turn is shrunk: "remaining" subtracts the
            reward of the turn before, "unchanged" does not. Equal where only the end of an episode is rewarded.
        redraws: Outcomes r that are drawn of each visited combination of state and actions, from a snapshot of the
            environment and without the policy, for environments with chance. Those that end the episode or lead to
            a visited state are added to the observed ones. 0 draws none.
        scale: Divisor of the advantages: "group" for the standard deviation of the group's returns + ε (1 where
            that deviation is 0), "none" for 1.
        eps: ε added to the standard deviation.
        branch_weighting: Weight in the loss of turns in trees: "flow" divides that of a turn among the turns after
            it, so that gradients have the direction of chains; "once" gives every turn weight 1.
    """

    gamma: float = 1.0
    key: Key = "state"
    before: Literal["remaining", "unchanged"] = "remaining"
    redraws: int = 0
    scale: Literal["group", "none"] = "group"
    eps: float = 1e-6
    branch_weighting: BranchWeighting = "flow"

    name: ClassVar[str] = "grove"
    needs_groups: ClassVar[bool] = True
    needs_turn_rewards: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fraction("credit.gamma", self.gamma)
        positive("credit.gamma", self.gamma)
        one_of("credit.key", self.key, ("state", "step_state"))
        one_of("credit.before", self.before, ("remaining", "unchanged"))
        integer_at_least("credit.redraws", self.redraws, 0)
        one_of("credit.scale", self.scale, ("group", "none"))
        at_least("credit.eps", self.eps, 0.0)
        one_of("credit.branch_weighting", self.branch_weighting, ("flow", "once"))

    @property
    def keep(self) -> frozenset[Keep]:
        needed: set[Keep] = {"states", "limits"}
        if self.redraws:
            needed.add("snapshots")
        return frozenset(needed)

    def assign(
        self, rollouts: Rollouts, values: FloatArray | None = None, in_loss: BoolArray | None = None
    ) -> Advantages:
        started = time.perf_counter()
        visits, outcomes = describe_visits(rollouts, self.key)
        returns = rollouts.returns(penalties=True)
        statistics = group_statistics(returns, rollouts.group)
        found = back_up(visits, outcomes, layers_by_env(rollouts, visits, outcomes), statistics.mean, self.gamma)
        turns, episodes = rollouts.paths
        length = np.bincount(rollouts.group[episodes], minlength=rollouts.groups) / statistics.count
        received = rollouts.turn_scores if self.before == "remaining" else None
        advantages = found.q - baselines(visits, found, length, received, self.gamma)
        if self.scale == "group":
            divisor = np.where(statistics.std > 0, statistics.std + self.eps, 1.0)
            advantages = advantages / divisor[visits.group]
        # A lone episode has none to compare with.
        advantages[(np.abs(advantages) < NOISE) | (statistics.count[visits.group] < 2)] = 0.0
        multiplicity = prefix_weights(rollouts, "once", in_loss)
        action_turn = rollouts.action_turn[rollouts.copies.action]
        if multiplicity is not None and self.branch_weighting == "flow":
            multiplicity = multiplicity * flow_weights(visits.parent, visits.depth)[action_turn]
        metrics = _metrics(rollouts, visits, outcomes, found)
        plain = group_advantages(returns, rollouts.group)[episodes]
        if np.ptp(plain) > 0 and np.ptp(advantages[turns]) > 0:
            metrics["grove/correlation"] = float(np.corrcoef(plain, advantages[turns])[0, 1])
        metrics["seconds/values"] = time.perf_counter() - started
        return Advantages(advantages[action_turn], multiplicity=multiplicity, metrics=metrics)


def _metrics(rollouts: Rollouts, visits: Visits, outcomes: Outcomes, values: Values) -> dict[str, float]:
    """Return statistics of the graphs; see `trainers/reporting/metric_names.py`."""
    if not rollouts.turns:
        return {}
    recurring = np.bincount(visits.state)[visits.state] > 1
    later = visits.depth > 0
    states = len(np.unique(visits.state)) / rollouts.groups
    redrawn = (
        {} if rollouts.turn_redraws is None else {"grove/redrawn": len(outcomes.action) / rollouts.turns - 1.0}
    )
    return redrawn | {
        "grove/states": states,
        "grove/recurring": float(recurring[later].mean()) if later.any() else 0.0,
        "grove/shared_actions": float((np.bincount(visits.action)[visits.action] > 1).mean()),
        "grove/unvisited": float((outcomes.next_state[: rollouts.turns] == UNVISITED).mean()),
        "grove/value_abs": float(np.abs(values.v).mean()),
    }
