"""Labelling an episode by replaying its actions in its environment.

The replay is compared with the record at every step. An episode whose replay differs, because the data or the
rules have changed since, is not labelled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Hashable
from typing import Any

import msgspec

from ...agents.episode import Episode
from ...agents.execution import trial_seed
from ...agents.recorded_start import reset_as_recorded
from ...envs.core import TextEnv
from ...envs.errors import ConfigurationError
from ...envs.optimum import Optimum, OptimumRules
from . import labels
from .labels import Decision, EpisodeDecisions, Unlabelled, judge

_REWARD_TOLERANCE = 1e-9


class OutOfTime(Exception):
    """The time for labelling is over."""


class RecordedMove(msgspec.Struct, gc=False):
    """Action of a stored episode with its effect; see `arboretum.agents.episode.Move`."""

    action: str
    reward: float
    valid: bool
    changed: bool


class RecordedTurn(msgspec.Struct, gc=False):
    """Turn of a stored episode: the observation before it, and its moves."""

    observation: str
    moves: list[RecordedMove]


class Recorded(msgspec.Struct):
    """Everything of a stored episode that its replay needs.

    Attributes:
        task: Name of the task.
        seed: Seed with which the environment was reset.
        turns: The turns, in order.
        final_observation: The observation after the last move.
        success: True if the task was solved at the end.
        chance_seed: See `Episode.chance_seed`.
    """

    task: str
    seed: int
    turns: list[RecordedTurn]
    final_observation: str
    success: bool
    chance_seed: int | None = None


class _Trial(msgspec.Struct):
    """Earlier trial, of which nothing is needed."""


class _Details(msgspec.Struct):
    """Details of an episode, of which only what an agent may have added for its replay is needed."""

    chance_seed: int | None = None


class _Line(Recorded):
    """Line of `episodes.jsonl`: the seed is that of the episode, and only the number of earlier trials matters."""

    trials: list[_Trial] = []
    details: _Details = msgspec.field(default_factory=_Details)


def label_episode(env: TextEnv[Any], episode: Episode) -> EpisodeDecisions | Unlabelled:
    """Label every action of a complete episode.

    Args:
        env: Environment with the arguments with which the episode was played; it is reset.
        episode: The episode. Of an agent that retries, the last trial is labelled.

    Returns:
        The labels, or the reason why there are none: the episode broke off, or its replay differs from the record.
    """
    if episode.error is not None:
        return Unlabelled("The episode broke off.")
    return label_recorded(env, as_recorded(episode, trial_seed(episode.seed, len(episode.trials))))


def as_recorded(episode: Episode, seed: int) -> Recorded:
    """Return what a replay needs of an episode.

    Args:
        episode: The episode, or one of its earlier trials.
        seed: Seed with which the environment was reset.
    """
    turns = [
        RecordedTurn(turn.observation, [RecordedMove(m.action, m.reward, m.valid, m.changed) for m in turn.moves])
        for turn in episode.turns
    ]
    return Recorded(episode.task, seed, turns, episode.final_observation, episode.success, episode.chance_seed)


def parse_recorded(line: bytes) -> Recorded:
    """Parse what a replay needs of a line of `episodes.jsonl`.

    Raises:
        ValueError: The line is not the record of an episode.
    """
    try:
        record = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):  # Episodes may have lone surrogates and NaN.
        record = msgspec.convert(json.loads(line.decode("utf-8", "surrogatepass")), _Line)
    seed = trial_seed(record.seed, len(record.trials))
    chance_seed = record.details.chance_seed
    return Recorded(record.task, seed, record.turns, record.final_observation, record.success, chance_seed)


_DECODER = msgspec.json.Decoder(_Line)


def label_recorded(
    env: TextEnv[Any], recorded: Recorded, deadline: float | None = None
) -> EpisodeDecisions | Unlabelled:
    """Label every action of an episode; see `label_episode`.

    Args:
        env: See `label_episode`.
        recorded: The episode.
        deadline: Value of `time.monotonic()` after which no further position is examined; None for no limit.

    Raises:
        OutOfTime: The deadline has passed.
    """
    try:
        observation, info = reset_as_recorded(env, recorded.task, recorded.seed, recorded.chance_seed)
    except ConfigurationError as error:
        return Unlabelled(f"The task cannot be opened: {error}")
    exact = env.optimum_is_exact
    # The default looks one step ahead, as the replay itself does.
    is_default = type(env).optimum_after is OptimumRules.optimum_after
    start = before = env.optimum()
    key, rng_state = env.state_key(), env.rng_state
    visited: set[Hashable] = {key}
    taken: set[tuple[Hashable, str]] = set()
    decisions: list[Decision] = []
    dead_end: bool | None = False
    ended = False
    for turn in recorded.turns:
        if observation != turn.observation:
            return describe_deviation(len(decisions), "observation")
        for move in turn.moves:
            if ended:
                return describe_deviation(len(decisions), "end of the episode")
            if deadline is not None and time.monotonic() > deadline:
                raise OutOfTime
            action = move.action
            expected = None if is_default else env.optimum_after(action)
            observation, reward, terminated, truncated, info = env.step(action)
            if info["valid"] != move.valid or info["changed"] != move.changed:
                return describe_deviation(len(decisions), "effect of the action")
            if abs(reward - move.reward) > _REWARD_TOLERANCE:
                return describe_deviation(len(decisions), "reward")
            # Where nothing can be reached, nothing can be reached later.
            after = before if exact and before is not None and before.steps is None else env.optimum()
            if is_default:
                rng_state, previous = env.rng_state, rng_state
                if rng_state == previous:
                    expected = after
            choice = key, action
            repeated = key is not None and choice in taken
            taken.add(choice)
            next_key, returned = key, False
            if info["changed"]:
                next_key = env.state_key()
                returned = next_key is not None and next_key in visited and next_key != key
                visited.add(next_key)
            decision = judge(before, expected, exact, repeated, returned)
            if decision.fatal and not dead_end:
                dead_end = terminated or _is_dead_end(env)
            decisions.append(decision)
            before, key, ended = after, next_key, terminated or truncated
    if observation != recorded.final_observation:
        return describe_deviation(len(decisions), "last observation")
    if bool(info["success"]) != recorded.success:
        return describe_deviation(len(decisions), "success")
    outcome = _find_outcome(decisions, start, before, dead_end, ended, recorded.success)
    return EpisodeDecisions(tuple(decisions), outcome, exact, env.optimum_measure)


def _is_dead_end(env: TextEnv[Any]) -> bool | None:
    """Return True if success is impossible after a fatal action also without the step limit; None if unknown."""
    if env.max_steps is None:
        return True
    unlimited = env.optimum_without_limit()
    return None if unlimited is None else unlimited.value <= 0.0


def _find_outcome(
    decisions: list[Decision],
    start: Optimum | None,
    end: Optimum | None,
    dead_end: bool | None,
    ended: bool,
    success: bool,
) -> str:
    """Return the outcome of an episode; see `REASONS`.

    Args:
        decisions: Labels of its actions.
        start: Optimum of the first state.
        end: Optimum of the last state.
        dead_end: True if a fatal decision left no possibility even without the step limit; None if unknown.
        ended: True if the environment ended the episode.
        success: True if the task was solved.
    """
    if success:
        return labels.SOLVED
    if start is not None and start.value == 0.0:
        return labels.IMPOSSIBLE
    if any(decision.fatal for decision in decisions):
        if dead_end is None:
            return labels.UNKNOWN
        return labels.DEAD_END if dead_end else labels.OUT_OF_STEPS
    if start is None or end is None:
        return labels.UNKNOWN
    if end.value > 0.0:
        return labels.WORSE_END if ended else labels.UNFINISHED
    if any(decision.fatal is None for decision in decisions):
        return labels.UNKNOWN
    lost = sum(decision.value_regret or 0.0 for decision in decisions)
    return labels.RISK if lost >= start.value / 2 else labels.CHANCE


def describe_deviation(actions: int, what: str) -> Unlabelled:
    """Return the reason of a replay that differs from the record after a number of actions."""
    return Unlabelled(
        f"The replay differs from the record in the {what} at action {actions + 1}: it was played with"
        " other data, other settings or another version of the environment."
    )
