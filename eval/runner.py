"""Running a suite: the missing episodes are played in this process or by workers, and stored."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby

from ..agents.base import Agent, Stop
from ..agents.play import NO_LIMITS, Job, TimeLimits, play
from .agents import AgentFactory
from .planning import Plan, PlannedEpisode
from .store import EpisodeKey, Store, amount, encode_episode
from .suite import Entry
from .workers.interface import FinishedEpisode, ReplicatingWorkers, Workers

_BLOCK = 10_000
"""Episodes that are looked up at once when a run is resumed."""

_MOST_TASKS = 500
"""Tasks of one query; SQLite limits the number of its values."""


@dataclass
class Progress:
    """Progress of a run, passed to the caller at the start and after every episode.

    Attributes:
        total: Number of episodes of the whole run.
        done: Number of episodes stored without error, including those of earlier calls.
        failed: Number of episodes that broke off with an error in this call.
        successes: Number of solved episodes, by agent.
        played: Number of complete episodes, by agent.
        tokens: Number of tokens that language agents sampled in this call.
        cost: Cost of language agents in this call, in dollars.
        stopped: Reason for which an agent failed or could not continue, which ended the run; None otherwise.
        repairs: One sentence for each damaged line that was removed from the stored episodes.
    """

    total: int = 0
    done: int = 0
    failed: int = 0
    successes: dict[str, int] = field(default_factory=dict)
    played: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    cost: float = 0.0
    stopped: str | None = None
    repairs: list[str] = field(default_factory=list)

    def count(self, agent: str, episodes: int, solved: int) -> None:
        """Count complete episodes of an agent."""
        self.done += episodes
        self.played[agent] = self.played.get(agent, 0) + episodes
        self.successes[agent] = self.successes.get(agent, 0) + solved


def run(
    plan: Plan,
    factories: Sequence[AgentFactory],
    store: Store,
    *,
    workers: Workers | None = None,
    in_flight: int = 16,
    limits: TimeLimits = NO_LIMITS,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Play the episodes of a run that are not stored yet.

    Models are loaded before the first episode, and only if an episode of theirs is missing.

    Args:
        plan: Tasks to play.
        factories: Agents that play them. Agents with `one_process` play in this process, or in copies by
            `ReplicatingWorkers` that host them.
        store: Store of the episodes.
        workers: Workers that play the episodes of all other agents; None plays them in this process.
        in_flight: Maximum number of concurrent episodes.
        limits: Time limits of episodes.
        on_progress: Called at the start and after every episode.

    Returns:
        The progress at the end. Episodes that broke off are counted in `failed`; the next call retries them.

    Raises:
        ConfigurationError: An agent cannot be made, the run was started with other tasks, workers cannot start, or
            a server that an environment of a missing episode needs does not answer.
    """
    progress = Progress(repairs=store.repairs)
    store.record_tasks(plan.expected, plan.digests, plan.facts)
    store.index.keep_planned_tasks(plan.searches, plan.tasks)
    missing: list[_Missing] = []
    for factory in factories:
        for entry in plan.suite.entries:
            cell = _find_missing(plan, factory, entry, store, progress)
            if cell.places:
                missing.append(cell)
    replicating = workers if isinstance(workers, ReplicatingWorkers) else None
    if replicating is None:  # On a cluster, servers need to be reached from its nodes only.
        for entry in {cell.entry.name: cell.entry for cell in missing}.values():
            if entry.name in plan.waiting:
                entry.make().check_server()
    if missing:
        store.record_session()
    on_progress(progress)
    hosted = {one.name for one in factories if one.one_process and replicating and replicating.hosts(one)}
    for cell in missing:
        if cell.factory.name not in hosted:
            cell.agent = cell.factory.make(plan.suite, cell.entry)
    one_process = {factory.name for factory in factories if workers is None or factory.one_process} - hosted
    try:
        for cells in _groups(missing, one_process, hosted):
            first = cells[0]
            planned = chain.from_iterable(cell.episodes(plan) for cell in cells)
            if replicating is not None and first.factory.name in hosted:
                results = replicating.play_replicated(first.factory, planned, limits, in_flight)
            elif workers is None or first.factory.name in one_process:
                results = _play_in_process(first, planned, limits, in_flight)
            else:
                results = workers.play(planned, limits, in_flight)
            for result in results:
                store.append(result.encoded)
                progress.tokens += int(amount(result.episode.details, "completion_tokens"))
                progress.cost += amount(result.episode.details, "cost")
                if result.episode.error is None:
                    progress.count(result.key.agent, 1, result.episode.success)
                else:
                    progress.failed += 1
                on_progress(progress)
    except Stop as stop:
        progress.stopped = str(stop)
    return progress


