"""Running a suite: the missing episodes are played in this process or by workers, and stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ..agents.base import Agent, Stop
from ..agents.play import Job, play
from .agents import AgentFactory
from .planning import Plan, PlannedEpisode
from .store import EpisodeKey, Store, amount, encode_episode
from .summary import result_check
from .workers import FinishedEpisode, Workers


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

    def count(self, key: EpisodeKey, success: bool, error: str | None) -> None:
        """Count an episode as done, or as failed if there is an error."""
        if error is not None:
            self.failed += 1
            return
        self.done += 1
        self.played[key.agent] = self.played.get(key.agent, 0) + 1
        self.successes[key.agent] = self.successes.get(key.agent, 0) + success


def run(
    plan: Plan,
    factories: Sequence[AgentFactory],
    store: Store,
    *,
    workers: Workers | None = None,
    in_flight: int = 16,
    time_limit: float | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Play the episodes of a run that are not stored yet.

    Models are loaded before the first episode, and only if an episode of theirs is missing.

    Args:
        plan: Tasks to play.
        factories: Agents that play them. Agents with `one_process` play in this process.
        store: Store of the episodes.
        workers: Workers that play the episodes of all other agents; None plays them in this process.
        in_flight: Maximum number of concurrent episodes.
        time_limit: Wall time of an episode in seconds, see `play`; None for no limit.
        on_progress: Called at the start and after every episode.

    Returns:
        The progress at the end. Episodes that broke off are counted in `failed`; the next call retries them.

    Raises:
        ConfigurationError: An agent cannot be made, the run was started with other tasks, or workers cannot start.
    """
    progress = Progress(repairs=store.repairs)
    store.record_tasks(plan.expected, plan.digests, plan.facts)
    finished = store.finished(result_check(plan.suite, [factory.name for factory in factories]))
    keys = [(key, entry, factory) for factory in factories for key, entry in plan.keys(factory.name)]
    progress.total = len(keys)
    for key, _, _ in keys:
        if key in finished:
            progress.count(key, finished[key].success, None)
    if any(key not in finished for key, _, _ in keys):
        store.record_session()
    on_progress(progress)
    agents: dict[tuple[str, str], Agent] = {}
    missing: list[PlannedEpisode] = []
    for key, entry, factory in keys:
        if key not in finished:
            cell = key.agent, key.entry
            if cell not in agents:
                agents[cell] = factory.make(plan.suite, entry)
            seed = plan.suite.episode_seed(entry, key.task, key.repeat)
            missing.append(PlannedEpisode(key, entry, seed, agents[cell]))
    one_process = {factory.name for factory in factories if workers is None or factory.one_process}
    try:
        for group in _groups(missing, one_process):
            if workers is None or group[0].key.agent in one_process:
                results = _play_in_process(group, time_limit, in_flight)
            else:
                results = workers.play(group, time_limit, in_flight)
            for result in results:
                store.append(result.encoded)
                progress.tokens += int(amount(result.episode.details, "completion_tokens"))
                progress.cost += amount(result.episode.details, "cost")
                progress.count(result.key, result.episode.success, result.episode.error)
                on_progress(progress)
    except Stop as stop:
        progress.stopped = str(stop)
    return progress


def _groups(planned: Sequence[PlannedEpisode], one_process: set[str]) -> Iterator[list[PlannedEpisode]]:
    """Yield adjacent episodes that are played together: one cell at a time in this process, others by workers."""
    for _, group in groupby(
        planned, key=lambda one: (one.key.agent, one.key.entry) if one.key.agent in one_process else None
    ):
        yield list(group)


def _play_in_process(
    planned: Sequence[PlannedEpisode], time_limit: float | None, in_flight: int
) -> Iterator[FinishedEpisode]:
    """Play the episodes of one agent and entry in this process."""
    agent, entry = planned[0].agent, planned[0].entry
    by_job = {Job(one.key.task, one.seed): one.key for one in planned}
    envs = [entry.make() for _ in range(min(in_flight, agent.at_once or in_flight, len(by_job)))]
    for episode in play(agent, envs, by_job, max_turns=entry.max_turns, time_limit=time_limit):
        key = by_job[Job(episode.task, episode.seed)]
        yield FinishedEpisode(key, encode_episode(key, episode), episode)
