"""Paired differences between the agents of several evaluation runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from ...envs.errors import ConfigurationError
from ..statistics import Interval, Paired, paired, paired_means, rate, stratified, weighted_mean, wilson
from ..statistics.crossed import holm
from ..statistics.power import Design, needed_tasks, smallest_difference
from ..statistics.repeats import Repeats, summarize_repeats
from ..suite import Entry
from .measures import MEASURES, Measure
from .pairing import agent_pairs, describe_left_out, describe_randomness, shared_tasks
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
        notes: By measure, a sentence on why it has no mean over the entries; only measures without one.
    """

    suite: str
    agents: Sequence[Agent]
    differences: Sequence[Difference]
    left_out: Sequence[str]
    randomness: Sequence[str]
    settings: Mapping[str, Sequence[str]]
    problems: Sequence[str]
    wanted: float | None = None
    notes: Mapping[str, str] = field(default_factory=dict)

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
    notes = {}
    for measure in MEASURES:
        found, units = _measure_differences(participants, sources, measure)
        differences += found
        if units:
            notes[measure.name] = _describe_units(units)
    return RunComparison(
        suite=sources[0].run.suite.name,
        agents=[_agent(one, sources) for one in participants],
        differences=differences,
        left_out=describe_left_out(participants, sources),
        randomness=describe_randomness(participants),
        settings=differing_settings(participants),
        problems=[problem for source in sources for problem in source.run.problems],
        wanted=wanted,
        notes=notes,
    )


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
    for a, b in agent_pairs(participants):
        strata = []
        for entry in entries_of(sources):
            tasks = shared_tasks(a, b, entry)
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
) -> tuple[list[Difference], Mapping[str, Sequence[str]]]:
    """Return the differences in a measure, and the entries by unit if their units differ."""
    entries = entries_of(sources)
    values = {
        (one.letter, name): measure.values(one, entry) for one in participants for name, entry in entries.items()
    }
    found = []
    differing: dict[str, list[str]] = {}
    for a, b in agent_pairs(participants):
        strata = []
        for entry in entries:
            ours, theirs = values[a.letter, entry], values[b.letter, entry]
            if not ours or not theirs:
                continue
            tasks = sorted(ours.keys() & theirs.keys())
            if tasks:
                numbers = [[one[task] for task in tasks] for one in (ours, theirs)]
                strata.append(_compare_values(measure, entry, *numbers))
        units = _units(measure, (a, b), [entries[one.entry] for one in strata])
        for unit, names in units.items() if len(units) > 1 else ():
            differing[unit] = list(dict.fromkeys([*differing.get(unit, ()), *names]))
        found += [row for row, _ in _rows(measure.name, a, b, strata) if row.entry is not None or len(units) <= 1]
    return _adjust(found), differing


def _compare_values(
    measure: Measure, entry: str, ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]
) -> _Stratum:
    """Return the comparison of the numbers of two agents' episodes of each task of an entry."""
    means = [fmean(task) for task in ours], [fmean(task) for task in theirs]
    differences = [x - y for x, y in zip(*means, strict=True)]
    whole, numbers = measure.whole, [value for task in (*ours, *theirs) for value in task]
    if whole is not None and all(value in (0.0, whole) for value in numbers):
        a, b = ([[value == whole for value in task] for task in tasks] for tasks in (ours, theirs))
        result = paired(a, b)
        result = result._replace(difference=Interval(*(whole * bound for bound in result.difference)))
    else:
        result = paired_means(differences)
        if whole is not None and all(0.0 <= value <= whole for value in numbers):
            difference, low, high = result.difference
            result = result._replace(difference=Interval(difference, max(low, -whole), min(high, whole)))
    return _Stratum(entry, result, (fmean(means[0]), fmean(means[1])), differences, is_single=False)


def _units(measure: Measure, pair: Sequence[Participant], entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Return the names of the entries by the unit of a measure; empty if it has one unit everywhere."""
    found: dict[str, list[str]] = {}
    if measure.units is not None:
        for entry in entries:
            for unit in sorted(set().union(*(measure.units(one, entry) for one in pair))):
                found.setdefault(unit, []).append(entry.name)
    return found


def _describe_units(units: Mapping[str, Sequence[str]]) -> str:
    named = "; ".join(f"{unit} ({', '.join(entries)})" for unit, entries in units.items())
    return f"There is no mean over the entries, whose units differ: {named}."


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
        success=weighted_mean([one.success for one in rates], [1] * len(rates)) if rates else wilson(0, 0),
        rates=rates,
    )
