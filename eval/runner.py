"""Running a suite: the missing episodes are played here, on worker processes or on a Ray cluster, and stored."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby, islice
from multiprocessing import get_context, parent_process
from typing import Any, NamedTuple, Protocol, cast

from ..agents.base import Agent, Stop
from ..agents.episode import Episode
from ..agents.play import Job, play
from ..envs.core import TextEnv
from ..envs.errors import ConfigurationError
from ..envs.seeding import stable_seed
from .agents import AgentFactory
from .store import EncodedEpisode, EpisodeKey, Store, encode_episode
from .suite import Entry, Suite


@dataclass(frozen=True)
class PlannedEpisode:
    """An episode to play: its identity, suite entry, seed and agent."""

    key: EpisodeKey
    entry: Entry
    seed: int
    agent: Agent


class FinishedEpisode(NamedTuple):
    """A played episode and its encoding. Workers return it without turns, which the encoding contains."""

    key: EpisodeKey
    encoded: EncodedEpisode
    episode: Episode


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
        expected: Number of episodes per agent, by suite entry.
        digests: Digest of the tasks, by suite entry; differs between data sets.
        limits: Limits on the steps and turns of an episode, by suite entry.
        stopped: Reason for which an agent could not continue at all; None otherwise.
        repairs: One sentence for each damaged line that was removed from the stored episodes.
    """

    total: int = 0
    done: int = 0
    failed: int = 0
    successes: dict[str, int] = field(default_factory=dict)
    played: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    cost: float = 0.0
    expected: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    limits: dict[str, dict[str, int | None]] = field(default_factory=dict)
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


class Workers(Protocol):
    """Executor of episodes: a pool of processes or a Ray cluster."""

    def submit(self, task: Callable[[Any], Any], argument: Any, /) -> Future[Any]:
        """Run `task(argument)` on a worker."""
        ...


@contextmanager
def local_workers(count: int) -> Iterator[Workers]:
    """Context with a pool of `count` processes on this machine."""
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_init_worker)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _init_worker() -> None:
    """Ignore SIGINT, which the parent handles, and exit when the parent dies, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def exit_after_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_after_parent, daemon=True).start()


@contextmanager
def ray_workers(address: str) -> Iterator[Workers]:
    """Context with the workers of a Ray cluster. Requires the extra `ray`.

    Args:
        address: Address for `ray.init`: "auto", "local", or host and port.

    Raises:
        ConfigurationError: Ray is not installed, or there is no cluster at the address.
    """
    try:
        import ray
    except ImportError:
        raise ConfigurationError('--ray requires the extra "ray": pip install "arboretum[ray]".') from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError) as error:
        raise ConfigurationError(f"no Ray cluster at {address!r} ({error}).") from None

    class Cluster:
        remote = staticmethod(cache(ray.remote))

        def submit(self, task: Callable[[Any], Any], argument: Any, /) -> Future[Any]:
            future: Future[Any] = self.remote(task).remote(argument).future()
            return future

    try:
        yield Cluster()
    finally:
        ray.shutdown()


def plan_episodes(suite: Suite, factories: Sequence[AgentFactory], progress: Progress) -> list[PlannedEpisode]:
    """Return every episode of a run, grouped by agent, and set `expected`, `digests` and `limits` of `progress`.

    Raises:
        ConfigurationError: The environment or the tasks of an entry are not available.
    """
    tasks: dict[str, list[str]] = {}
    for entry in suite.entries:
        try:
            env = entry.make()
            names = tasks[entry.name] = entry.task_names(env)
        except ConfigurationError as error:
            raise ConfigurationError(f"suite {suite.name}, entry {entry.name!r}: {error}") from None
        progress.expected[entry.name] = len(names) * entry.repeats
        progress.digests[entry.name] = _digest_tasks(env, names)
        progress.limits[entry.name] = {"max_steps": env.max_steps, "max_turns": entry.max_turns}
    planned = []
    for factory in factories:
        for entry in suite.entries:
            agent = factory.make(suite, entry)
            for task in tasks[entry.name]:
                for repeat in range(entry.repeats):
                    key = EpisodeKey(factory.name, entry.name, task, repeat)
                    planned.append(PlannedEpisode(key, entry, suite.episode_seed(entry, task, repeat), agent))
    return planned


def _digest_tasks(env: TextEnv[Any], names: Sequence[str]) -> str:
    """Return a digest of all task names and of the first observations of about 16 tasks."""
    sample = names[:: max(1, len(names) // 16)]
    observations = [env.reset(seed=0, options={"task": name})[0] for name in sample]
    return f"{stable_seed(*names, *observations):016x}"


def run(
    suite: Suite,
    factories: Sequence[AgentFactory],
    store: Store,
    *,
    workers: Workers | None = None,
    in_flight: int = 16,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Play the episodes of a run that are not stored yet.

    Args:
        suite: Suite to play.
        factories: Agents that play it. Agents with `one_process` play in this process.
        store: Store of the episodes.
        workers: Workers that play the episodes of all other agents; None plays them in this process.
        in_flight: Maximum number of concurrent episodes.
        on_progress: Called at the start and after every episode.

    Returns:
        The progress at the end. Episodes that broke off are counted in `failed`; the next call retries them.

    Raises:
        ConfigurationError: An entry cannot be played, the run was started with other tasks, or a worker died.
    """
    progress = Progress(repairs=store.repairs)
    planned = plan_episodes(suite, factories, progress)
    store.record_tasks(progress.expected, progress.digests, progress.limits)
    finished = store.finished()
    progress.total = len(planned)
    for episode in planned:
        if episode.key in finished:
            progress.count(episode.key, finished[episode.key].success, None)
    missing = [episode for episode in planned if episode.key not in finished]
    if missing:
        store.record_session()
    on_progress(progress)
    try:
        for local_agent, group in groupby(
            missing, key=lambda p: p.agent if workers is None or p.agent.one_process else None
        ):
            if local_agent is not None:
                results = _play_in_process(local_agent, list(group), in_flight)
            else:
                results = _play_on_workers(cast(Workers, workers), group, in_flight)
            for result in results:
                store.append(result.encoded)
                progress.tokens += result.episode.details.get("completion_tokens", 0)
                progress.cost += result.episode.details.get("cost", 0.0)
                progress.count(result.key, result.episode.success, result.episode.error)
                on_progress(progress)
    except Stop as stop:
        progress.stopped = str(stop)
    return progress


