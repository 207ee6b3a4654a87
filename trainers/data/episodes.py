"""Conversion of played episodes to rollouts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...agents.episode import Episode, Turn
from ...envs.errors import ConfigurationError
from .rollouts import Redraw, Rollouts
from .segments import FloatArray, factorize

DrawKey = tuple[Hashable, Hashable, tuple[str, ...] | None]
"""Group, state key and actions of turns that have the same distribution of outcomes."""


class Branch(NamedTuple):
    """Place at which an episode branches off an earlier one.

    Attributes:
        episode: Index of the earlier episode.
        turns: Number of turns that the two share, from the first on.
    """

    episode: int
    turns: int


def from_episodes(
    episodes: Sequence[Episode],
    groups: Sequence[Hashable],
    *,
    trees: Sequence[Hashable] | None = None,
    branches: Sequence[Branch | None] | None = None,
    redraws: Mapping[DrawKey, tuple[Redraw, ...]] | None = None,
    envs: Sequence[int] | None = None,
) -> Rollouts:
    """Convert sampled episodes to arrays.

    Args:
        episodes: Complete episodes (without `error`) of an agent whose engine has a tokenizer. An episode that
            ended before a token was sampled (its first prompt did not fit) has no row, but counts in its group.
        groups: Key of the prompt instance that each episode was sampled for. The key must be unique to that
            instance (see `plan_chains`), not the name of a task or a row number of a data set: two instances of
            one task in a batch are two groups.
        trees: Key of each episode's tree; None makes a tree of every episode and of those that branch off it.
        branches: Branch of each episode; None for those that share no turn with an earlier one.
        redraws: Further outcomes by group, state and actions; None if there are none.
        envs: Number of each episode's environment in a run on several; None in a run on a single one.

    Raises:
        ConfigurationError: An episode cannot be trained on: it failed, lacks tokens, or branches off an episode
            that does not have these turns.
    """
    origins: Sequence[Branch | None] = branches if branches is not None else [None] * len(episodes)
    if any(len(keys) != len(episodes) for keys in (groups, origins, episodes if trees is None else trees)):
        raise ConfigurationError(
            f"{len(episodes)} episodes came with {len(groups)} group keys and {len(origins)} branches; give one "
            "of each for each episode, and one tree key if any."
        )
    turns, parents, keys, nodes = _merge(episodes, groups, origins)
    labels: Sequence[Hashable] = trees if trees is not None else _roots(origins)
    offsets = [
        np.flatnonzero(turn.loss_mask or ()) if turn.token_ids else np.zeros(0, dtype=np.int64) for turn in turns
    ]
    if episodes and not any(len(places) for places in offsets):
        raise ConfigurationError(
            f"the episodes of {episodes[0].agent} have no sampled tokens; use an engine with a tokenizer."
        )
    return Rollouts(
        group=factorize(groups),
        tree=factorize(zip(groups, labels, strict=True)),
        success=np.array([episode.success for episode in episodes], dtype=bool),
        truncated=np.array([episode.truncated for episode in episodes], dtype=bool),
        cut_off=np.array([episode.truncated and _is_cut(episode) for episode in episodes], dtype=bool),
        episode_leaf=np.array([path[-1] if path else -1 for path in nodes], dtype=np.int64),
        turn_parent=np.array(parents, dtype=np.int64),
        turn_restart=np.array([bool(turn.restart and turn.token_ids) for turn in turns], dtype=bool),
        turn_reward=np.array([sum(move.reward for move in turn.moves) for turn in turns], dtype=np.float64),
        turn_penalty=np.array([turn.penalty for turn in turns], dtype=np.float64),
        turn_invalid=np.array([not _is_valid(turn) for turn in turns], dtype=bool),
        turn_observation=tuple(turn.observation for turn in turns),
        turn_actions=tuple(
            turn.actions if turn.actions is not None else tuple(move.action for move in turn.moves)
            for turn in turns
        ),
        turn_state=tuple(turn.state_key for turn in turns),
        turn_next_state=tuple(turn.next_state_key for turn in turns),
        turn_effects=tuple(turn.effects for turn in turns),
        turn_choices=tuple(turn.choices for turn in turns),
        turn_tokens=tuple(np.array(turn.token_ids or (), dtype=np.int64) for turn in turns),
        action_turn=np.repeat(np.arange(len(turns)), [len(places) for places in offsets]),
        action_offset=np.concatenate([*offsets, np.zeros(0, dtype=np.int64)]),
        logprobs=np.array(
            [
                (turn.logprobs or ())[place]
                for turn, places in zip(turns, offsets, strict=True)
                for place in places.tolist()
            ],
            dtype=np.float64,
        ),
        action_penalty=np.zeros(sum(len(places) for places in offsets)),
        turn_limits=_limits(turns),
        turn_redraws=None if redraws is None else tuple(redraws.get(key, ()) for key in keys),
        episode_env=None if envs is None else np.array(envs, dtype=np.int64),
    )


class _Merged(NamedTuple):
    """Turns of all episodes, of which those that episodes share are there once.

    Attributes:
        turns: The turns, each after the one before it in its episode.
        parents: Index of the turn before each; -1 for first turns.
        keys: Key of each turn's further outcomes.
        nodes: Indices of each episode's turns.
    """

    turns: list[Turn]
    parents: list[int]
    keys: list[DrawKey]
    nodes: list[list[int]]


def _merge(episodes: Sequence[Episode], groups: Sequence[Hashable], origins: Sequence[Branch | None]) -> _Merged:
    merged = _Merged([], [], [], [])
    turns, parents, keys, nodes = merged
    for index, (episode, branch) in enumerate(zip(episodes, origins, strict=True)):
        path = _shared_turns(nodes, index, episode, branch)
        for turn in episode.turns[len(path) :]:
            _check(turn, episode, number=len(path) + 1, conversation=[turns[node] for node in path])
            parents.append(path[-1] if path else -1)
            path = [*path, len(turns)]
            turns.append(turn)
            keys.append((groups[index], turn.state_key, turn.actions))
        if episode.error is not None:
            raise ConfigurationError(
                f"the episode of task {episode.task!r} (seed {episode.seed}) failed: {episode.error}; omit it."
            )
        nodes.append(path)
    return merged


def _limits(turns: Sequence[Turn]) -> FloatArray | None:
    """Return what the limits allow before and after each turn, [S, 2, 2]; None if that was not recorded."""
    recorded = [(turn.limits, turn.limits_after) for turn in turns]
    if any(before is None or after is None for before, after in recorded):
        return None
    numbers = np.array(recorded, dtype=np.float64).reshape(len(turns), 2, 2)  # None becomes NaN.
    return np.where(np.isnan(numbers), np.inf, numbers)


def _roots(branches: Sequence[Branch | None]) -> list[int]:
    """Return the episode from which each episode descends."""
    roots: list[int] = []
    for index, branch in enumerate(branches):
        roots.append(index if branch is None else roots[branch.episode])
    return roots


def _shared_turns(nodes: list[list[int]], index: int, episode: Episode, branch: Branch | None) -> list[int]:
    """Return the turns that an episode shares with an earlier one."""
    if branch is None:
        return []
    known = nodes[branch.episode] if 0 <= branch.episode < index else []
    if not 0 <= branch.turns < min(len(known), len(episode.turns)):
        raise ConfigurationError(
            f"the episode of task {episode.task!r} (seed {episode.seed}) cannot share {branch.turns} turns with "
            f"episode {branch.episode}; the other one must come before it, and both must have a further turn."
        )
    return known[: branch.turns]


def _is_cut(episode: Episode) -> bool:
    return bool(episode.turns and episode.turns[-1].cut)


def _is_valid(turn: Turn) -> bool:
    return bool(turn.well_formed and turn.moves and all(move.valid for move in turn.moves))


def _check(turn: Turn, episode: Episode, *, number: int, conversation: Sequence[Turn]) -> None:
    """Check the tokens of a turn.

    Raises:
        ConfigurationError: Mask or log-probabilities are not as many as the tokens, or no prompt precedes them.
    """
    mask, logprobs, ids = turn.loss_mask, turn.logprobs, turn.token_ids
    if ids is None:
        return
    name = f"turn {number} of the episode of task {episode.task!r} (seed {episode.seed})"
    if mask is None or logprobs is None or not len(mask) == len(logprobs) == len(ids):
        raise ConfigurationError(
            f"{name} does not have one mask entry and one log-probability for each token; play it again."
        )
    begins = turn.restart or not any(before.token_ids for before in conversation)
    if begins and mask[:1] == [1]:
        raise ConfigurationError(f"{name} begins with a sampled token; a prompt must precede it.")
