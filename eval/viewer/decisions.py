"""Quality of the decisions of a replayed episode, and why it ended as it did."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from ...agents.episode import Episode
from ...envs.core import TextEnv
from ..decisions.labels import REASONS, SOLVED, UNKNOWN, EpisodeDecisions
from ..decisions.replay import OutOfTime, as_recorded, label_recorded
from .replay import Replay
from .what_if import Quality, describe_cost, judge_action, optimum_at, quality_of

BUDGET = 6.0
"""Seconds for the decisions of one episode; further ones remain unmarked."""


class Mark(NamedTuple):
    """Quality of a decision.

    Attributes:
        quality: "optimal", "costly" or "fatal"; None where it is unknown, or nothing was left to lose.
        cost: The regret in words; empty without one.
    """

    quality: Quality | None
    cost: str


class Marks(NamedTuple):
    """Quality of the decisions of an episode.

    Attributes:
        marks: Of each decision.
        reason: Why the task was not solved, in a sentence; empty if it was, or if that is unknown.
    """

    marks: list[Mark]
    reason: str


UNMARKED = Mark(None, "")


def mark_decisions(env: TextEnv[Any], episode: Episode, replay: Replay, seed: int) -> Marks:
    """Return the quality of each decision.

    Args:
        env: Environment of the episode; it is left in any state.
        episode: The episode.
        replay: Its states.
        seed: Seed of the trial, with which the environment is reset.
    """
    try:
        labels = label_recorded(env, as_recorded(episode, seed), time.monotonic() + BUDGET)
    except OutOfTime:
        labels = None
    except Exception:  # Environments may come from plug-ins.
        return Marks([UNMARKED] * replay.end, "")
    if not isinstance(labels, EpisodeDecisions) or episode.error is not None:
        return Marks(_mark_states(env, replay), "")
    found = iter(labels.decisions)
    marks = []
    for _, _, move in replay.decisions:
        decision = None if move is None else next(found)
        quality = None if decision is None else quality_of(decision)
        cost = describe_cost(decision, labels.measure) if decision is not None and quality != "fatal" else ""
        marks.append(Mark(quality, cost))
    reason = "" if labels.outcome in (SOLVED, UNKNOWN) else f"{labels.outcome}: {REASONS[labels.outcome]}"
    return Marks(marks, reason[:1].upper() + reason[1:])


def _mark_states(env: TextEnv[Any], replay: Replay) -> list[Mark]:
    """Return the quality of the decisions one by one, as far as there are states and time."""
    end = time.monotonic() + BUDGET
    marks: list[Mark] = []
    for position, (_, _, move) in enumerate(replay.decisions):
        state = replay.snapshot(position)
        if state is None or move is None or time.monotonic() > end:
            marks.append(UNMARKED)
            continue
        decision, _ = judge_action(env, state, move.action, optimum_at(env, state))
        marks.append(Mark(quality_of(decision), describe_cost(decision, env.optimum_measure)))
    return marks
