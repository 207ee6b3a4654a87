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
def _tokens(rows: int, width: int) -> tuple[IntArray, ...]:
    """Return the tokens that a turn adds for every entry of `Mdp.names`: the row as its prompt, and the action."""
    return tuple(np.stack([np.repeat(np.arange(rows), width), np.tile(np.arange(width), rows)], axis=1))


@lru_cache(maxsize=64)
def _choices(names: tuple[str, ...], width: int) -> tuple[tuple[str, ...], ...]:
    """Return the texts of the actions of every row; actions that a row does not have are empty texts."""
    rows = (names[start : start + width] for start in range(0, len(names), width))
    return tuple(tuple(name for name in row if name) for row in rows)


class TableProbe:
    """Access of a credit rule to a table; a context ends with the prompt of a turn, which is its row.

    Args:
        mdp: Tasks.
        log_policy: Log-probability of each action, [N, A].
    """

    def __init__(self, mdp: Mdp, log_policy: FloatArray) -> None:
        self._names, self._log_policy = mdp.names, log_policy

    def action_logprobs(
        self, contexts: Sequence[IntArray], actions: Sequence[Sequence[str]], *, normalize: bool = True
    ) -> list[FloatArray]:
        """Return the log-probability of each action in each context; see `PolicyProbe`."""
        width = self._log_policy.shape[1]
        scores = []
        for context, texts in zip(contexts, actions, strict=True):
            row = int(context[-1])
            names = self._names[row * width : (row + 1) * width]
            scores.append(self._log_policy[row, [names.index(text) for text in texts]])
        return scores

    def sample_actions(self, contexts: Sequence[IntArray], count: int, seed: int) -> list[list[str]]:
        """Raise, since every row lists its actions, so that none is sampled."""
        raise NotImplementedError("a table lists its actions")


def build_rollouts(
    mdp: Mdp,
    steps: Steps,
    groups: IntArray,
    log_policy: FloatArray,
    trees: Sequence[Hashable] | None = None,
    branches: Sequence[Branch | None] | None = None,
) -> Rollouts:
    """Return episodes as rollouts.

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
    texts, rows, keys = _texts(mdp.names), steps.rows.tolist(), mdp.row_keys.tolist()
    cells = places.tolist()
    actions = tuple([texts[place] for place in cells])
    is_effect = mdp.effects.ravel()[places].tolist()
    next_keys = [*keys, None]
    tokens, choices = _tokens(mdp.rows, width), _choices(mdp.names, width)
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
        turn_state=tuple([keys[row] for row in rows]),
        turn_next_state=tuple([next_keys[key] for key in steps.following.tolist()]),
        turn_effects=tuple([text if effect else () for text, effect in zip(actions, is_effect, strict=True)]),
        turn_choices=tuple([choices[row] for row in rows]),
        turn_tokens=tuple([tokens[place] for place in cells]),
        action_turn=np.arange(count),
        action_offset=np.ones(count, dtype=np.int64),
        logprobs=log_policy[steps.rows, steps.actions],
        action_penalty=np.zeros(count),
        turn_limits=limits,
    )
