"""Agents of several evaluation runs, checked to have played the same tasks."""

from __future__ import annotations

import json
import string
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ...envs.checks import first_difference
from ...envs.errors import ConfigurationError, DataError, unknown_name
from ...envs.registry import ENVS
from ..decisions.file import Labels, read_labels
from ..store import EpisodeKey, Result, read_episodes
from ..suite import Entry
from ..summary import EXPERT, RANDOM, StoredRun, load_run

_SAME_TASKS = ("env", "kwargs", "split", "score")
"""Settings of an entry that decide what its tasks are, and what counts as their result."""


class PlayedTasks(NamedTuple):
    """Identity of the tasks of an entry in a run.

    Attributes:
        settings: Settings of the entry that decide them.
        number: Number of tasks; None where the run does not record it.
        digest: Digest of the tasks; None where the run does not record it.
        is_live: True if opening a task twice gives different observations.
    """

    settings: dict[str, Any]
    number: float | None
    digest: str | None
    is_live: bool

    def has_other_digest(self, other: PlayedTasks) -> bool:
        """Return True if as many tasks have another digest, so that they come from other data."""
        digests = {self.digest, other.digest}
        return self.number == other.number and None not in digests and len(digests) == 2


def played_tasks(manifest: Mapping[str, Any], entry: Entry) -> PlayedTasks:
    """Return the identity of the tasks of an entry in the run with a manifest."""
    expected, digest = (manifest.get(key, {}).get(entry.name) for key in ("expected", "tasks"))
    number = None if expected is None else expected / entry.repeats
    is_live = manifest.get("entries", {}).get(entry.name, {}).get("live", False)
    return PlayedTasks({key: getattr(entry, key) for key in _SAME_TASKS}, number, digest, is_live)


@dataclass(frozen=True)
class Source:
    """A run to compare.

    Attributes:
        folder: Folder of the run.
        name: As many parts of its path as tell the runs apart.
        run: Its content.
    """

    folder: Path
    name: str
    run: StoredRun

    @cached_property
    def labels(self) -> dict[EpisodeKey, Labels]:
        """Stored labels of the run's decisions; empty before they are labelled."""
        return read_labels(self.folder, self.run.results.values())


@dataclass(frozen=True)
class Participant:
    """An agent of one run, or of several runs that are pooled.

    Attributes:
        letter: Short name in tables: A, B, and so on.
        name: Name of the agent, with those of its runs where agents of several runs have the same name.
        agent: Name of the agent in its run.
        sources: Its runs.
        results: Complete episodes by entry and task.
        broken: Number of episodes that broke off with an error.
        expected: Number of episodes that the runs ask for.
    """

    letter: str
    name: str
    agent: str
    sources: Sequence[Source]
    results: Mapping[str, Mapping[str, Sequence[Result]]]
    broken: int
    expected: int

    @property
    def episodes(self) -> int:
        """Number of complete episodes."""
        return sum(len(results) for tasks in self.results.values() for results in tasks.values())


def load_sources(folders: Sequence[Path]) -> list[Source]:
    """Load the runs to compare.

    Raises:
        ConfigurationError: There are fewer than two runs, a folder is named twice, or the runs are of different
            suites or on different data.
        DataError: A folder holds no run.
    """
    if len({folder.resolve() for folder in folders}) < max(len(folders), 2):
        raise ConfigurationError("name the folders of at least two different runs, such as runs/cold runs/warm.")
    names = short_names(folders)
    sources = [Source(folder, name, load_run(folder)) for folder, name in zip(folders, names, strict=True)]
    first = sources[0]
    for other in sources[1:]:
        _check_suites(first, other)
    for one in sources:
        for other in sources[: sources.index(one)]:
            _check_data(other, one)
    return sources


