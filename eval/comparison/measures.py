"""Numbers of an episode, besides its success, that a comparison pairs by task."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from ..decisions.labels import EpisodeDecisions
from ..decisions.statistics import fatal_in_share
from ..episode_lines import score_of
from ..suite import Entry
from .participants import Participant


class Measure(NamedTuple):
    """A number of an episode.

    Attributes:
        name: Name in tables.
        meaning: One sentence for the foot of a table.
        digits: Decimals in tables.
        higher_is_better: True if more is better, as of a score; None if neither is.
        values: Function that returns the number of an agent's episodes on an entry, by task, or None if its
            episodes have no such number.
        whole: Value of a sure event, such as 100 for a share in percent. Numbers that are all 0 or this are
            outcomes like success, and are compared like it; bounds of differences between numbers from 0 to this
            are no larger. None for numbers that are no shares.
        units: Function that returns the units of the number in an agent's episodes on an entry; None if all
            entries have the same unit.
    """

    name: str
    meaning: str
    digits: int
    higher_is_better: bool | None
    values: Callable[[Participant, Entry], Mapping[str, Sequence[float]] | None]
    whole: float | None = None
    units: Callable[[Participant, Entry], Collection[str]] | None = None


def _scores(participant: Participant, entry: Entry) -> Mapping[str, Sequence[float]] | None:
    name, tasks = entry.score, participant.results.get(entry.name, {})
    if name is None:
        return None
    scores = {task: [score_of(one.details, name) for one in results] for task, results in tasks.items()}
    played = [result for results in tasks.values() for result in results]
    has_none = all(value is None for values in scores.values() for value in values)
    if has_none and any(result.success for result in played):
        return None
    return {task: [100.0 * (value or 0.0) for value in values] for task, values in scores.items()}


def _of_decisions(
    amount: Callable[[EpisodeDecisions], float | None],
) -> Callable[[Participant, Entry], Mapping[str, Sequence[float]] | None]:
    """Return the function that returns a number of every labelled episode, where the number is not None."""

    def values(participant: Participant, entry: Entry) -> Mapping[str, Sequence[float]] | None:
        tasks: dict[str, list[float]] = {}
        for source in participant.sources:
            for key, labels in source.labels.items():
                if key.agent == participant.agent and key.entry == entry.name:
                    value = amount(labels) if isinstance(labels, EpisodeDecisions) else None
                    if value is not None:
                        tasks.setdefault(key.task, []).append(value)
        return tasks or None

    return values


def _units_of_value(participant: Participant, entry: Entry) -> Collection[str]:
    """Return what the values of an agent's labelled episodes on an entry are, such as payments."""
    return {
        labels.measure
        for source in participant.sources
        for key, labels in source.labels.items()
        if isinstance(labels, EpisodeDecisions) and (key.agent, key.entry) == (participant.agent, entry.name)
    }


def _optimal(labels: EpisodeDecisions) -> float | None:
    return 100.0 * labels.optimal / labels.judged if labels.judged else None


def _fatal(labels: EpisodeDecisions) -> float | None:
    fatal = fatal_in_share(labels)
    return None if fatal is None else 100.0 * fatal


def _repeated(labels: EpisodeDecisions) -> float | None:
    number = len(labels.decisions)
    return 100.0 * sum(one.repeated for one in labels.decisions) / number if number else None


MEASURES: tuple[Measure, ...] = (
    Measure("score", "Mean of the entry's score, from 0 to 100.", 1, True, _scores, whole=100.0),
    Measure(
        "optimal decisions, points",
        "Mean over tasks of the share of an episode's actions that were optimal, of those with something left to"
        " lose; the table of decisions has the share of the actions of all episodes together.",
        1,
        True,
        _of_decisions(_optimal),
        whole=100.0,
    ),
    Measure(
        "regret in steps per episode",
        "Additional steps that an episode's actions cost, before success became impossible.",
        2,
        False,
        _of_decisions(lambda labels: labels.step_regret),
    ),
    Measure(
        "regret in value per episode",
        "Loss of attainable value by an episode's actions: probability of success, score or payment.",
        3,
        False,
        _of_decisions(lambda labels: labels.value_regret),
        whole=1.0,
        units=_units_of_value,
    ),
    Measure(
        "episodes with a fatal decision, points",
        "Share of episodes with an action after which nothing could be reached.",
        1,
        False,
        _of_decisions(_fatal),
        whole=100.0,
    ),
    Measure(
        "number of the first fatal action",
        "From 1, on tasks where both agents have a fatal action.",
        1,
        None,  # Those are other tasks for each pair of agents.
        _of_decisions(lambda labels: labels.first_fatal),
    ),
    Measure(
        "repeated actions, points",
        "Share of an episode's actions that it had taken before in the same state.",
        1,
        None,  # Where outcomes are random, a repeated action may be optimal.
        _of_decisions(_repeated),
        whole=100.0,
    ),
)
"""Measures that a comparison shows where both agents have them."""


def find_measure(name: str) -> Measure:
    """Return the measure of a name."""
    return next(one for one in MEASURES if one.name == name)