def _play_in_process(agent: Agent, planned: Sequence[PlannedEpisode], in_flight: int) -> Iterator[FinishedEpisode]:
    for _, group in groupby(planned, key=lambda p: p.key.entry):
        by_job = {Job(p.key.task, p.seed): p for p in group}
        entry = next(iter(by_job.values())).entry
        envs = [entry.make() for _ in range(min(in_flight, agent.at_once or in_flight, len(by_job)))]
        for episode in play(agent, envs, by_job, max_turns=entry.max_turns):
            key = by_job[Job(episode.task, episode.seed)].key
            yield FinishedEpisode(key, encode_episode(key, episode), episode)


def _play_on_workers(
    workers: Workers, planned: Iterable[PlannedEpisode], in_flight: int
) -> Iterator[FinishedEpisode]:
    waiting = iter(planned)
    pending: set[Future[FinishedEpisode]] = set()
    while True:
        for episode in islice(waiting, in_flight - len(pending)):
            pending.add(workers.submit(play_on_worker, episode))
        if not pending:
            return
        ready, pending = wait(pending, return_when=FIRST_COMPLETED)
        for future in ready:
            try:
                yield future.result()
            except BrokenProcessPool:
                raise ConfigurationError(
                    "a worker process died (out of memory?); finished episodes are stored: run the same command"
                    " again, if necessary with fewer --workers."
                ) from None


def play_on_worker(planned: PlannedEpisode) -> FinishedEpisode:
    """Play one episode in a worker process, which keeps its environments for later episodes."""
    env = _cached_env(repr(planned.entry), planned.entry)
    (episode,) = play(
        planned.agent, [env], [Job(planned.key.task, planned.seed)], max_turns=planned.entry.max_turns
    )
    encoded = encode_episode(planned.key, episode)
    episode.turns = []  # The encoding contains them, so they need not be transferred twice.
    episode.exchanges = []
    return FinishedEpisode(planned.key, encoded, episode)


_envs: dict[str, TextEnv[Any]] = {}


def _cached_env(identity: str, entry: Entry) -> TextEnv[Any]:
    if identity not in _envs:
        _envs[identity] = entry.make()
    return _envs[identity]
