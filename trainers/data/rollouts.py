"""Played episodes as arrays to learn from.

Three axes, from coarse to fine, each entry pointing to the one above it:

* episodes [E], in groups that share a start;
* turns [S], in time order within their episode;
* actions [N]: the tokens that the policy sampled, in the order in which it sampled them.

Beside them stand the rows [R]: the token sequences that the model saw. An episode whose conversation only ever
grew is one row; where its history was cut and the conversation began anew, a row ends and the next begins. Every
sampled token lies in exactly one row, and statistics are taken over episodes, so that an episode counts once
however many rows it fills.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ...agents.episode import Episode, Turn
from ...envs.errors import ConfigurationError
from .segments import BoolArray, FloatArray, IntArray, factorize, sum_by_group


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Episodes to learn from.

    Attributes:
        group: group of each episode, numbered from 0 by first appearance, [E].
        success: whether the episode ended in success, [E].
        truncated: whether a limit of steps, turns or context ended it, [E].
        turn_episode: episode of each turn, [S].
        turn_reward: what the world paid in the turn, [S].
        turn_penalty: what training takes off for the turn's form (format, length), at most 0, [S].
        turn_invalid: whether the turn was malformed or held no action or a refused one, [S].
        anchors: what identifies the state before each turn, [S]; None where it was not kept.
        action_turn: turn of each sampled token, [N].
        action_row: row that it lies in, [N].
        action_position: its place in the row, [N].
        logprobs: its log-probability under the sampling policy, [N].
        action_penalty: what training adds to the reward at the token, [N], such as -β·KL to a reference policy.
        rows: token ids of each sequence, R arrays.
    """

    group: IntArray
    success: BoolArray
    truncated: BoolArray
    turn_episode: IntArray
    turn_reward: FloatArray
    turn_penalty: FloatArray
    turn_invalid: BoolArray
    anchors: tuple[Hashable, ...]
    action_turn: IntArray
    action_row: IntArray
    action_position: IntArray
    logprobs: FloatArray
    action_penalty: FloatArray
    rows: tuple[IntArray, ...]

    # ------------------------------------------------------------------ sizes and views

    @property
    def episodes(self) -> int:
        return len(self.group)

    @property
    def groups(self) -> int:
        return int(self.group.max(initial=-1)) + 1

    @property
    def turns(self) -> int:
        return len(self.turn_episode)

    @property
    def actions(self) -> int:
        return len(self.action_turn)

    @property
    def action_episode(self) -> IntArray:
        """Episode of each sampled token, [N]."""
        return self.turn_episode[self.action_turn]

    @property
    def row_episode(self) -> IntArray:
        """Episode of each row, [R]; -1 for a row without a sampled token."""
        owner = np.full(len(self.rows), -1, dtype=np.int64)
        owner[self.action_row] = self.action_episode
        return owner

    @property
    def episode_lengths(self) -> IntArray:
        """Sampled tokens of each episode, [E]."""
        return np.bincount(self.action_episode, minlength=self.episodes)

    @property
    def turn_scores(self) -> FloatArray:
        """What each turn earned, [S]: the world's reward, the turn's penalty and those of its tokens."""
        return (
            self.turn_reward + self.turn_penalty + sum_by_group(self.action_penalty, self.action_turn, self.turns)
        )

    def returns(self, *, penalties: bool) -> FloatArray:
        """The undiscounted return of each episode, [E], with or without what training takes off."""
        rewards = self.turn_scores if penalties else self.turn_reward
        return sum_by_group(rewards, self.turn_episode, self.episodes)

    @property
    def turn_ends(self) -> IntArray:
        """The token that bears each turn's reward, [S]: its last sampled one.

        A turn in which nothing was sampled is paid at the last token before it in the same episode; -1 where
        there is none.
        """
        last = np.full(self.turns, -1, dtype=np.int64)
        last[self.action_turn] = np.arange(self.actions)
        if self.actions == 0:
            return last
        last = np.maximum.accumulate(last)
        return np.where((last >= 0) & (self.action_episode[last] == self.turn_episode), last, -1)

    def token_rewards(self, turn_rewards: FloatArray) -> FloatArray:
        """Place rewards [S] on the last sampled token of their turn, [N]."""
        ends = self.turn_ends
        paid = ends >= 0
        return sum_by_group(turn_rewards[paid], ends[paid], self.actions)

    # ------------------------------------------------------------------ new rollouts from old

    def add_episode_penalties(self, penalties: FloatArray) -> Rollouts:
        """With `penalties` [E], at most 0, added to the last turn of each episode."""
        total = self.turn_penalty.copy()
        last = np.flatnonzero(np.r_[self.turn_episode[1:] != self.turn_episode[:-1], True])
        total[last] += penalties[self.turn_episode[last]]
        return replace(self, turn_penalty=total)

    def add_token_penalties(self, penalties: FloatArray) -> Rollouts:
        """With `penalties` [N] added to single tokens."""
        return replace(self, action_penalty=self.action_penalty + penalties)

    def select(self, groups: Sequence[int] | IntArray) -> Rollouts:
        """Only the episodes of `groups`, renumbered; their order stays."""
        kept = np.isin(self.group, np.asarray(groups, dtype=np.int64))
        turns = kept[self.turn_episode]
        actions = turns[self.action_turn]
        rows = np.zeros(len(self.rows), dtype=bool)
        rows[self.action_row[actions]] = True
        new_episode, new_turn, new_row = (np.cumsum(mask) - 1 for mask in (kept, turns, rows))
        return Rollouts(
            group=factorize(self.group[kept].tolist()),
            success=self.success[kept],
            truncated=self.truncated[kept],
            turn_episode=new_episode[self.turn_episode[turns]],
            turn_reward=self.turn_reward[turns],
            turn_penalty=self.turn_penalty[turns],
            turn_invalid=self.turn_invalid[turns],
            anchors=tuple(anchor for anchor, keep in zip(self.anchors, turns, strict=True) if keep),
            action_turn=new_turn[self.action_turn[actions]],
            action_row=new_row[self.action_row[actions]],
            action_position=self.action_position[actions],
            logprobs=self.logprobs[actions],
            action_penalty=self.action_penalty[actions],
            rows=tuple(row for row, keep in zip(self.rows, rows, strict=True) if keep),
        )

    @staticmethod
    def concatenate(parts: Sequence[Rollouts]) -> Rollouts:
        """Several generation batches as one; groups of different parts stay apart."""

        def stack(name: str, counts: Sequence[int]) -> IntArray:
            offsets = np.cumsum([0, *counts])
            return np.concatenate(
                [getattr(part, name) + shift for part, shift in zip(parts, offsets, strict=False)]
            )

        def flatten(name: str) -> FloatArray:
            return np.concatenate([getattr(part, name) for part in parts])

        rows = [len(part.rows) for part in parts]
        return Rollouts(
            group=stack("group", [part.groups for part in parts]),
            success=flatten("success").astype(bool),
            truncated=flatten("truncated").astype(bool),
            turn_episode=stack("turn_episode", [part.episodes for part in parts]),
            turn_reward=flatten("turn_reward"),
            turn_penalty=flatten("turn_penalty"),
            turn_invalid=flatten("turn_invalid").astype(bool),
            anchors=tuple(anchor for part in parts for anchor in part.anchors),
            action_turn=stack("action_turn", [part.turns for part in parts]),
            action_row=stack("action_row", rows),
            action_position=flatten("action_position").astype(np.int64),
            logprobs=flatten("logprobs"),
            action_penalty=flatten("action_penalty"),
            rows=tuple(row for part in parts for row in part.rows),
        )