def short_names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that are all different."""
    paths = [folder.resolve().parts for folder in folders]
    length = 1
    while len({path[-length:] for path in paths}) < len(paths):
        length += 1
    return ["/".join(path[-length:]) for path in paths]


def entries_of(sources: Sequence[Source]) -> dict[str, Entry]:
    """Return the entries of all runs by name, in the order of the first run that has them."""
    entries: dict[str, Entry] = {}
    for source in sources:
        for entry in source.run.suite.entries:
            entries.setdefault(entry.name, entry)
    return entries


def _check_suites(first: Source, other: Source) -> None:
    ours, theirs = first.run.suite, other.run.suite
    if ours.name != theirs.name:
        raise ConfigurationError(
            f"{other.folder}: is a run of suite {theirs.name!r}, but {first.folder} is one of {ours.name!r};"
            " compare runs of one suite."
        )


def _check_data(first: Source, other: Source) -> None:
    """Raise if entries of the same name have other tasks."""
    ours = {entry.name: entry for entry in first.run.suite.entries}
    for entry in other.run.suite.entries:
        before = ours.get(entry.name)
        if before is None:
            continue
        was, now = played_tasks(first.run.manifest, before), played_tasks(other.run.manifest, entry)
        difference = first_difference(was.settings, now.settings)
        if difference is None and not _has_same_data(first, was, other, now, entry):
            difference = "other data"
        if difference is not None:
            raise ConfigurationError(
                f"{other.folder}: has other tasks for {entry.name!r} than {first.folder} ({difference}); compare"
                " runs on the same tasks."
            )


def _has_same_data(first: Source, was: PlayedTasks, other: Source, now: PlayedTasks, entry: Entry) -> bool:
    """Return False if the tasks of an entry in two runs differ.

    Runs of as many tasks have the same digest of them. Otherwise, about 16 tasks of both must begin with the same
    observations; in environments of plug-ins, which may begin at random, those with the same seeds. Live ones say
    nothing about the data.
    """
    if was.number == now.number:
        return not was.has_other_digest(now)
    if was.is_live or now.is_live:
        return True
    is_shipped = any(spec.id == entry.env for spec in ENVS)
    ours, theirs = (
        {
            (one.key.task, None if is_shipped else one.seed): one
            for one in source.run.results.values()
            if one.key.entry == entry.name
        }
        for source in (first, other)
    )
    shared = [key for key in ours if key in theirs]
    sample = shared[:: max(1, len(shared) // 16)]
    shown = [
        _first_observations(source, [results[key] for key in sample])
        for source, results in ((first, ours), (other, theirs))
    ]
    return all(one == two for one, two in zip(*shown, strict=True) if None not in (one, two))


def _first_observations(source: Source, results: Sequence[Result]) -> list[str | None]:
    """Return the observations that episodes begin with; None for those without a turn, or damaged."""
    stored = read_episodes(source.folder, results)
    return [
        None if isinstance(one, DataError) or not one.episode.turns else one.episode.turns[0].observation
        for one in stored
    ]


def choose_participants(
    sources: Sequence[Source], agents: Sequence[str] = (), *, pool: bool = False
) -> list[Participant]:
    """Return the agents to compare, in the order of the runs.

    Args:
        sources: The runs.
        agents: Names of the agents. None given takes all but the random agent and the expert, and these in runs
            without others. A reference agent with the same episodes in several runs is taken once.
        pool: Count runs of the same agent that differ in the seed of their episodes as repeats of one run.

    Raises:
        ConfigurationError: There is no agent of a name, pooled runs share episodes, or fewer than two agents are
            left.
    """
    known = list(dict.fromkeys(name for source in sources for name in source.run.agents))
    for name in agents:
        if name not in known:
            raise unknown_name("agent", name, known)
    found: list[Participant] = []
    for source in sources:
        named = agents or [name for name in source.run.agents if name not in (RANDOM, EXPERT)]
        for name in source.run.agents:
            if name in named or not named:
                found.append(_participant(source, name))
    distinct = _merge_references(found)
    if len(distinct) == 1 < len(found):
        raise ConfigurationError(
            f"a comparison needs at least two agents, and the episodes of {distinct[0].agent} are identical in"
            " these runs, so that they were counted once; name a run of another agent, or with another --seed."
        )
    found = _pool(distinct) if pool else distinct
    if len(found) < 2:
        names = ", ".join(one.agent for one in found) or "none"
        raise ConfigurationError(f"a comparison needs at least two agents, and the runs have {names} to compare.")
    return [
        replace(one, letter=_letter(number), name=name)
        for number, (one, name) in enumerate(zip(found, _names(found), strict=True))
    ]


def _participant(source: Source, agent: str) -> Participant:
    results: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    broken = 0
    for key, result in source.run.results.items():
        if key.agent == agent and result.error is None:
            results[key.entry][key.task].append(result)
        elif key.agent == agent:
            broken += 1
    expected = sum(source.run.manifest.get("expected", {}).values())
    plain = {entry: dict(tasks) for entry, tasks in results.items()}
    return Participant("", agent, agent, [source], plain, broken, expected)


def _pool(participants: Sequence[Participant]) -> list[Participant]:
    """Merge the agents of the same identity whose runs have different seeds."""
    groups: dict[str, list[Participant]] = defaultdict(list)
    for one in participants:
        groups[_identity(one)].append(one)
    pooled = []
    for group in groups.values():
        results: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
        for one in group:
            for entry, tasks in one.results.items():
                for task, episodes in tasks.items():
                    seeds = {result.seed for result in results[entry][task]}
                    if any(result.seed in seeds for result in episodes):
                        runs = " and ".join(str(member.sources[0].folder) for member in group)
                        raise ConfigurationError(
                            f"{runs} have the same episodes of {one.agent}: --pool takes runs with different"
                            " seeds; evaluate one of them with another --seed."
                        )
                    results[entry][task] += episodes
        pooled.append(
            replace(
                group[0],
                sources=[one.sources[0] for one in group],
                results={entry: dict(tasks) for entry, tasks in results.items()},
                broken=sum(one.broken for one in group),
                expected=sum(one.expected for one in group),
            )
        )
    return pooled


def _identity(participant: Participant) -> str:
    """Return everything that decides an agent's episodes but their seed, as a text."""
    source, name = participant.sources[0], participant.agent
    manifest = source.run.manifest
    parts: list[Any] = [name, *(manifest.get(key, {}).get(name) for key in ("identities", "settings", "budgets"))]
    limits = ("max_steps", "max_turns")
    parts += [{key: facts.get(name) for key, facts in manifest.get("entries", {}).items()} for name in limits]
    return json.dumps(parts, sort_keys=True)


def _merge_references(participants: Sequence[Participant]) -> list[Participant]:
    """Merge the reference agents that have equal episodes in several runs."""
    found: list[Participant] = []
    outcomes: list[dict[EpisodeKey, tuple[Any, ...]]] = []
    for one in participants:
        mine = {
            result.key: (result.seed, result.success, result.total_reward, result.steps)
            for tasks in one.results.values()
            for episodes in tasks.values()
            for result in episodes
        }
        same = (
            number
            for number, other in enumerate(outcomes)
            if one.agent in (RANDOM, EXPERT) and one.agent == found[number].agent and other == mine and mine
        )
        if next(same, None) is None:
            found.append(one)
            outcomes.append(mine)
    return found


def _names(participants: Sequence[Participant]) -> list[str]:
    """Return the agents' names, with those of their runs where the same name occurs more than once."""
    agents = [one.agent for one in participants]
    return [
        one.agent
        if agents.count(one.agent) == 1
        else f"{one.agent} ({' + '.join(source.name for source in one.sources)})"
        for one in participants
    ]


def _letter(number: int) -> str:
    letters = string.ascii_uppercase
    return letters[number] if number < 26 else _letter(number // 26 - 1) + letters[number % 26]
