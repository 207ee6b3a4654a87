"""Episodes as arrays to train on.

The arrays have three axes, from coarse to fine. Every entry refers to its owner on the axis above:

* episodes [E], in groups that share a start;
* turns [S], in time order within their episode;
* actions [N]: the tokens sampled from the policy, in sampling order.

The rows [R] are the token sequences that the model processed. An episode is one row as long as its conversation
only grows; where the history was cut and the conversation restarted, a new row begins. Every sampled token
belongs to exactly one row. Statistics are computed over episodes, so an episode counts once, whatever its number
of rows.
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
    """Episodes to train on.

    Attributes:
        group: Group of each episode, numbered from 0 by first appearance, [E].
        success: True for episodes that ended in success, [E].
        truncated: True for episodes that a limit of steps, turns or context ended, [E].
        cut_off: True for truncated episodes whose last reply reached a limit of tokens, [E]; see `Turn.cut`.
        turn_episode: Episode of each turn, [S].
        turn_reward: Reward of the environment in each turn, [S].
        turn_penalty: Penalty of training for the form of each turn (format, length), at most 0, [S].
        turn_invalid: True for turns that were malformed, or held no action or a refused one, [S].
        anchors: Identity of the state before each turn, [S]; None where it was not stored.
        action_turn: Turn of each sampled token, [N].
        action_row: Row of each sampled token, [N].
        action_position: Index of each sampled token in its row, [N].
        logprobs: Log-probability of each sampled token under the sampling policy, [N].
        action_penalty: Reward that training adds at each sampled token, such as -β·KL to a reference policy, [N].
        rows: Token ids of each sequence, R arrays.
    """

    group: IntArray
    success: BoolArray
    truncated: BoolArray
    cut_off: BoolArray
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

    # ------------------------------------------------------------------ sizes and derived arrays

    @property
    def episodes(self) -> int:
        """Number of episodes E."""
        return len(self.group)

    @property
    def groups(self) -> int:
        """Number of groups."""
        return int(self.group.max(initial=-1)) + 1

    @property
    def turns(self) -> int:
        """Number of turns S."""
        return len(self.turn_episode)

    @property
    def actions(self) -> int:
        """Number of sampled tokens N."""
        return len(self.action_turn)

    @property
    def action_episode(self) -> IntArray:
        """Episode of each sampled token, [N]."""
        return self.turn_episode[self.action_turn]

    @property
    def episode_lengths(self) -> IntArray:
        """Number of sampled tokens of each episode, [E]."""
        return np.bincount(self.action_episode, minlength=self.episodes)

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
        return sum_by_group(rewards, self.turn_episode, self.episodes)

    @property
    def last_turns(self) -> IntArray:
        """Index of the last turn of every episode that has turns, ascending."""
        return np.flatnonzero(np.r_[self.turn_episode[1:] != self.turn_episode[:-1], True][: self.turns])

    @property
    def turn_ends(self) -> IntArray:
        """Index of the token that receives each turn's reward, [S]: its last sampled one.

        A turn without a sampled token uses the last token before it in the same episode; -1 if there is none.
        """
        last = np.full(self.turns, -1, dtype=np.int64)
        last[self.action_turn] = np.arange(self.actions)
        if self.actions == 0:
            return last
        last = np.maximum.accumulate(last)
        return np.where((last >= 0) & (self.action_episode[last] == self.turn_episode), last, -1)

    def token_rewards(self, turn_rewards: FloatArray) -> FloatArray:
        """Place rewards of turns [S] on the last sampled token of their turn; see `turn_ends`.

        Returns:
            Rewards, shape [N]; 0 at all other tokens.
        """
        ends = self.turn_ends
        rewarded = ends >= 0
        return sum_by_group(turn_rewards[rewarded], ends[rewarded], self.actions)

    # ------------------------------------------------------------------ modified copies

    def add_episode_penalties(self, penalties: FloatArray) -> Rollouts:
        """Return a copy with penalties [E], at most 0, added to the last turn of each episode."""
        total = self.turn_penalty.copy()
        total[self.last_turns] += penalties[self.turn_episode[self.last_turns]]
        return replace(self, turn_penalty=total)

    def add_token_penalties(self, penalties: FloatArray) -> Rollouts:
        """Return a copy with penalties [N] added to the sampled tokens."""
        return replace(self, action_penalty=self.action_penalty + penalties)

    def select(self, groups: Sequence[int] | IntArray) -> Rollouts:
        """Return the episodes of some groups, renumbered, in their original order."""
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
            cut_off=self.cut_off[kept],
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
        """Concatenate generation batches; groups of different batches remain different groups."""

        def join_shifted(name: str, counts: Sequence[int]) -> IntArray:
            offsets = np.cumsum([0, *counts])
            return np.concatenate(
                [getattr(part, name) + shift for part, shift in zip(parts, offsets, strict=False)]
            )

        def join(name: str) -> FloatArray:
            return np.concatenate([getattr(part, name) for part in parts])

        rows = [len(part.rows) for part in parts]
        return Rollouts(
            group=join_shifted("group", [part.groups for part in parts]),
            success=join("success").astype(bool),
            truncated=join("truncated").astype(bool),
            cut_off=join("cut_off").astype(bool),
            turn_episode=join_shifted("turn_episode", [part.episodes for part in parts]),
            turn_reward=join("turn_reward"),
            turn_penalty=join("turn_penalty"),
            turn_invalid=join("turn_invalid").astype(bool),
            anchors=tuple(anchor for part in parts for anchor in part.anchors),
            action_turn=join_shifted("action_turn", [part.turns for part in parts]),
            action_row=join_shifted("action_row", rows),
            action_position=join("action_position").astype(np.int64),
            logprobs=join("logprobs"),
            action_penalty=join("action_penalty"),
            rows=tuple(row for part in parts for row in part.rows),
        )


def from_episodes(
    episodes: Sequence[Episode],
    groups: Sequence[Hashable],
    *,
    anchor: Literal["state", "observation"] | None = None,
) -> Rollouts:
    """Convert sampled episodes to arrays.

    Args:
        episodes: Complete episodes (without `error`) of an agent whose engine has a tokenizer. An episode that
            ended before a token was sampled (its first prompt did not fit) has no row, but counts in its group.
        groups: Key of the prompt instance that each episode was sampled for. The key must be unique to that
            instance (see `plan_chains`), not the name of a task or a row number of a data set: two instances of
            one task in a batch are two groups.
        anchor: Content of `Rollouts.anchors`: `Turn.state_key`, the observation text, or nothing.

    Raises:
        ConfigurationError: An episode cannot be trained on: it failed, lacks tokens, or lacks its state keys.
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
            f"{len(episodes)} episodes came with {len(groups)} group keys; give one key for each episode."
        )
    for index, episode in enumerate(episodes):
        row: list[int] | None = None
        for number, turn in enumerate(episode.turns, 1):
            name = f"turn {number} of the episode of task {episode.task!r} (seed {episode.seed})"
            if turn.token_ids is not None:
                mask, turn_logprobs = _mask_and_logprobs(turn, name)
                if row is None or turn.restart:
                    row = []
                    rows.append(row)
                for offset in np.flatnonzero(mask).tolist():
                    action_turn.append(len(turn_episode))
                    action_row.append(len(rows) - 1)
                    action_position.append(len(row) + offset)
                    logprobs.append(turn_logprobs[offset])
                if mask[:1] == [1] and not row:
                    raise ConfigurationError(f"{name} begins with a sampled token; a prompt must precede it.")
                row += turn.token_ids
            turn_episode.append(index)
            turn_reward.append(sum(move.reward for move in turn.moves))
            turn_penalty.append(turn.penalty)
            turn_invalid.append(not (turn.well_formed and turn.moves and all(move.valid for move in turn.moves)))
            if anchor == "state" and turn.state_key is None:
                raise ConfigurationError(
                    f"{name} has no state key; play with keep_states=True, or anchor on the observation."
                )
            anchors.append({"state": turn.state_key, "observation": turn.observation, None: None}[anchor])
        if episode.error is not None:
            raise ConfigurationError(
                f"the episode of task {episode.task!r} (seed {episode.seed}) failed: {episode.error}; omit it."
            )
    if episodes and not action_turn:
        raise ConfigurationError(
            f"the episodes of {episodes[0].agent} have no sampled tokens; use an engine with a tokenizer."
        )
    return Rollouts(
        group=factorize(groups),
        success=np.array([episode.success for episode in episodes], dtype=bool),
        truncated=np.array([episode.truncated for episode in episodes], dtype=bool),
        cut_off=np.array([episode.truncated and _is_cut(episode) for episode in episodes], dtype=bool),
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


def _is_cut(episode: Episode) -> bool:
    return bool(episode.turns and episode.turns[-1].cut)


def _mask_and_logprobs(turn: Turn, name: str) -> tuple[list[int], list[float]]:
    """Return the loss mask and log-probabilities of a turn.

    Raises:
        ConfigurationError: They are not as many as the tokens.
    """
    mask, logprobs, ids = turn.loss_mask, turn.logprobs, turn.token_ids
    if mask is None or logprobs is None or ids is None or not len(mask) == len(logprobs) == len(ids):
        raise ConfigurationError(
            f"{name} does not have one mask entry and one log-probability for each token; play it again."
        )
    return mask, logprobs
