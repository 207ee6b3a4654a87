"""Paired differences between the agents of several evaluation runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean

from ...envs.errors import ConfigurationError
from ..crossed import holm
from ..decisions import Unlabelled
from ..decisions.coverage import describe_unlabelled, has_labels_file
from ..power import Design, needed_tasks, smallest_difference
from ..repeats import Repeats, summarize_repeats
from ..statistics import Interval, Paired, paired, paired_means, rate, stratified
from .measures import MEASURES, Measure
from .participants import Participant, Source, choose_participants, entries_of, load_sources
from .settings import differing_settings

SUCCESS = "success"


@dataclass(frozen=True)
class EntryRate:
    """Results of an agent on one entry.

    Attributes:
        entry: Name of the suite entry.
        tasks: Number of tasks with a complete episode.
        episodes: Number of complete episodes.
        success: Success rate with its 95 % interval.
        repeats: pass@k, pass^k and flips; None with one episode per task.
    """

    entry: str
    tasks: int
    episodes: int
    success: Interval
    repeats: Repeats | None


@dataclass(frozen=True)
class Agent:
    """An agent of the comparison.

    Attributes:
        letter: Short name in the tables.
        name: Name of the agent, with those of its runs where the same name occurs more than once.
        runs: Folders of its runs.
        episodes: Number of complete episodes.
        expected: Number of episodes that the runs ask for.
        broken: Number of episodes that broke off with an error.
        success: Mean of the success rates on the entries, with its 95 % interval.
        rates: Results by entry.
    """

    letter: str
    name: str
    runs: Sequence[str]
    episodes: int
    expected: int
    broken: int
    success: Interval
    rates: Sequence[EntryRate]


@dataclass(frozen=True)
class Difference:
    """Paired difference of two agents: the first minus the second.

    Attributes:
        measure: Name of the number that is compared, such as success.
        entry: Name of the suite entry; None for the mean over the entries.
        first: Letter of the first agent, the later one in the order of the runs.
        second: Letter of the second agent.
        means: Means of the first and of the second agent on the shared tasks.
        result: Number of shared tasks, the difference with its 95 % interval, and the p-value.
        adjusted: p-value with Holm's correction for all differences in this measure.
        discordance: Mean squared difference of a task. With one episode per task it is the share of tasks that
            only one of the agents solves. None for other measures than success.
        smallest: Smallest difference that as many tasks show with a power of 80 % at the level of 5 %; None if no
            task differs, if the tasks are too few to show any, and for other measures than success.
        needed: Number of tasks that would show the wanted difference so; None if no task differs, if no difference
            is wanted, and for other measures than success.
    """

    measure: str
    entry: str | None
    first: str
    second: str
    means: tuple[float, float]
    result: Paired
    adjusted: float
    discordance: float | None = None
    smallest: float | None = None
    needed: int | None = None


@dataclass(frozen=True)
class RunComparison:
    """Comparison of evaluation runs.

    Attributes:
        suite: Name of the suite.
        agents: The agents, in the order of the runs.
        differences: Paired differences: by measure, pair of agents, and entry.
        left_out: One sentence for tasks and entries that are left out of pairs, by pair, and for episodes without
            labels of decisions, by agent.
        randomness: One sentence for each group of pairs on the seeds of their episodes.
        settings: Settings that differ: name, and the value of each agent.
        problems: One sentence for each stored line that is left out.
        wanted: Difference to show, from 0 to 1; None if none was asked for.
    """

    suite: str
    agents: Sequence[Agent]
    differences: Sequence[Difference]
    left_out: Sequence[str]
    randomness: Sequence[str]
    settings: Mapping[str, Sequence[str]]
    problems: Sequence[str]
    wanted: float | None = None

    @property
    def measures(self) -> dict[str, list[Difference]]:
        """The differences by measure."""
        found: dict[str, list[Difference]] = {}
        for one in self.differences:
            found.setdefault(one.measure, []).append(one)
        return found


def compare_evaluations(
    folders: Sequence[Path], agents: Sequence[str] = (), *, pool: bool = False, detect: float | None = None
) -> RunComparison:
    """Compare the agents of evaluation runs of one suite, finished or not, paired by entry and task.

    Args:
        folders: Folders of at least two runs.
        agents: Names of the agents; see `choose_participants`.
        pool: Count runs of the same agent with different seeds as repeats of one run.
        detect: Difference in percentage points of which the number of tasks is computed that shows it.

    Raises:
        ConfigurationError: The runs have no task in common, are of different suites, or a setting is wrong.
        DataError: A folder holds no run.
    """
    if detect is not None and not 0 < detect <= 100:
        raise ConfigurationError(f"--detect must be above 0 and at most 100 percentage points, not {detect:g}.")
    sources = load_sources(folders)
    participants = choose_participants(sources, agents, pool=pool)
    wanted = None if detect is None else detect / 100
    differences = _success_differences(participants, sources, wanted)
    if not differences:
        empty = [
            str(source.folder)
            for source in sources
            if all(result.error is not None for result in source.run.results.values())
        ]
        if empty:
            verb = "has" if len(empty) == 1 else "have"
            raise ConfigurationError(
                f"{' and '.join(empty)}: {verb} no complete episodes; compare runs after they have played some."
            )
        raise ConfigurationError(
            f"{' and '.join(map(str, folders))}: no two of their agents completed a task in common; compare runs"
            " on the same tasks."
        )
    for measure in MEASURES:
        differences += _measure_differences(participants, sources, measure)
    return RunComparison(
        suite=sources[0].run.suite.name,
        agents=[_agent(one, sources) for one in participants],
        differences=differences,
        left_out=[*_left_out(participants, sources), *_unlabelled(participants)],
        randomness=_randomness(participants),
        settings=differing_settings(participants),
        problems=[problem for source in sources for problem in source.run.problems],
        wanted=wanted,
    )


def _pairs(participants: Sequence[Participant]) -> list[tuple[Participant, Participant]]:
    """Return all pairs, the later agent first, so that a difference is the change from the earlier one."""
    return [(later, earlier) for earlier, later in combinations(participants, 2)]


def _shared(a: Participant, b: Participant, entry: str) -> list[str]:
    return sorted(a.results.get(entry, {}).keys() & b.results.get(entry, {}).keys())


def _outcomes(participant: Participant, entry: str, tasks: Sequence[str]) -> list[list[bool]]:
    return [[result.success for result in participant.results[entry][task]] for task in tasks]


def _mean_rate(outcomes: Sequence[Sequence[bool]]) -> float:
    return fmean(fmean(task) for task in outcomes)


@dataclass(frozen=True)
class _Stratum:
    """Comparison of two agents on one entry, before correction.

    Attributes:
        entry: Name of the entry.
        result: Paired comparison.
        means: Means of both agents.
        differences: Difference of each task.
        is_single: True if each agent has one episode of each task.
    """

    entry: str
    result: Paired
    means: tuple[float, float]
    differences: Sequence[float]
    is_single: bool

    @property
    def discordance(self) -> float:
        return fmean(difference**2 for difference in self.differences)


def _success_differences(
    participants: Sequence[Participant], sources: Sequence[Source], wanted: float | None
) -> list[Difference]:
    found = []
    for a, b in _pairs(participants):
        strata = []
        for entry in entries_of(sources):
            tasks = _shared(a, b, entry)
            if not tasks:
                continue
            ours, theirs = _outcomes(a, entry, tasks), _outcomes(b, entry, tasks)
            differences = [fmean(x) - fmean(y) for x, y in zip(ours, theirs, strict=True)]
            is_single = all(len(one) == 1 for one in (*ours, *theirs))
            means = _mean_rate(ours), _mean_rate(theirs)
            strata.append(_Stratum(entry, paired(ours, theirs), means, differences, is_single))
        for row, parts in _rows(SUCCESS, a, b, strata):
            design = Design(
                [part.discordance for part in parts],
                [part.result.n for part in parts],
                all(part.is_single for part in parts),
            )
            found.append(
                replace(
                    row,
                    discordance=fmean(design.discordance),
                    smallest=smallest_difference(design),
                    needed=None if wanted is None else needed_tasks(design, wanted),
                )
            )
    return _adjust(found)


def _measure_differences(
    participants: Sequence[Participant], sources: Sequence[Source], measure: Measure
) -> list[Difference]:
    entries = entries_of(sources)
    values = {
        (one.letter, name): measure.values(one, entry) for one in participants for name, entry in entries.items()
    }
    found = []
    for a, b in _pairs(participants):
        strata = []
        for entry in entries:
            ours, theirs = values[a.letter, entry], values[b.letter, entry]
            if not ours or not theirs:
                continue
            tasks = sorted(ours.keys() & theirs.keys())
            if not tasks:
                continue
            means = [fmean(ours[task]) for task in tasks], [fmean(theirs[task]) for task in tasks]
            differences = [x - y for x, y in zip(*means, strict=True)]
            result = paired_means(differences)
            strata.append(
                _Stratum(entry, result, (fmean(means[0]), fmean(means[1])), differences, is_single=False)
            )
        rows = _rows(measure.name, a, b, strata)
        found += [row for row, _ in rows if row.entry is not None or measure.over_entries]
    return _adjust(found)


def _rows(
    measure: str, a: Participant, b: Participant, strata: Sequence[_Stratum]
) -> list[tuple[Difference, Sequence[_Stratum]]]:
    """Return the difference on each entry and, if there are several, the mean over them, with its entries."""
    rows: list[tuple[Difference, Sequence[_Stratum]]] = [
        (Difference(measure, one.entry, a.letter, b.letter, one.means, one.result, 1.0), [one]) for one in strata
    ]
    if len(strata) > 1:
        total = stratified([one.result for one in strata], [one.differences for one in strata])
        means = fmean(one.means[0] for one in strata), fmean(one.means[1] for one in strata)
        rows.append((Difference(measure, None, a.letter, b.letter, means, total, 1.0), strata))
    return rows


def _adjust(differences: Sequence[Difference]) -> list[Difference]:
    """Return the differences with Holm's correction for their number."""
    adjusted = holm([one.result.p_value for one in differences])
    return [replace(one, adjusted=p) for one, p in zip(differences, adjusted, strict=True)]


