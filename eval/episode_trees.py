"""Trees of stored episodes: several episodes of one task, merged where they reach the same state.

Records do not hold the keys of states. They are computed again by replaying the recorded actions with the
recorded seed; where the environment is not available, or answers otherwise than it did, equal observations count
as equal states.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from ..agents.episode import Episode, Turn
from ..agents.execution import trial_seed
from ..agents.recorded_start import reset_as_recorded
from ..envs.core import TextEnv
from .trees import THRESHOLD, Edge, Node, Outcome, Step, Tree, find_divergences


class NamedEpisode(NamedTuple):
    """An episode and its name in a tree.

    Attributes:
        label: The name.
        episode: The episode.
        trial: Number of earlier attempts at its task in the same episode, for agents that retry.
    """

    label: str
    episode: Episode
    trial: int = 0


class TurnEnd(NamedTuple):
    """State in which a turn ended.

    Attributes:
        state: Key of the state, or the observation in its place.
        effects: Actions of the turn that modified the environment.
    """

    state: Hashable
    effects: tuple[str, ...]


def replay(env: TextEnv[Any], episode: Episode, trial: int = 0) -> list[TurnEnd] | None:
    """Return the end of each turn of an episode, by replaying its actions.

    Args:
        env: Environment of the episode's suite entry.
        episode: Complete episode.
        trial: See `NamedEpisode`.

    Returns:
        One entry per turn; None if the environment fails, or its observations are not the recorded ones.
    """
    ends: list[TurnEnd] = []
    try:
        seed = trial_seed(episode.seed, trial)
        observation, _ = reset_as_recorded(env, episode.task, seed, episode.chance_seed)
        for turn in episode.turns:
            if observation != turn.observation:
                return None
            effects = []
            for move in turn.moves:
                before = env.state_key()
                observation, _, terminated, _, info = env.step(move.action)
                if env.counts_as_effect(move.action, before, info):
                    effects.append(move.action)
            is_over = bool(turn.moves) and terminated
            state = (observation, episode.success) if is_over else env.state_key()
            if state is None:
                return None
            ends.append(TurnEnd(state, tuple(effects)))
    except Exception:
        return None  # An environment of another version, without its data, or of another author.
    return ends if observation == episode.final_observation else None


def read_ends(episode: Episode) -> list[TurnEnd]:
    """Return the end of each turn of an episode by its record alone: observations in the place of states."""
    return [
        TurnEnd(observation, tuple(move.action for move in turn.moves if move.changed))
        for turn, observation in zip(episode.turns, _observations(episode), strict=True)
    ]


def _observations(episode: Episode) -> list[str]:
    """Return the observation after each turn."""
    return [*(turn.observation for turn in episode.turns[1:]), episode.final_observation][: len(episode.turns)]


def find_ends(
    env: TextEnv[Any] | None, episodes: Sequence[NamedEpisode]
) -> tuple[list[list[TurnEnd]], tuple[str, ...]]:
    """Return the ends of all turns of each episode, and a note where they could not be replayed.

    Args:
        env: Environment of the episodes' suite entry; None where it is not available.
        episodes: Episodes of one task.
    """
    if env is not None:
        found = [replay(env, one.episode, one.trial) for one in episodes]
        ends = [one for one in found if one is not None]
        if len(ends) == len(episodes):
            return ends, ()
    note = "These episodes could not be replayed here, so equal observations count as equal states."
    return [read_ends(one.episode) for one in episodes], (note,)


def merge_episodes(
    task: str,
    episodes: Sequence[NamedEpisode],
    ends: Sequence[Sequence[TurnEnd]],
    notes: Sequence[str] = (),
) -> Tree:
    """Return the tree of several episodes of one task.

    Turns are merged if they end in the same state, after equally many actions, and after the same modifying
    actions (T-STAR's historical compatibility). The value of a node is the mean outcome of the continuations, as
    T-STAR's backup with γ = 1 (eq. 4). The outcome is success; where all episodes have the same, it is the return.
    At a divergence the values differ by more than `THRESHOLD` times the range of the outcomes.

    Args:
        task: Name of the task.
        episodes: The episodes, at least one.
        ends: End of each turn, by episode.
        notes: Remarks for the reader.
    """
    successes = [one.episode.success for one in episodes]
    mixed = len(set(successes)) > 1
    outcomes = tuple(
        Outcome(label, float(episode.success) if mixed else episode.total_reward, episode.success)
        for label, episode, _ in episodes
    )
    span = max(outcome.value for outcome in outcomes) - min(outcome.value for outcome in outcomes)
    paths = [_path(one.episode, turns) for one, turns in zip(episodes, ends, strict=True)]
    depth_of: dict[Hashable, int] = {key: key[0] for path in paths for key in path}
    order = sorted(depth_of, key=depth_of.__getitem__)
    index = {key: place for place, key in enumerate(order, 1)}
    numbered = [[0, *(index[key] for key in path)] for path in paths]
    members: list[list[int]] = [[] for _ in range(len(order) + 1)]
    taken: dict[tuple[int, int], list[int]] = {}
    for episode, path in enumerate(numbered):
        for node in path:
            members[node].append(episode)
        for pair in itertools.pairwise(path):
            taken.setdefault(pair, []).append(episode)
    edges = tuple(Edge(*pair, tuple(taken[pair])) for pair in sorted(taken))
    finals = [path[-1] for path in numbered]
    last = tuple(
        tuple(episode for episode in passing if finals[episode] == node) for node, passing in enumerate(members)
    )
    values = back_up(edges, last, [outcome.value for outcome in outcomes])
    nodes = tuple(
        Node(
            depth=0 if node == 0 else depth_of[order[node - 1]],
            value=values[node],
            episodes=tuple(passing),
            steps=_steps(episodes, numbered, node, passing),
            ends=last[node],
        )
        for node, passing in enumerate(members)
    )
    first = next((one.episode.turns[0].observation for one in episodes if one.episode.turns), "")
    return Tree(
        task=task,
        value_name="success" if mixed else "return",
        observation=first,
        episodes=outcomes,
        nodes=nodes,
        edges=edges,
        divergences=find_divergences(edges, values, THRESHOLD * span),
        notes=tuple(notes),
    )


_Key = tuple[int, tuple[str, ...], Hashable]


def _path(episode: Episode, ends: Sequence[TurnEnd]) -> list[_Key]:
    """Return the key of the node after each turn: number of actions, modifying actions, state."""
    path: list[_Key] = []
    depth = 0
    history: tuple[str, ...] = ()
    for turn, end in zip(episode.turns, ends, strict=True):
        depth += max(1, len(turn.moves))  # A turn without an action is a step, too.
        history = (*history, *end.effects)
        path.append((depth, history, end.state))
    return path


def back_up(edges: Sequence[Edge], ends: Sequence[Sequence[int]], outcomes: Sequence[float]) -> list[float]:
    """Return the value of each node: the mean over its episodes of their outcome or of the next node's value.

    Args:
        edges: Edges; every child has a larger index than its parent.
        ends: Indices of the episodes that end at each node.
        outcomes: Outcome of each episode.
    """
    children: Mapping[int, list[Edge]] = {node: [] for node in range(len(ends))}
    for edge in edges:
        children[edge.parent].append(edge)
    values = [0.0] * len(ends)
    for node in reversed(range(len(ends))):
        parts = [outcomes[episode] for episode in ends[node]]
        parts += [values[edge.child] for edge in children[node] for _ in edge.episodes]
        values[node] = fmean(parts) if parts else 0.0
    return values


def _steps(
    episodes: Sequence[NamedEpisode], paths: Sequence[Sequence[int]], node: int, passing: Sequence[int]
) -> tuple[Step, ...]:
    """Return the distinct steps that lead to a node, the most frequent first."""
    if node == 0:
        return ()
    found: dict[tuple[str, str, str], list[int]] = {}
    for index in passing:
        episode = episodes[index].episode
        place = paths[index].index(node) - 1
        turn = episode.turns[place]
        key = _action(turn), _thought(turn), _observations(episode)[place]
        found.setdefault(key, []).append(index)
    steps = [Step(*key, tuple(indices)) for key, indices in found.items()]
    return tuple(sorted(steps, key=lambda step: -len(step.episodes)))


def _action(turn: Turn) -> str:
    return "\n".join(move.action for move in turn.moves)


def _thought(turn: Turn) -> str:
    """Return the thought of a turn, or its reply where it has none and the actions do not say the same."""
    if turn.thought:
        return turn.thought
    return "" if turn.reply == _action(turn) else turn.reply
