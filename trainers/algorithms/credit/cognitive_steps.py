"""Turns as steps of a cognitive graph: which of them T-STAR may merge, and which merge without the policy.

The context of a turn is the situation *after* it, in which the policy chooses its next action. A turn without a
next one is an end. Contexts merge only within a group, at equal depth, and with equal histories of effects
(historical compatibility, arXiv:2604.07165 sec. 3.1).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ....envs.errors import ConfigurationError
from ...data.rollouts import Rollouts
from ...data.segments import BoolArray, FloatArray, IntArray, factorize, group_statistics
from .cognitive import comparison_sets

History = Literal["order", "set"]
Identity = Literal["state", "observation", "none"]


@dataclass(frozen=True)
class Steps:
    """Properties of turns that merging depends on, each of shape [S].

    Attributes:
        group: Group.
        depth: Number of turns before the turn.
        child: First turn after the turn; -1 at an end.
        bucket: Set of turns that may merge: those with equal group, depth and history. Ends have buckets of their
            own.
        first_set: Set of the turn's episodes by their first actions; see `comparison_sets`.
    """

    group: IntArray
    depth: IntArray
    child: IntArray
    bucket: IntArray
    first_set: IntArray

    @property
    def is_end(self) -> BoolArray:
        """True for turns without a next one, [S]."""
        return self.child < 0


def describe_steps(rollouts: Rollouts, history: History | None = "order", limit: int = 16) -> Steps:
    """Return the properties of all turns.

    Args:
        rollouts: Episodes, with the effects of their turns.
        history: Compatible histories have the same effects in the same "order", or are equal as a "set". None
            does not compare effects.
        limit: Episodes per group up to which first actions do not matter; see `comparison_sets`.

    Raises:
        ConfigurationError: The effects were not recorded.
    """
    turns, episodes = rollouts.paths
    group = np.zeros(rollouts.turns, dtype=np.int64)
    group[turns] = rollouts.group[episodes]
    parents = rollouts.turn_parent
    child = np.full(rollouts.turns, -1, dtype=np.int64)
    followed = np.flatnonzero(parents >= 0)[::-1]  # The first child is written last.
    child[parents[followed]] = followed
    histories = np.zeros(rollouts.turns, dtype=np.int64)
    if history is not None:
        histories = _number_histories(rollouts, history)
    ends = np.where(child < 0, np.arange(rollouts.turns), -1)
    columns = (group, rollouts.turn_depth, histories, ends)
    return Steps(
        group,
        rollouts.turn_depth,
        child,
        factorize(zip(*(column.tolist() for column in columns), strict=True)),
        _first_sets(rollouts, limit),
    )


def _number_histories(rollouts: Rollouts, history: History) -> IntArray:
    """Number the effects of all turns up to and including each turn, [S]."""
    known: dict[Hashable, int] = {frozenset[str](): 0}
    contents: list[frozenset[str]] = [frozenset()]
    numbers = [0] * rollouts.turns
    for turn, (parent, effects) in enumerate(
        zip(rollouts.turn_parent.tolist(), rollouts.turn_effects, strict=True)
    ):
        if effects is None:
            raise ConfigurationError('the turns have no record of their effects; roll out with keep={"states"}.')
        number = numbers[parent] if parent >= 0 else 0
        if effects:
            words = [" ".join(effect.casefold().split()) for effect in effects]
            if history == "set":
                content = contents[number] | frozenset(words)
                number = known.setdefault(content, len(known))
                if number == len(contents):
                    contents.append(content)
            else:
                for word in words:
                    number = known.setdefault((number, word), len(known))
        numbers[turn] = number
    return np.array(numbers, dtype=np.int64)


def _first_sets(rollouts: Rollouts, limit: int) -> IntArray:
    """Number the sets of turns whose episodes may be compared by divergence, within their groups, [S]."""
    turns, episodes = rollouts.paths
    starts = turns[rollouts.turn_depth[turns] == 0]
    first = np.full(rollouts.episodes, -1, dtype=np.int64)
    first[episodes[rollouts.turn_depth[turns] == 0]] = factorize(
        action_text(rollouts, turn) for turn in starts.tolist()
    )
    by_episode = np.zeros(rollouts.episodes, dtype=np.int64)
    for group in range(rollouts.groups):
        members = np.flatnonzero(rollouts.group == group)
        by_episode[members] = comparison_sets(first[members].tolist(), limit)
    sets = np.zeros(rollouts.turns, dtype=np.int64)
    sets[turns] = by_episode[episodes]
    return sets


def action_text(rollouts: Rollouts, turn: int) -> str:
    """Return the actions of a turn as one text, with single spaces."""
    return "; ".join([" ".join(action.split()) for action in rollouts.turn_actions[turn]])


def identity_classes(rollouts: Rollouts, steps: Steps, identity: Identity) -> IntArray:
    """Number the sets of turns whose contexts are identical, [S]; ends and, with "none", all turns are alone.

    Args:
        rollouts: Episodes.
        steps: Their properties.
        identity: Compatible contexts are identical if they have the same "state" key, or show the same
            "observation".

    Raises:
        ConfigurationError: The state keys were not recorded.
    """
    keys: list[Hashable]
    if identity == "state":
        keys = list(rollouts.turn_next_state)
    elif identity == "observation":
        keys = [rollouts.turn_observation[child] if child >= 0 else None for child in steps.child.tolist()]
    else:
        keys = list(range(rollouts.turns))
    if any(key is None and child >= 0 for key, child in zip(keys, steps.child.tolist(), strict=True)):
        raise ConfigurationError(
            'the turns have no state keys; roll out with keep={"states"}, or set credit.identity = "observation".'
        )
    return factorize(zip(steps.bucket.tolist(), keys, strict=True))


def undecided_steps(rollouts: Rollouts, steps: Steps) -> BoolArray:
    """Return the mask of the turns whose advantages depend on which of them merge, [S].

    In a group without a spread of returns, all advantages are 0. In a bucket that is decided, all turns have
    earned the same, and neither after them nor after any turn that may merge with a later one is anything earned.
    All its nodes have the same value then, however its turns merge. Typical are the last turns of failed episodes.
    This does not hold for `past="merged"`.
    """
    scores, parents, buckets = rollouts.turn_scores, rollouts.turn_parent, steps.bucket
    earned = scores.copy()
    undecided = np.zeros(int(buckets.max(initial=-1)) + 1, dtype=bool)
    for turn in np.flatnonzero(parents >= 0).tolist():  # Parents are before their children.
        earned[turn] += earned[parents[turn]]
    low, high = np.full(len(undecided), np.inf), np.full(len(undecided), -np.inf)
    np.minimum.at(low, buckets, earned)
    np.maximum.at(high, buckets, earned)
    undecided |= high > low
    # A bucket has turns of one depth, and its next turns are one deeper.
    for depth in range(int(steps.depth.max(initial=0)), 0, -1):
        turns = np.flatnonzero((steps.depth == depth) & (parents >= 0))
        open_after = (scores[turns] != 0) | (undecided[buckets[turns]] & ~steps.is_end[turns])
        undecided[buckets[parents[turns[open_after]]]] = True
    spread = group_statistics(rollouts.returns(penalties=True), rollouts.group).std > 0
    result: BoolArray = undecided[buckets] & spread[steps.group]
    return result


def label_steps(rollouts: Rollouts, steps: Steps, classes: IntArray, returns: FloatArray) -> IntArray:
    """Return the label of every turn, [S]: equal labels merge.

    Args:
        rollouts: Episodes.
        steps: Their properties.
        classes: Sets of equivalent contexts, [S]; ends are not read.
        returns: R of each episode, [E].

    Returns:
        Labels. Ends merge if they have the same parent, the same action text and the same return, so that merging
        them changes no value.
    """
    keys: list[Hashable] = classes.tolist()
    labels = classes.tolist()
    for episode, leaf in enumerate(rollouts.episode_leaf.tolist()):
        if leaf >= 0:
            parent = int(rollouts.turn_parent[leaf])
            above = labels[parent] if parent >= 0 else -1 - int(steps.group[leaf])
            keys[leaf] = (above, action_text(rollouts, leaf), round(float(returns[episode]), 9))
    return factorize(keys)
