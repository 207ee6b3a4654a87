"""Episodes as arrays to train on: a forest of turns.

The arrays have three axes, from coarse to fine. Every entry refers to its owner on the axis above:

* episodes [E], in groups that share a start; an episode is its last turn;
* turns [S]: every turn refers to the turn before it, its parent, which precedes it in the arrays;
* actions [N]: the tokens sampled from the policy, by turn and in sampling order.

Episodes that branch off each other share the turns before the branch, and with them their tokens. A chain is an
episode that shares none. Two further axes are derived, which repeat what is shared:

* paths [P]: the turns of every episode from its first to its last, episode by episode;
* copies [M]: the sampled tokens of every path, so a token shared by k episodes has k copies. Losses and
  advantages are defined on copies, where each episode counts on its own.

A turn *adds* tokens to the conversation of its parent. Where the history was cut, a conversation begins anew. The
rows [R] are the distinct conversations of all episodes, complete from their first token. Statistics are computed
over episodes, so an episode counts once, whatever its number of rows.

Without branches a path is its episode's turns and every token has one copy: P = S and M = N, in the same order.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .segments import BoolArray, FloatArray, IntArray, factorize, sum_by_group


class Paths(NamedTuple):
    """Turns of every episode from its first to its last, each of shape [P].

    Attributes:
        turn: Turn.
        episode: Episode, ascending.
    """

    turn: IntArray
    episode: IntArray


class Copies(NamedTuple):
    """Sampled tokens of every path, each of shape [M].

    Attributes:
        action: Sampled token.
        path: Index on the path axis.
        episode: Episode, ascending.
        row: Row, which is the conversation of this episode that contains the token.
    """

    action: IntArray
    path: IntArray
    episode: IntArray
    row: IntArray


class Redraw(NamedTuple):
    """Further outcome of a turn's actions, with the random events of the environment drawn anew.

    Attributes:
        reward: Reward of the environment.
        next_state: Key of the state after the actions; None where the environment terminated.
        actions: Number of executed actions.
        spent: What they take from the actions that the limits allow; a limit on valid ones counts no other.
    """

    reward: float
    next_state: Hashable
    actions: int
    spent: int


@dataclass(frozen=True)
class Rollouts:
    """Episodes to train on.

    Attributes:
        group: Group of each episode, numbered from 0 by first appearance, [E].
        tree: Tree of each episode, numbered from 0 by first appearance, [E]. Episodes that share a turn are in one
            tree; a chain is a tree of its own.
        success: True for episodes that ended in success, [E].
        truncated: True for episodes that a limit of steps, turns or context ended, [E].
        cut_off: True for truncated episodes whose last reply reached a limit of tokens, [E]; see `Turn.cut`.
        episode_leaf: Last turn of each episode, which no other episode passes, [E]; -1 without a turn.
        turn_parent: Turn before each turn, [S]; -1 at a start. Parents precede their children.
        turn_restart: True for turns whose conversation begins anew, since the history was cut, [S].
        turn_reward: Reward of the environment in each turn, [S].
        turn_penalty: Penalty of training for the form of each turn (format, length), at most 0, [S].
        turn_invalid: True for turns that were malformed, or held no action or a refused one, [S].
        turn_observation: Observation before each turn, [S].
        turn_actions: Actions of each turn as parsed from the reply and cut to the budgets, [S]. An episode that
            ended within a turn did not execute all of them.
        turn_state: Key of the state before each turn, [S]; None where it was not stored.
        turn_next_state: Key of the state after each turn, [S]; None where it was not stored or the environment
            terminated. A limit of steps or turns does not terminate.
        turn_effects: Executed actions of each turn that modified the environment (see `Turn.effects`), [S]; None
            where they were not stored.
        turn_choices: Admissible actions before each turn, [S]; None where they were not stored or cannot be
            listed.
        turn_tokens: Token ids that each turn adds to its conversation, S arrays.
        action_turn: Turn of each sampled token, ascending, [N].
        action_offset: Index of each sampled token among those that its turn adds, [N].
        logprobs: Log-probability of each sampled token under the sampling policy, [N].
        action_penalty: Reward that training adds at each sampled token, such as -β·KL to a reference policy, [N].
        turn_limits: Turns and actions that the limits allow before each turn, this turn included, and the same
            after it, [S, 2, 2]; infinite without a limit. None where they were not stored.
        turn_redraws: Further outcomes of the actions of each turn, [S]; turns of a group with equal state and
            actions have the same ones. None where none were drawn.
        episode_env: Environment of each episode, numbered as in `TrainingConfig.envs`, [E]; None in a run on a
            single environment. Episodes of a group have the same one.
    """

    group: IntArray
    tree: IntArray
    success: BoolArray
    truncated: BoolArray
    cut_off: BoolArray
    episode_leaf: IntArray
    turn_parent: IntArray
    turn_restart: BoolArray
    turn_reward: FloatArray
    turn_penalty: FloatArray
    turn_invalid: BoolArray
    turn_observation: tuple[str, ...]
    turn_actions: tuple[tuple[str, ...], ...]
    turn_state: tuple[Hashable, ...]
    turn_next_state: tuple[Hashable, ...]
    turn_effects: tuple[tuple[str, ...] | None, ...]
    turn_choices: tuple[tuple[str, ...] | None, ...]
    turn_tokens: tuple[IntArray, ...]
    action_turn: IntArray
    action_offset: IntArray
    logprobs: FloatArray
    action_penalty: FloatArray
    turn_limits: FloatArray | None = None
    turn_redraws: tuple[tuple[Redraw, ...], ...] | None = None
    episode_env: IntArray | None = None

    # ------------------------------------------------------------------ sizes

    @property
    def episodes(self) -> int:
        """Number of episodes E."""
        return len(self.group)

    @property
    def groups(self) -> int:
        """Number of groups."""
        return int(self.group.max(initial=-1)) + 1

    @property
    def group_env(self) -> IntArray:
        """Environment of each group, one entry per group; zeros in a run on a single environment."""
        envs = np.zeros(self.groups, dtype=np.int64)
        if self.episode_env is not None:
            envs[self.group] = self.episode_env
        return envs

    @property
    def turns(self) -> int:
        """Number of turns S, shared ones counted once."""
        return len(self.turn_parent)

    @property
    def actions(self) -> int:
        """Number of sampled tokens N, shared ones counted once."""
        return len(self.action_turn)

    @property
    def episode_lengths(self) -> IntArray:
        """Number of sampled tokens of each episode, [E]."""
        return np.bincount(self.copies.episode, minlength=self.episodes)

    # ------------------------------------------------------------------ structure

    @property
    def has_branches(self) -> bool:
        """True if episodes share a turn."""
        return len(self.paths.turn) > self.turns

    @cached_property
    def turn_depth(self) -> IntArray:
        """Number of turns before each turn, [S]."""
        depth = [0] * self.turns
        for turn, parent in enumerate(self.turn_parent.tolist()):
            depth[turn] = depth[parent] + 1 if parent >= 0 else 0
        return np.array(depth, dtype=np.int64)

    @cached_property
    def paths(self) -> Paths:
        """Turns of every episode."""
        has_turns = self.episode_leaf >= 0
        lengths = np.where(has_turns, self.turn_depth[self.episode_leaf] + 1, 0) if self.turns else 0 * self.group
        offsets = np.cumsum(lengths) - lengths
        turns = np.empty(int(lengths.sum()), dtype=np.int64)
        episodes = np.flatnonzero(has_turns)
        current = self.episode_leaf[episodes]
        while len(current):
            turns[offsets[episodes] + self.turn_depth[current]] = current
            current = self.turn_parent[current]
            episodes, current = episodes[current >= 0], current[current >= 0]
        return Paths(turns, np.repeat(np.arange(self.episodes), lengths))

    @cached_property
    def copies(self) -> Copies:
        """Sampled tokens of every episode."""
        turns = self.paths.turn
        sizes = np.bincount(self.action_turn, minlength=self.turns)
        firsts = np.cumsum(sizes) - sizes
        counts = sizes[turns]
        path = np.repeat(np.arange(len(turns)), counts)
        within = np.arange(len(path)) - np.repeat(np.cumsum(counts) - counts, counts)
        return Copies(firsts[turns[path]] + within, path, self.paths.episode[path], self._path_rows[0][path])

    @cached_property
    def _path_rows(self) -> tuple[IntArray, IntArray]:
        """Row of each path entry, [P], -1 without a conversation, and last turn of each row, [R]."""
        turns, episodes = self.paths
        added = np.array([len(ids) for ids in self.turn_tokens], dtype=np.int64)[turns] > 0
        entries = np.flatnonzero(added)
        # A conversation lasts until the episode's next turn that adds tokens to a new one.
        starts = self.turn_restart[turns[entries]] | np.r_[True, np.diff(episodes[entries]) > 0][: len(entries)]
        number = np.cumsum(starts) - 1
        ends = turns[entries[np.r_[number[1:] != number[:-1], True][: len(entries)]]]
        rows = factorize(ends.tolist())
        last = np.zeros(int(rows.max(initial=-1)) + 1, dtype=np.int64)
        last[rows] = ends
        path_rows = np.full(len(turns), -1, dtype=np.int64)
        path_rows[entries] = rows[number]
        return path_rows, last

    @cached_property
    def rows(self) -> tuple[IntArray, ...]:
        """Token ids of each conversation, R arrays."""
        return tuple(
            np.concatenate([self.turn_tokens[turn] for turn in self.conversation(end)])
            for end in self._path_rows[1].tolist()
        )

    def conversation(self, turn: int) -> list[int]:
        """Return the turns of the conversation that ends with a turn, in order."""
        turns = [turn]
        while not self.turn_restart[turn] and self.turn_parent[turn] >= 0:
            turn = int(self.turn_parent[turn])
            turns.append(turn)
        return turns[::-1]

    @cached_property
    def action_position(self) -> IntArray:
        """Index of each sampled token in its conversation, [N]."""
        starts = [0] * self.turns
        for turn, parent in enumerate(self.turn_parent.tolist()):
            if parent >= 0 and not self.turn_restart[turn]:
                starts[turn] = starts[parent] + len(self.turn_tokens[parent])
        return np.array(starts, dtype=np.int64)[self.action_turn] + self.action_offset

    @cached_property
    def action_tokens(self) -> IntArray:
        """Id of each sampled token, [N]."""
        sizes = np.array([len(ids) for ids in self.turn_tokens], dtype=np.int64)
        ids = np.concatenate([*self.turn_tokens, np.zeros(0, dtype=np.int64)])
        tokens: IntArray = ids[(np.cumsum(sizes) - sizes)[self.action_turn] + self.action_offset]
        return tokens

    # ------------------------------------------------------------------ rewards

    @property
    def turn_scores(self) -> FloatArray:
        """Reward of each turn with all penalties, those of its tokens included, [S]."""
        return (
            self.turn_reward + self.turn_penalty + sum_by_group(self.action_penalty, self.action_turn, self.turns)
        )

    def returns(self, *, penalties: bool) -> FloatArray:
        """Return the undiscounted return of each episode, [E].

        Args:
            penalties: Include the penalties of training.
        """
        rewards = self.turn_scores if penalties else self.turn_reward
        return sum_by_group(rewards[self.paths.turn], self.paths.episode, self.episodes)

    def place_at_leaves(self, values: FloatArray) -> FloatArray:
        """Return values [E] at the last turns of their episodes and 0 at all other turns, [S]."""
        placed = np.zeros(self.turns)
        has_turns = self.episode_leaf >= 0
        placed[self.episode_leaf[has_turns]] = values[has_turns]
        return placed

    @property
    def path_ends(self) -> IntArray:
        """Copy that receives the reward of each path entry, [P]: the last sampled token of its turn.

        A turn without a sampled token uses the last token before it in the same episode; -1 if there is none.
        """
        copies, paths = self.copies, self.paths
        last = np.full(len(paths.turn), -1, dtype=np.int64)
        last[copies.path] = np.arange(len(copies.path))
        if len(copies.path) == 0:
            return last
        last = np.maximum.accumulate(last)
        return np.where((last >= 0) & (copies.episode[last] == paths.episode), last, -1)

    def token_rewards(self, turn_rewards: FloatArray) -> FloatArray:
        """Place rewards of turns [S] on the last sampled token of their turn; see `path_ends`.

        Returns:
            Rewards of the copies, shape [M]; 0 at all other tokens.
        """
        ends = self.path_ends
        rewarded = ends >= 0
        return sum_by_group(turn_rewards[self.paths.turn[rewarded]], ends[rewarded], len(self.copies.action))

    # ------------------------------------------------------------------ modified copies

    def add_episode_penalties(self, penalties: FloatArray) -> Rollouts:
        """Return a copy with penalties [E], at most 0, added to the last turn of each episode."""
        return replace(self, turn_penalty=self.turn_penalty + self.place_at_leaves(penalties))

    def add_token_penalties(self, penalties: FloatArray) -> Rollouts:
        """Return a copy with penalties [N] added to the sampled tokens."""
        return replace(self, action_penalty=self.action_penalty + penalties)

    def select(self, groups: Sequence[int] | IntArray) -> Rollouts:
        """Return the episodes of some groups, renumbered, in their original order."""
        kept = np.isin(self.group, np.asarray(groups, dtype=np.int64))
        turns = np.zeros(self.turns, dtype=bool)
        turns[self.paths.turn[kept[self.paths.episode]]] = True
        actions = turns[self.action_turn]
        # An index of -1 reads the last entry, which stands for "none".
        new_turn = np.r_[np.cumsum(turns) - 1, -1]
        masks = {
            "episode": kept,
            "group": kept,
            "tree": kept,
            "success": kept,
            "truncated": kept,
            "cut": kept,
            "turn": turns,
        }
        selected: dict[str, Any] = {
            field.name: _mask(getattr(self, field.name), masks.get(field.name.partition("_")[0], actions))
            for field in fields(self)
        }
        for name in ("group", "tree"):
            selected[name] = factorize(selected[name].tolist())
        for name in ("episode_leaf", "turn_parent", "action_turn"):
            selected[name] = new_turn[selected[name]]
        return Rollouts(**selected)

    @staticmethod
    def concatenate(parts: Sequence[Rollouts]) -> Rollouts:
        """Concatenate generation batches; groups of different batches remain different groups."""
        joined: dict[str, Any] = {
            field.name: _join([getattr(part, field.name) for part in parts]) for field in fields(Rollouts)
        }
        turns = [part.turns for part in parts]
        for name, counts in (
            ("group", [part.groups for part in parts]),
            ("tree", [int(part.tree.max(initial=-1)) + 1 for part in parts]),
            ("episode_leaf", turns),
            ("turn_parent", turns),
            ("action_turn", turns),
        ):
            shifts = np.repeat(np.cumsum([0, *counts[:-1]]), [len(getattr(part, name)) for part in parts])
            joined[name] = np.where(joined[name] >= 0, joined[name] + shifts, -1)
        return Rollouts(**joined)


def _mask(values: Any, mask: BoolArray) -> Any:
    """Return the kept entries of an array or tuple; None for None."""
    if values is None:
        return None
    if isinstance(values, tuple):
        return tuple(value for value, keep in zip(values, mask, strict=True) if keep)
    return values[mask]


def _join(values: Sequence[Any]) -> Any:
    """Return the concatenation of arrays, or of tuples; None if a part is None."""
    if any(value is None for value in values):
        return None
    if isinstance(values[0], tuple):
        return tuple(value for part in values for value in part)
    return np.concatenate(values)
