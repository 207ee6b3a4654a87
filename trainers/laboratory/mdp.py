"""Finite decision processes as arrays, and exact evaluation of tabular policies by dynamic programming.

The states of all tasks of a panel are the *rows* of one table, so that one array operation advances all tasks. The
last row stands for the end of an episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..data.segments import BoolArray, FloatArray, IntArray, sum_by_group


@dataclass(frozen=True, eq=False)
class Mdp:
    """Tasks with known dynamics and a horizon. N rows, A actions, K outcomes of an action, G starts.

    Attributes:
        following: Row after each outcome, [N, A, K]; N where the episode ends.
        chance: Probability of each outcome, [N, A, K]; 0 for outcomes that do not occur.
        rewards: Reward of each outcome, [N, A, K]: 1 for success, which ends the episode, and 0 otherwise.
        valid: True for the actions that a row has, [N, A].
        effects: True for actions that modify the environment (see `TextEnv.counts_as_effect`), [N, A].
        starts: Row in which each task starts, [G]; the episodes of one task are one group.
        owner: Table that each row belongs to, numbered from 0, [N]. Tasks may share a table.
        horizon: Number of steps after which an episode is truncated.
        names: Text of each action in each row, row by row, [N · A].
        keys: State key of each row, as credit rules see it, [N]; rows that differ only in what the policy
            remembers have the same. None for rows that are all different.
    """

    following: IntArray
    chance: FloatArray
    rewards: FloatArray
    valid: BoolArray
    effects: BoolArray
    starts: IntArray
    owner: IntArray
    horizon: int
    names: tuple[str, ...]
    keys: IntArray | None = None

    @cached_property
    def row_keys(self) -> IntArray:
        """State key of each row, [N]."""
        return np.arange(self.rows) if self.keys is None else self.keys

    @property
    def rows(self) -> int:
        """Number of rows N."""
        return len(self.valid)

    @property
    def groups(self) -> int:
        """Number of tasks G."""
        return len(self.starts)

    @cached_property
    def tables(self) -> int:
        """Number of separate tables."""
        return int(self.owner.max()) + 1

    @cached_property
    def expected_rewards(self) -> FloatArray:
        """Expected reward of each action, [N, A]."""
        rewards: FloatArray = (self.chance * self.rewards).sum(axis=2)
        return rewards

    @cached_property
    def is_deterministic(self) -> bool:
        """True if every action has a single outcome."""
        return bool(self.chance.shape[2] == 1)

    @cached_property
    def chance_bounds(self) -> FloatArray:
        """Upper bounds of the outcomes' parts of [0, 1) without the last one, [N, A, K - 1]."""
        return np.cumsum(self.chance, axis=2)[:, :, :-1]

    def action_values(self, values: FloatArray) -> FloatArray:
        """Return the expected reward plus value of the next row of each action, [N, A].

        Args:
            values: Value of each row, [N + 1]; 0 for the end.
        """
        if self.is_deterministic:
            return np.asarray(self.expected_rewards + values[self.following[:, :, 0]])
        return np.asarray(self.expected_rewards + (self.chance * values[self.following]).sum(axis=2))


class Evaluation(NamedTuple):
    """Exact evaluation of a policy.

    Attributes:
        success: Probability of success of each task, [G].
        visits: Expected number of visits of each row in one episode of every task, [N].
    """

    success: FloatArray
    visits: FloatArray

    @property
    def steps(self) -> float:
        """Expected number of steps of one episode of every task together."""
        return float(self.visits.sum())


def evaluate(mdp: Mdp, policy: FloatArray) -> Evaluation:
    """Return the exact success of a policy, and its visits, by propagating the distribution of rows forward.

    Args:
        mdp: Tasks. Success is exact for each task only where its rows belong to no other task; tasks that share a
            table get the mean over the table's tasks.
        policy: Probability of each action, [N, A]; 0 for actions that a row does not have.
    """
    visits = np.zeros(mdp.rows)
    distribution: FloatArray = np.bincount(mdp.starts, minlength=mdp.rows).astype(np.float64)
    flat = mdp.following.ravel()
    flow = (policy[:, :, None] * mdp.chance).reshape(mdp.rows, -1)
    for _ in range(mdp.horizon):
        visits += distribution
        weights = (distribution[:, None] * flow).ravel()
        distribution = sum_by_group(weights, flat, mdp.rows + 1)[: mdp.rows]
    gains = visits * (policy * mdp.expected_rewards).sum(axis=1)
    by_table = np.bincount(mdp.owner, weights=gains, minlength=mdp.tables)
    tables = mdp.owner[mdp.starts]
    return Evaluation((by_table / np.bincount(tables, minlength=mdp.tables))[tables], visits)


def exact_values(mdp: Mdp, policy: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the values of a policy with every number of steps left, by backward induction.

    Args:
        mdp: Tasks.
        policy: Probability of each action, [N, A].

    Returns:
        V, shape [H + 1, N + 1], and Q, shape [H + 1, N, A], by the number of steps left; 0 at the end of an
        episode and with no step left.
    """
    values = np.zeros((mdp.horizon + 1, mdp.rows + 1))
    action_values = np.zeros((mdp.horizon + 1, mdp.rows, policy.shape[1]))
    for left in range(1, mdp.horizon + 1):
        action_values[left] = mdp.action_values(values[left - 1])
        values[left, :-1] = (policy * action_values[left]).sum(axis=1)
    return values, action_values


def optimal_actions(mdp: Mdp, discount: float = 0.97, tolerance: float = 1e-9) -> BoolArray:
    """Return True for the actions that are optimal without a horizon, [N, A]; ties are all optimal.

    A discount below 1 prefers the shortest way. Rows from which success is impossible have no optimal action.

    Args:
        mdp: Tasks.
        discount: Discount per step.
        tolerance: Change of the values below which the iteration ends.
    """
    values = np.zeros(mdp.rows + 1)
    scores = mdp.expected_rewards
    for _ in range(10_000):
        before = values
        scores = mdp.expected_rewards + discount * (mdp.chance * values[mdp.following]).sum(axis=2)
        scores = np.where(mdp.valid, scores, -1.0)
        values = np.r_[scores.max(axis=1), 0.0]
        if np.abs(values - before).max() < tolerance:
            break
    best = values[:-1, None]
    optimal: BoolArray = (scores >= best - 1e-7) & (best > 1e-7)
    return optimal


def join(parts: list[Mdp]) -> Mdp:
    """Return several tasks as one panel; their rows and tables remain separate.

    Args:
        parts: Tasks with equal horizons and equal numbers of actions and outcomes.
    """
    rows = np.cumsum([0, *(part.rows for part in parts)])
    tables = np.cumsum([0, *(part.tables for part in parts)])
    following = [
        np.where(part.following == part.rows, rows[-1], part.following + first)
        for part, first in zip(parts, rows[:-1], strict=True)
    ]
    return Mdp(
        np.concatenate(following),
        np.concatenate([part.chance for part in parts]),
        np.concatenate([part.rewards for part in parts]),
        np.concatenate([part.valid for part in parts]),
        np.concatenate([part.effects for part in parts]),
        np.concatenate([part.starts + first for part, first in zip(parts, rows[:-1], strict=True)]),
        np.concatenate([part.owner + first for part, first in zip(parts, tables[:-1], strict=True)]),
        parts[0].horizon,
        tuple(name for part in parts for name in part.names),
        np.concatenate([part.row_keys + first for part, first in zip(parts, rows[:-1], strict=True)]),
    )