def _agent(participant: Participant, sources: Sequence[Source]) -> Agent:
    rates = []
    for entry in entries_of(sources):
        tasks = participant.results.get(entry, {})
        if tasks:
            outcomes = _outcomes(participant, entry, list(tasks))
            episodes = sum(map(len, outcomes))
            rates.append(EntryRate(entry, len(tasks), episodes, rate(outcomes), summarize_repeats(outcomes)))
    return Agent(
        letter=participant.letter,
        name=participant.name,
        runs=[str(source.folder) for source in participant.sources],
        episodes=participant.episodes,
        expected=participant.expected,
        broken=participant.broken,
        success=_mean_interval([one.success for one in rates]),
        rates=rates,
    )


def _mean_interval(rates: Sequence[Interval]) -> Interval:
    """Return the mean of independent rates; its interval adds the squared distances of their bounds."""
    if not rates:
        return Interval(math.nan, 0.0, 1.0)
    value = fmean(one.value for one in rates)
    below = math.hypot(*(one.value - one.low for one in rates)) / len(rates)
    above = math.hypot(*(one.high - one.value for one in rates)) / len(rates)
    return Interval(value, value - below, value + above)


# ---------------------------------------------------------------------- what was paired


def _left_out(participants: Sequence[Participant], sources: Sequence[Source]) -> list[str]:
    """Return a sentence for each agent and entry with tasks that another agent has and it has not."""
    sentences = []
    for entry in entries_of(sources):
        tasks = {one.letter: set(one.results.get(entry, {})) for one in participants}
        everything = set().union(*tasks.values())
        missing: dict[int, list[str]] = {}
        for letter, found in tasks.items():
            if len(found) < len(everything):
                missing.setdefault(len(found), []).append(letter)
        for count, letters in missing.items():
            verb = "has" if len(letters) == 1 else "have"
            who = ", ".join(letters)
            if count == 0:
                sentences.append(f"{entry}: {who} {verb} no complete episode, and is left out of its pairs.")
            else:
                sentences.append(
                    f"{entry}: {who} {verb} {count} of {len(everything)} tasks; the others are left out of pairs."
                )
    for one in participants:
        if one.episodes < one.expected:
            broken = f", and {one.broken} broke off" if one.broken else ""
            sentences.append(f"{one.letter} is incomplete: {one.episodes} of {one.expected} episodes{broken}.")
    return sentences


