"""Playing a suite: what is missing is played, spread over processes or machines, and stored as it ends."""

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
from typing import Any, Protocol, cast

from ..agents.base import Agent, Stop
from ..agents.episode import Episode
from ..agents.play import Job, play
from ..envs.core import TextEnv
from ..envs.errors import ConfigurationError
from ..envs.seeding import stable_seed
from .store import Key, Store, encode
from .suite import Entry, Suite


@dataclass(frozen=True)
class Play:
    """One episode to be played, by whom."""

    key: Key
    entry: Entry
    seed: int
    agent: Agent


@dataclass
class Progress:
    """Where a run stands; handed to the caller after every episode.

    Attributes:
        total: episodes of the whole run.
        done: those stored without error, by now or by earlier calls.
        failed: those that broke off with an error in this call.
        successes, played: successes and whole episodes of each agent, for a running rate.
        tokens, cost: tokens sampled and dollars spent by language agents in this call.
        errors: the distinct reasons of failures, with their counts.
        expected: episodes of each suite entry for one player.
        digests: a digest of each entry's tasks, which tells data from other data.
        stopped: why a player could not go on at all; None while all can.
        repairs: what had to be mended in the stored episodes.
    """

    total: int = 0
    done: int = 0
    failed: int = 0
    successes: dict[str, int] = field(default_factory=dict)
    played: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    cost: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)
    expected: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    stopped: str | None = None
    repairs: list[str] = field(default_factory=list)

    def count(self, key: Key, success: bool, error: str | None) -> None:
        if error is not None:
            self.failed += 1
            self.errors[error] = self.errors.get(error, 0) + 1
            return
        self.done += 1
        self.played[key.agent] = self.played.get(key.agent, 0) + 1
        self.successes[key.agent] = self.successes.get(key.agent, 0) + success


class Workers(Protocol):
    """Where episodes are played: a pool of processes, or a Ray cluster."""

    def submit(self, task: Callable[[Any], Any], argument: Any, /) -> Future[Any]: ...


def _attend_parent() -> None:
    """In a worker: leave Ctrl-C to the parent, and do not outlive it, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def local_workers(count: int) -> Iterator[Workers]:
    """A pool of processes on this machine."""
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_attend_parent)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def ray_workers(address: str) -> Iterator[Workers]:
    """A Ray cluster: `address` as for `ray.init` ("auto", "local" or a host and port). Needs the extra `ray`.

    Raises:
        ConfigurationError: Ray is not installed, or there is no cluster at the address.
    """
    try:
        import ray
    except ImportError:
        raise ConfigurationError('--ray needs the extra "ray": pip install "arboretum[ray]".') from None
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


class AgentFactory(Protocol):
    """Who plays a run: a name for the tables, and an agent for each entry, whose settings it takes."""

    name: str
    uses_success_labels: bool

    def agent(self, suite: Suite, entry: Entry, /) -> Agent: ...


def plan(suite: Suite, factories: Sequence[AgentFactory], progress: Progress) -> list[Play]:
    """Every episode of a run, player by player; `progress` learns how many they are, and of which tasks.

    Raises:
        ConfigurationError: an entry cannot be played.
    """
    plays = []
    tasks: dict[str, list[str]] = {}
    for entry in suite.entries:
        try:
            env = entry.make()
            names = tasks[entry.name] = entry.task_names(env)
        except ConfigurationError as error:
            raise ConfigurationError(f"suite {suite.name}, entry {entry.name!r}: {error}") from None
        progress.expected[entry.name] = len(names) * entry.repeats
        progress.digests[entry.name] = _digest(env, names)
    for factory in factories:
        for entry in suite.entries:
            agent = factory.agent(suite, entry)
            for task in tasks.get(entry.name, ()):
                for repeat in range(entry.repeats):
                    seed = suite.episode_seed(entry, task, repeat)
                    plays.append(Play(Key(factory.name, entry.name, task, repeat), entry, seed, agent))
    return plays


def _digest(env: TextEnv[Any], names: Sequence[str]) -> str:
    """What tells these tasks from others: all names, and what some of them look like."""
    looks = [env.reset(seed=0, options={"task": name})[0] for name in names[:: max(1, len(names) // 16)]]
    return f"{stable_seed(*names, *looks):016x}"


def run(
    suite: Suite,
    factories: Sequence[AgentFactory],
    store: Store,
    *,
    workers: Workers | None = None,
    in_flight: int = 16,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Play what a run still lacks.

    Args:
        suite: what to play.
        players: who plays; agents marked `one_process` play in this process, `in_flight` episodes at once.
        store: where episodes go, and which are there already.
        workers: where the other players' episodes are played; None for this process.
        in_flight: episodes under way at once.
        on_progress: called at the start and after every episode.

    Returns:
        Where the run stands. Episodes that broke off are counted in `failed` and are retried by the next call.
    """
    progress = Progress(repairs=store.repairs)
    plays = plan(suite, factories, progress)
    store.expect(progress.expected, progress.digests)
    finished = store.finished()
    progress.total = len(plays)
    for play_ in plays:
        if play_.key in finished:
            progress.count(play_.key, finished[play_.key].success, None)
    missing = [p for p in plays if p.key not in finished]
    on_progress(progress)
    try:
        for here, mine in groupby(
            missing, key=lambda p: p.agent if workers is None or p.agent.one_process else None
        ):
            if here is not None:
                results = _play_here(here, list(mine), in_flight)
            else:
                results = _play_there(cast(Workers, workers), mine, in_flight)
            for key, line, episode in results:
                store.append(line)
                progress.tokens += episode.details.get("completion_tokens", 0)
                progress.cost += episode.details.get("cost", 0.0)
                progress.count(key, episode.success, episode.error)
                on_progress(progress)
    except Stop as stop:
        progress.stopped = str(stop)
    return progress