@dataclass
class _Missing:
    """Episodes of an agent on an entry that are not stored; few bytes for each, since there may be millions.

    Attributes:
        factory: Factory of the agent.
        entry: The entry.
        places: For each episode, index of its task times the number of repeats, plus the repeat.
        agent: The agent, once it is made; None if copies of it are made where it plays.
    """

    factory: AgentFactory
    entry: Entry
    places: Sequence[int]
    agent: Agent | None = None

    def episodes(self, plan: Plan) -> Iterator[PlannedEpisode]:
        """Yield the episodes in the order of the plan."""
        tasks = plan.tasks[self.entry.name]
        for place in self.places:
            index, repeat = divmod(place, self.entry.repeats)
            key = EpisodeKey(self.factory.name, self.entry.name, tasks[index], repeat)
            yield PlannedEpisode(
                key, self.entry, plan.suite.episode_seed(self.entry, key.task, repeat), self.agent
            )


def _find_missing(plan: Plan, factory: AgentFactory, entry: Entry, store: Store, progress: Progress) -> _Missing:
    """Return the missing episodes of an agent on an entry, and count the others as done."""
    tasks, repeats = plan.tasks[entry.name], entry.repeats
    progress.total += len(tasks) * repeats
    if not any(cell[:2] == (factory.name, entry.name) for cell in store.index.cells()):
        return _Missing(factory, entry, range(len(tasks) * repeats))
    places = array("q")
    done = solved = 0
    # In blocks, so that few of the finished episodes are in memory at a time.
    width = min(repeats, _BLOCK)
    height = min(max(1, _BLOCK // width), _MOST_TASKS)
    for top in range(0, len(tasks), height):
        names = tasks[top : top + height]
        # Where repeats are in several blocks, each has one task, so that the order is that of the plan.
        for left in range(0, repeats, width):
            block = range(left, min(left + width, repeats))
            finished = store.index.finished(factory.name, entry.name, names, block)
            for index, task in enumerate(names, top):
                for repeat in block:
                    success = finished.get((task, repeat))
                    if success is None:
                        places.append(index * repeats + repeat)
                    else:
                        done += 1
                        solved += success
    progress.count(factory.name, done, solved)
    return _Missing(factory, entry, places)


def _groups(
    missing: Sequence[_Missing], one_process: Collection[str], hosted: Collection[str]
) -> Iterator[list[_Missing]]:
    """Yield adjacent cells that are played together.

    These are one cell in this process, all cells of an agent in `hosted`, and those of all others by workers.
    """

    def place(cell: _Missing) -> tuple[str, ...]:
        name = cell.factory.name
        return (name, cell.entry.name) if name in one_process else (name,) if name in hosted else ()

    for _, group in groupby(missing, key=place):
        yield list(group)


def _play_in_process(
    cell: _Missing, planned: Iterable[PlannedEpisode], limits: TimeLimits, in_flight: int
) -> Iterator[FinishedEpisode]:
    """Play the episodes of one agent and entry in this process."""
    agent, entry = cell.agent, cell.entry
    assert agent is not None
    keys: dict[Job, EpisodeKey] = {}  # of the episodes in progress

    def jobs() -> Iterator[Job]:
        for one in planned:
            job = Job(one.key.task, one.seed)
            keys[job] = one.key
            yield job

    envs = [entry.make() for _ in range(min(in_flight, agent.at_once or in_flight, len(cell.places)))]
    for episode in play(
        agent, envs, jobs(), max_turns=entry.max_turns, time_limit=limits.episode, step_time_limit=limits.step
    ):
        key = keys.pop(Job(episode.task, episode.seed))
        yield FinishedEpisode(key, encode_episode(key, episode), episode)
