"""Formulas of GROVE: values of states from the graph of all states that the episodes of a group visited.

The turns of a group are visits of states, pooled over episodes and over turn numbers. With n(k) visits of state k,
n(k, a) of them with action a, and the remainder of the limits as layer t:

    Q_t(k, a) = mean over the outcomes (r, k') of (k, a) of r + γ V_{t-1}(k')
    V_t(k)    = Σ_a n(k, a) / n(k) · Q_t(k, a),    V_0 = 0
    b         = (n(k) V_t(k) - Q_t(k, a) + L b') / (n(k) - 1 + L)
    A         = (Q_t(k, a) - b) / std of the group's returns

b leaves the turn itself out and is shrunk towards b', the baseline of the turn before, with the weight of L
visits, the mean length of the group's episodes. First turns have L = 0. Where that turn had a reward r', b' is the
remainder (b' - r') / γ. An outcome that ended the episode is worth its reward; a state in which nobody acted is
worth the mean return of the group while the limits allow a further turn.

Penalties belong to a text, not to its action, so they are not averaged over the turns with an equal action:
Q_t(k, a) of a turn includes its own penalty, and V_t(k) the mean penalty of the visits of k.

The rule is this project's own. It has no paper; `docs/grove.md` derives it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...data.segments import FloatArray, IntArray

ENDED = -1
"""Next state of an outcome that ended its episode."""
UNVISITED = -2
"""Next state of an outcome in which nobody acted."""


class Visits(NamedTuple):
    """Turns of all groups, each of shape [S].

    Attributes:
        group: Group.
        parent: Turn before, which precedes it in the arrays; -1 at a start.
        depth: Number of turns before it.
        state: State before it, numbered from 0; different groups have different states.
        action: Action in that state, numbered from 0; different states have different actions.
        penalty: Penalty of the turn itself.
    """

    group: IntArray
    parent: IntArray
    depth: IntArray
    state: IntArray
    action: IntArray
    penalty: FloatArray


class Outcomes(NamedTuple):
    """Observed outcomes of actions, each of shape [O]; every action has at least one.

    Attributes:
        action: Action.
        reward: Reward of the environment.
        next_state: State after it, `ENDED` or `UNVISITED`.
        spent: Actions by which it lowered the limit of actions; 0 without that limit.
    """

    action: IntArray
    reward: FloatArray
    next_state: IntArray
    spent: FloatArray


class Layers(NamedTuple):
    """Limits as layers of the recursion, in the unit that binds.

    Attributes:
        row: First index of the layer of each turn, at least 1, [S].
        column: Second index, [S]; 0 where one unit binds alone, and at least 1 otherwise.
        row_cost: Layers by which each outcome lowers the first index, at least 1, [O].
        column_cost: Layers by which it lowers the second index, at least 0, [O].
    """

    row: IntArray
    column: IntArray
    row_cost: IntArray
    column_cost: IntArray


class Values(NamedTuple):
    """Values at the layer of each turn, each of shape [S].

    Attributes:
        q: Q_t(k, a), with the turn's own penalty.
        v: V_t(k).
    """

    q: FloatArray
    v: FloatArray


def limit_layers(left: FloatArray, spent: FloatArray, depth: IntArray) -> Layers:
    """Return the layers of turns and outcomes in the unit of the limit that binds.

    Turns are the unit if a limit of actions cannot end an episode first, and actions if one of turns cannot;
    otherwise a layer has both numbers.

    Args:
        left: Turns and actions that the limits allow before each turn, infinite without a limit, [S, 2].
        spent: See `Outcomes`, [O].
        depth: Number of turns before each turn, [S]. Without any limit, that of turns is the longest episode.
    """
    no_column, no_cost = np.zeros(len(depth), dtype=np.int64), np.zeros(len(spent), dtype=np.int64)
    # A turn takes at least one action, so a limit of actions is one of turns, too.
    turns = np.maximum(np.where(np.isfinite(left[:, 0]), left[:, 0], left[:, 1]), 1.0)
    actions = np.maximum(left[:, 1], 1.0)
    if not np.isfinite(turns).all():
        return Layers(depth.max(initial=0) + 1 - depth, no_column, no_cost + 1, no_cost)
    row = turns.astype(np.int64)
    if not np.isfinite(actions).all() or (actions >= turns * max(spent.max(initial=0.0), 1.0)).all():
        return Layers(row, no_column, no_cost + 1, no_cost)
    column, cost = actions.astype(np.int64), spent.astype(np.int64)
    if (turns >= actions).all():
        return Layers(column, no_column, np.maximum(cost, 1), no_cost)
    return Layers(row, column, no_cost + 1, np.maximum(cost, 0))


def back_up(
    visits: Visits, outcomes: Outcomes, layers: Layers, unvisited: FloatArray, gamma: float = 1.0
) -> Values:
    """Return Q and V of every turn, by backward induction over the layers.

    Args:
        visits: Turns.
        outcomes: Outcomes of their actions.
        layers: Layers of both.
        unvisited: Value of a state in which nobody acted, of each group, [G].
        gamma: γ per turn.
    """
    if len(visits.state) == 0:
        return Values(np.zeros(0), np.zeros(0))
    states = int(visits.state.max()) + 1
    state_of = np.zeros(int(visits.action.max()) + 1, dtype=np.int64)
    state_of[visits.action] = visits.state
    group_of = np.zeros(states, dtype=np.int64)
    group_of[visits.state] = visits.group
    # Actions sorted by state and outcomes by action make every mean one `reduceat`.
    by_state = np.argsort(state_of, kind="stable")
    rank = np.empty_like(by_state)
    rank[by_state] = np.arange(len(by_state))
    own_action, action = rank[visits.action], rank[outcomes.action]
    order = np.argsort(action, kind="stable")
    action, next_state = action[order], outcomes.next_state[order]
    tries = np.bincount(own_action)
    outcome_count = np.bincount(action)
    firsts = np.cumsum(outcome_count) - outcome_count
    state_firsts = np.searchsorted(state_of[by_state], np.arange(states))
    visited = np.bincount(visits.state)
    rewards = np.bincount(action, weights=outcomes.reward[order]) / outcome_count
    penalties = np.bincount(visits.state, weights=visits.penalty) / visited

    # Columns of a table of values: the states, the end, and the unvisited states of each group.
    groups = group_of[state_of[by_state]][action]
    target = np.where(next_state >= 0, next_state, np.where(next_state == ENDED, states, states + 1 + groups))
    width = int(layers.column.max()) + 1
    row_cost, column_cost = layers.row_cost[order], layers.column_cost[order]
    sources = np.maximum(np.arange(width)[:, None] - column_cost, 0)
    depth = int(row_cost.max())
    table = np.zeros((depth + 1, width, states + 1 + len(unvisited)))  # Ring of layers; the last one stays 0.
    q, v = np.zeros(len(visits.state)), np.zeros(len(visits.state))
    by_row = np.argsort(layers.row, kind="stable")
    starts = np.searchsorted(layers.row[by_row], np.arange(int(layers.row.max()) + 2))
    for row in range(1, int(layers.row.max()) + 1):
        slots = np.where(row > row_cost, (row - row_cost) % depth, depth)
        future = table[slots, sources, target]
        q_row = rewards + gamma * (np.add.reduceat(future, firsts, axis=1) / outcome_count)
        v_row = np.add.reduceat(q_row * tries, state_firsts, axis=1) / visited + penalties
        here = by_row[starts[row] : starts[row + 1]]
        q[here] = q_row[layers.column[here], own_action[here]] + visits.penalty[here]
        v[here] = v_row[layers.column[here], visits.state[here]]
        slot = row % depth
        table[slot, :, :states], table[slot, :, states + 1 :] = v_row, unvisited
        if width > 1:
            table[slot, 0] = 0.0  # No action is left.
    return Values(q, v)


def baselines(
    visits: Visits,
    values: Values,
    length: FloatArray,
    received: FloatArray | None = None,
    gamma: float = 1.0,
) -> FloatArray:
    """Return b of every turn, [S]: the value of its state without the turn itself, shrunk towards the turn before.

    Args:
        visits: Turns.
        values: Their values.
        length: L of each group, [G].
        received: r' of each turn, penalties included, which is subtracted from its baseline before the next turn
            uses it, [S]. None subtracts nothing.
        gamma: γ per turn, by which the remainder is divided.

    Returns:
        Baselines. A first turn that is the only visit of its state has no other turn to compare with in that
        state, and takes the mean value of the other first turns of its group (RLOO); Q itself if there is none.
    """
    counts = np.bincount(visits.state)[visits.state].astype(np.float64) if len(visits.state) else np.zeros(0)
    others = counts * values.v - values.q
    b = np.zeros(len(others))
    first = np.flatnonzero(visits.depth == 0)
    group = visits.group[first]
    sums = np.bincount(group, weights=values.v[first], minlength=len(length))
    starts = np.bincount(group, minlength=len(length))
    rest = starts[group] - 1
    alone = np.where(rest > 0, (sums[group] - values.v[first]) / np.maximum(rest, 1), values.q[first])
    b[first] = np.where(counts[first] > 1, others[first] / np.maximum(counts[first] - 1, 1), alone)
    by_depth = np.argsort(visits.depth, kind="stable")
    ends = np.searchsorted(visits.depth[by_depth], np.arange(int(visits.depth.max(initial=0)) + 2))
    for level in range(1, len(ends) - 1):
        here = by_depth[ends[level] : ends[level + 1]]
        before = b[visits.parent[here]]
        if received is not None:
            before = (before - received[visits.parent[here]]) / gamma
        weight = length[visits.group[here]]
        b[here] = (others[here] + weight * before) / (counts[here] - 1 + weight)
    return b