Played = tuple[Key, bytes, Episode]


def _play_here(agent: Agent, plays: Sequence[Play], at_once: int) -> Iterator[Played]:
    for _, group in groupby(plays, key=lambda p: p.entry.name):
        mine = {(p.key.task, p.seed): p for p in group}
        entry = next(iter(mine.values())).entry
        envs = [entry.make() for _ in range(min(at_once, agent.at_once or at_once, len(mine)))]
        jobs = [Job(task, seed) for task, seed in mine]
        for episode in play(agent, envs, jobs, max_turns=entry.max_turns):
            key = mine[episode.task, episode.seed].key
            yield key, encode(key, episode), episode


def _play_there(workers: Workers, plays: Iterable[Play], at_once: int) -> Iterator[Played]:
    waiting = iter(plays)
    under_way: dict[Future[Played], Play] = {}
    while True:
        for play_ in islice(waiting, at_once - len(under_way)):
            under_way[workers.submit(play_one, play_)] = play_
        if not under_way:
            return
        ready, _ = wait(under_way, return_when=FIRST_COMPLETED)
        for future in ready:
            del under_way[future]
            try:
                yield future.result()
            except BrokenProcessPool:
                raise ConfigurationError(
                    "a worker process died (out of memory?); what was finished is stored: run the same command"
                    " again, perhaps with fewer --workers."
                ) from None


def play_one(play_: Play) -> Played:
    """Play one episode in a worker process, whose worlds stay open for the next one."""
    env = _env(repr(play_.entry), play_.entry)
    (episode,) = play(play_.agent, [env], [Job(play_.key.task, play_.seed)], max_turns=play_.entry.max_turns)
    line = encode(play_.key, episode)
    episode.turns = []  # the line has them; no need to send them twice
    return play_.key, line, episode


_envs: dict[str, TextEnv[Any]] = {}


def _env(identity: str, entry: Entry) -> TextEnv[Any]:
    if identity not in _envs:
        _envs[identity] = entry.make()
    return _envs[identity]