def _unlabelled(participants: Sequence[Participant]) -> list[str]:
    """Return sentences for each agent with episodes without labels, if an agent's decisions are labelled."""
    if not any(source.labels or has_labels_file(source.folder) for one in participants for source in one.sources):
        return []
    sentences = []
    for one in participants:
        for source in one.sources:
            results = source.run.results.items()
            complete = [key for key, result in results if key.agent == one.agent and result.error is None]
            labelled = [key for key in complete if key in source.labels]
            counts = (Counter((key.agent, key.entry) for key in keys) for keys in (complete, labelled))
            found = describe_unlabelled(source.folder, *counts)
            failed = sum(isinstance(source.labels.get(key), Unlabelled) for key in complete)
            if failed:
                found.append(f"{failed} of {len(complete)} episodes cannot be labelled.")
            sentences += [f"{one.letter}: {sentence}" for sentence in found]
    return sentences


def _randomness(participants: Sequence[Participant]) -> list[str]:
    """Return a sentence for the pairs whose shared tasks have the same seeds, other seeds, or some of each."""
    groups: dict[str, list[str]] = {}
    for a, b in _pairs(participants):
        shared = other = 0
        for entry in a.results:
            for task in _shared(a, b, entry):
                ours, theirs = ({result.seed for result in one.results[entry][task]} for one in (a, b))
                shared += len(ours & theirs)
                other += len(ours ^ theirs)
        if shared or other:
            kind = "same" if not other else "other" if not shared else "some"
            groups.setdefault(kind, []).append(f"{b.letter} and {a.letter}")
    sentences = {
        "same": "Common randomness: the episodes of shared tasks have the same seeds ({}).",
        "other": "No common randomness: the tasks are the same, but the seeds of their episodes are not ({}).",
        "some": "Common randomness in part: some episodes of shared tasks have the same seeds ({}).",
    }
    return [sentences[kind].format("; ".join(pairs)) for kind, pairs in groups.items()]