def from_episodes(
    episodes: Sequence[Episode],
    groups: Sequence[Hashable],
    *,
    anchor: Literal["state", "observation"] | None = None,
) -> Rollouts:
    """Turn played episodes into arrays.

    Args:
        episodes: whole episodes (without `error`) of an agent whose engine has a tokenizer. One that ended before
            a token was sampled (no room for the first prompt) has no row, but counts in its group.
        groups: for each episode the key of the prompt instance that it was sampled for. The key must be unique
            to that instance (see `plan`), never a task's name or a row number of a data set: two instances
            of one task in a batch are two groups.
        anchor: what `anchors` holds: `Turn.state_key`, the observation text, or nothing.

    Raises:
        ConfigurationError: an episode that cannot be learnt from, and why.
    """
    turn_episode: list[int] = []
    turn_reward: list[float] = []
    turn_penalty: list[float] = []
    turn_invalid: list[bool] = []
    anchors: list[Hashable] = []
    rows: list[list[int]] = []
    action_turn: list[int] = []
    action_row: list[int] = []
    action_position: list[int] = []
    logprobs: list[float] = []
    if len(episodes) != len(groups):
        raise ConfigurationError(
            f"{len(episodes)} episodes came with {len(groups)} group keys; give one for each."
        )
    for number, episode in enumerate(episodes):
        row: list[int] | None = None
        for place, turn in enumerate(episode.turns, 1):
            name = f"turn {place} of the episode of task {episode.task!r} (seed {episode.seed})"
            if turn.token_ids is not None:
                mask, probabilities = _sampled(turn, name)
                if row is None or turn.restart:
                    row = []
                    rows.append(row)
                for offset in np.flatnonzero(mask).tolist():
                    action_turn.append(len(turn_episode))
                    action_row.append(len(rows) - 1)
                    action_position.append(len(row) + offset)
                    logprobs.append(probabilities[offset])
                if mask[:1] == [1] and not row:
                    raise ConfigurationError(f"{name} begins with a sampled token; a prompt must come before it.")
                row += turn.token_ids
            turn_episode.append(number)
            turn_reward.append(sum(move.reward for move in turn.moves))
            turn_penalty.append(turn.penalty)
            turn_invalid.append(not (turn.well_formed and turn.moves and all(move.valid for move in turn.moves)))
            if anchor == "state" and turn.state_key is None:
                raise ConfigurationError(
                    f"{name} holds no state key; play with keep_states=True, or anchor on text."
                )
            anchors.append({"state": turn.state_key, "observation": turn.observation, None: None}[anchor])
        if episode.error is not None:
            raise ConfigurationError(
                f"an episode of task {episode.task!r} (seed {episode.seed}) failed: {episode.error}; leave it out."
            )
    if episodes and not action_turn:
        raise ConfigurationError(
            f"the episodes of {episodes[0].agent} hold no sampled tokens; take an engine with a tokenizer."
        )
    return Rollouts(
        group=factorize(groups),
        success=np.array([episode.success for episode in episodes], dtype=bool),
        truncated=np.array([episode.truncated for episode in episodes], dtype=bool),
        turn_episode=np.array(turn_episode, dtype=np.int64),
        turn_reward=np.array(turn_reward, dtype=np.float64),
        turn_penalty=np.array(turn_penalty, dtype=np.float64),
        turn_invalid=np.array(turn_invalid, dtype=bool),
        anchors=tuple(anchors),
        action_turn=np.array(action_turn, dtype=np.int64),
        action_row=np.array(action_row, dtype=np.int64),
        action_position=np.array(action_position, dtype=np.int64),
        logprobs=np.array(logprobs, dtype=np.float64),
        action_penalty=np.zeros(len(logprobs)),
        rows=tuple(np.array(row, dtype=np.int64) for row in rows),
    )


def _sampled(turn: Turn, name: str) -> tuple[list[int], list[float]]:
    """The turn's mask and log-probabilities, checked."""
    mask, logprobs, ids = turn.loss_mask, turn.logprobs, turn.token_ids
    if mask is None or logprobs is None or ids is None or not len(mask) == len(logprobs) == len(ids):
        raise ConfigurationError(f"{name} has tokens without as many masks and log-probabilities; play it again.")
    return mask, logprobs
