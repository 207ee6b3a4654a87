"""Sampled steps of tables as `Rollouts`: one action token per turn, so that credit rules of training apply."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..data.episodes import Branch
from ..data.rollouts import Rollouts
from ..data.segments import FloatArray, IntArray, factorize
from .mdp import Mdp

_PROMPT = 0
"""Token before every action, since a conversation begins with one that is not sampled."""


class Steps(NamedTuple):
    """Steps of episodes, episode by episode.

    Attributes:
        rows: Row before each step, [S].
        actions: Action of each step, [S].
        following: Row after each step, [S]; N where the episode terminated.
        rewards: Reward of each step, [S].
        lengths: Number of steps of each episode, [E].
    """

    rows: IntArray
    actions: IntArray
    following: IntArray
    rewards: FloatArray
    lengths: IntArray

    def _slice(self, start: int, end: int) -> Steps:
        own = slice(start, end)
        return Steps(
            self.rows[own], self.actions[own], self.following[own], self.rewards[own], np.array([end - start])
        )

    def episode(self, index: int, end: int) -> Steps:
        """Return one episode, whose steps end before the entry `end`."""
        return self._slice(end - int(self.lengths[index]), end)

    def first(self, count: int) -> Steps:
        """Return the first steps of a single episode."""
        return self._slice(0, count)

    def skip(self, count: int) -> Steps:
        """Return a single episode without its first steps."""
        return self._slice(count, len(self.rows))

    @staticmethod
    def concatenate(parts: Sequence[Steps]) -> Steps:
        """Return the steps of consecutive parts; each part of one episode is an episode of the result."""
        return Steps(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


@lru_cache(maxsize=64)
def _texts(names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the actions of a turn for every entry of `Mdp.names`."""
    return tuple((name,) for name in names)


@lru_cache(maxsize=64)
def _tokens(width: int) -> tuple[IntArray, ...]:
    """Return the tokens that a turn adds, by action: a prompt and the action."""
    return tuple(np.array([_PROMPT, 1 + action]) for action in range(width))


def build_rollouts(
    mdp: Mdp,
    steps: Steps,
    groups: IntArray,
    log_policy: FloatArray,
    trees: Sequence[Hashable] | None = None,
    branches: Sequence[Branch | None] | None = None,
) -> Rollouts:
    """Return episodes as rollouts; state keys are rows.

    Args:
        mdp: Tasks.
        steps: Steps that each episode adds to those it shares with an earlier one.
        groups: Task of each episode, [E].
        log_policy: Log-probability of each action, [N, A].
        trees, branches: Tree of each episode within its task, and the earlier episode and number of its turns with
            which each episode begins; see `from_episodes`. None for chains.
    """
    count, width = len(steps.rows), mdp.valid.shape[1]
    ends = np.cumsum(steps.lengths)
    parents = np.arange(-1, count - 1)
    starts = (ends - steps.lengths)[steps.lengths > 0]
    parents[starts] = -1
    before = np.zeros(len(groups), dtype=np.int64)  # turns that an episode shares with an earlier one
    if branches is not None:
        before[:] = [0 if branch is None else branch.turns for branch in branches]
        paths: list[list[int]] = []
        for branch, end, length in zip(branches, ends.tolist(), steps.lengths.tolist(), strict=True):
            shared = [] if branch is None else paths[branch.episode][: branch.turns]
            parents[end - length] = shared[-1] if shared else -1
            paths.append(shared + list(range(end - length, end)))
    depths = np.arange(count) - np.repeat(ends - steps.lengths - before, steps.lengths)
    limits = np.full((count, 2, 2), np.inf)
    limits[:, 0, 0] = mdp.horizon - depths
    limits[:, 1, 0] = mdp.horizon - depths - 1
    places = steps.rows * width + steps.actions
    texts = _texts(mdp.names)
    cells = places.tolist()
    actions = tuple([texts[place] for place in cells])
    is_effect = mdp.effects.ravel()[places].tolist()
    next_keys = [*range(mdp.rows), None]
    tokens = _tokens(width)
    won = steps.rewards[ends - 1] > 0
    return Rollouts(
        group=factorize(groups.tolist()),
        tree=factorize(zip(groups.tolist(), range(len(groups)) if trees is None else trees, strict=True)),
        success=won,
        truncated=steps.following[ends - 1] < mdp.rows,
        cut_off=np.zeros(len(groups), dtype=bool),
        episode_leaf=ends - 1,
        turn_parent=parents,
        turn_restart=np.zeros(count, dtype=bool),
        turn_reward=steps.rewards,
        turn_penalty=np.zeros(count),
        turn_invalid=np.zeros(count, dtype=bool),
        turn_observation=("",) * count,
        turn_actions=actions,
        turn_state=tuple(steps.rows.tolist()),
        turn_next_state=tuple([next_keys[key] for key in steps.following.tolist()]),
        turn_effects=tuple([text if effect else () for text, effect in zip(actions, is_effect, strict=True)]),
        turn_choices=(None,) * count,
        turn_tokens=tuple([tokens[action] for action in steps.actions.tolist()]),
        action_turn=np.arange(count),
        action_offset=np.ones(count, dtype=np.int64),
        logprobs=log_policy[steps.rows, steps.actions],
        action_penalty=np.zeros(count),
        turn_limits=limits,
    )
