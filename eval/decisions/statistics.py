"""Statistics of labelled decisions: one line per suite entry and agent, with intervals over tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TypeVar

from ..statistics import Interval, rate, student_mean, wilson
from ..statistics.intervals import normal_quantile
from ..statistics.student_t import two_sided_quantile
from ..store import EpisodeKey
from .file import Labels
from .labels import REASONS, EpisodeDecisions

_Value = TypeVar("_Value", bound=float)


@dataclass(frozen=True)
class DecisionLine:
    """Quality of the decisions of one agent on one entry.

    Intervals are 95 % intervals over tasks: repeats of a task, and the decisions of an episode, count as one
    cluster.

    Attributes:
        entry: Name of the suite entry.
        agent: Name of the agent.
        episodes: Number of complete episodes.
        labelled: Number of labelled ones, on which everything below rests.
        exact: True if the environment's optimum is proven; otherwise all figures are over the shortest known.
        measure: Quantity of `value_regret`: "probability of success", "score" or "payment".
        decisions: Number of actions.
        judged: Number of actions while there was something to lose, of known optimum.
        unknown: Number of actions of unknown optimum.
        known: Number of labelled episodes without such actions, on which `value_regret`, `step_regret` and `fatal`
            rest; these have no value if there are none.
        optimal: Share of optimal actions among the judged ones.
        value_regret: Mean loss of attainable value per episode.
        step_regret: Mean number of additional steps per episode, before success became impossible.
        fatal: Share of episodes with a fatal decision.
        first_fatal: Median number, from 1, of the first action known to be fatal, among the episodes with such an
            action; None without any.
        repeated: Share of actions that were taken before in the same state of the episode.
        returned: Share of actions that led back to an earlier state of the episode.
        outcomes: Number of episodes by outcome (see `REASONS`), most frequent first.
        problems: Number of episodes without labels, by reason.
    """

    entry: str
    agent: str
    episodes: int
    labelled: int
    exact: bool
    measure: str
    decisions: int
    judged: int
    unknown: int
    known: int
    optimal: Interval
    value_regret: Interval
    step_regret: Interval
    fatal: Interval
    first_fatal: float | None
    repeated: Interval
    returned: Interval
    outcomes: dict[str, int] = field(default_factory=dict)
    problems: dict[str, int] = field(default_factory=dict)


def summarize_decisions(
    episodes: Mapping[tuple[str, str], int], labels: Mapping[EpisodeKey, Labels]
) -> list[DecisionLine]:
    """Return the statistics of every entry and agent that has a labelled episode, or a reason why it has none.

    Args:
        episodes: Numbers of complete episodes by entry and agent, in the order of the lines.
        labels: Labels by the keys of their episodes.
    """
    cells: dict[tuple[str, str], list[EpisodeKey]] = defaultdict(list)
    for key in sorted(labels):
        cells[key.entry, key.agent].append(key)
    return [
        _summarize(entry, agent, number, {key: labels[key] for key in cells[entry, agent]})
        for (entry, agent), number in episodes.items()
        if (entry, agent) in cells
    ]


def _summarize(entry: str, agent: str, number: int, labels: Mapping[EpisodeKey, Labels]) -> DecisionLine:
    tasks: dict[str, list[EpisodeDecisions]] = defaultdict(list)
    problems: Counter[str] = Counter()
    for key, found in labels.items():
        if isinstance(found, EpisodeDecisions):
            tasks[key.task].append(found)
        else:
            problems[found.reason] += 1
    episodes = [one for group in tasks.values() for one in group]
    fatal = [one.first_fatal for one in episodes if one.first_fatal is not None]

    def share(counts: Callable[[EpisodeDecisions], tuple[int, int]]) -> Interval:
        pairs = [[counts(one) for one in group] for group in tasks.values()]
        return clustered_share([(sum(x for x, _ in group), sum(n for _, n in group)) for group in pairs])

    def average(amount: Callable[[EpisodeDecisions], float | None]) -> Interval:
        interval = student_mean([fmean(group) for group in _values(tasks.values(), amount)])
        # What is lost is 0 at least, except for steps over a plan that is not proven to be the shortest.
        return interval._replace(low=max(interval.low, min(interval.value, 0.0)))

    return DecisionLine(
        entry=entry,
        agent=agent,
        episodes=number,
        labelled=len(episodes),
        exact=all(one.exact for one in episodes),
        measure=episodes[0].measure if episodes else "",
        decisions=sum(len(one.decisions) for one in episodes),
        judged=sum(one.judged for one in episodes),
        unknown=sum(one.unknown for one in episodes),
        known=sum(not one.unknown for one in episodes),
        optimal=share(lambda one: (one.optimal, one.judged)),
        value_regret=average(lambda one: one.value_regret),
        step_regret=average(lambda one: one.step_regret),
        fatal=rate(_values(tasks.values(), fatal_in_share)),
        first_fatal=float(median(fatal)) if fatal else None,
        repeated=share(lambda one: (sum(d.repeated for d in one.decisions), len(one.decisions))),
        returned=share(lambda one: (sum(d.returned for d in one.decisions), len(one.decisions))),
        outcomes=_by_frequency(Counter(one.outcome for one in episodes)),
        problems=_by_frequency(problems),
    )


def fatal_in_share(labels: EpisodeDecisions) -> bool | None:
    """Return whether an episode has a fatal decision, for the share of such episodes; None to leave it out.

    Of an episode of which not everything is known, only a fatal decision can be known, so that it would raise the
    share.
    """
    return None if labels.unknown else labels.fatal


def _values(
    tasks: Iterable[Sequence[EpisodeDecisions]], amount: Callable[[EpisodeDecisions], _Value | None]
) -> list[list[_Value]]:
    """Return a number of the episodes of each task, without episodes where it is None and tasks without others."""
    values = [[value for one in group if (value := amount(one)) is not None] for group in tasks]
    return [group for group in values if group]


def _by_frequency(counts: Counter[str]) -> dict[str, int]:
    order = list(REASONS)
    return dict(
        sorted(counts.items(), key=lambda item: (-item[1], order.index(item[0]) if item[0] in order else 0))
    )


def clustered_share(counts: Sequence[tuple[int, int]], confidence: float = 0.95) -> Interval:
    """Return a share over tasks with different numbers of decisions each.

    The share is the ratio of the sums, and its interval is Wilson's at the effective sample size p (1 - p) / v,
    scaled by the squared ratio of the normal and the t quantile with k - 1 degrees of freedom (Korn and Graubard,
    Survey Methodology 24:193, 1998). The variance of the ratio over the k tasks is
    v = k / (k - 1) Σ (x - p n)² / N². Where v is 0, as at shares of 0 and 1, the sample size is k. With one
    decision per task, the interval is the plain one of Wilson, as that of a success rate is (see `rate`).

    Args:
        counts: Of each task the number x of decisions that count, and the number n of all.
        confidence: Confidence level.
    """
    counts = [(x, n) for x, n in counts if n]
    k, total, successes = len(counts), sum(n for _, n in counts), sum(x for x, _ in counts)
    if not total:
        return wilson(0, 0, confidence)
    p = successes / total
    size = float(k)
    if 1 < k < total:
        # In integers, so that rounding errors do not part equal shares, such as 7 of 25 in each task.
        squares = sum((x * total - successes * n) ** 2 for x, n in counts)
        if squares:
            variance = k / (k - 1) * (squares / total**2) / total**2
            ratio = normal_quantile(confidence) / two_sided_quantile(confidence, k - 1)
            size = min(p * (1.0 - p) / variance * ratio**2, float(total))
    return wilson(p * size, size, confidence)._replace(value=p)  # Without the rounding error.
