"""Workers on the nodes of a cluster, to which episodes are submitted while others are played.

Nothing here imports Ray: `cluster` makes actors of these classes.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue

from ...agents.base import Agent, Stop
from ...agents.play import NO_LIMITS, Job, TimeLimits, play
from ...envs.errors import ConfigurationError
from ...envs.user_code import describe_error
from ..agents import AgentFactory
from ..planning import Plan, PlannedEpisode, check_tasks
from ..store import EpisodeKey, encode_episode
from ..suite import Entry
from .interface import FinishedEpisode, cached_env
from .local import LocalWorkers

IDLE = 0.5
"""Seconds after which `collect` returns without an episode, so that others can be submitted."""


class RemoteWorker(ABC):
    """Worker that plays submitted episodes in a thread of its own.

    Args:
        plan: Plan of the run, whose tasks this machine must have too.
        limits: Time limits of episodes.
    """

    def __init__(self, plan: Plan, limits: TimeLimits) -> None:
        self._plan, self._limits = plan, limits
        self._waiting: deque[PlannedEpisode] = deque()
        self._finished: SimpleQueue[FinishedEpisode | Exception] = SimpleQueue()
        self._arrived = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    @abstractmethod
    def _play(self, waiting: deque[PlannedEpisode]) -> Iterator[FinishedEpisode]:
        """Play waiting episodes, and those that are appended meanwhile, and yield them as they end."""

    def submit(self, pickled: bytes) -> None:
        """Add episodes to those that wait.

        Args:
            pickled: The episodes. What this machine cannot load would otherwise fail in Ray, where nobody hears of
                it; `collect` raises it.
        """
        try:
            self._waiting.extend(pickle.loads(pickled))
        except Exception as error:
            self._finished.put(
                ConfigurationError(
                    f"node {socket.gethostname()} cannot load the agent ({describe_error(error)}); install there"
                    " what is installed here."
                )
            )
            return
        self._arrived.set()

    def collect(self) -> list[FinishedEpisode]:
        """Return the episodes that have ended since the last call, after at most `IDLE` seconds.

        Raises:
            Stop: The agent failed or cannot continue.
            ConfigurationError: This machine cannot play the episodes.
        """
        found: list[FinishedEpisode] = []
        with suppress(Empty):
            item = self._finished.get(timeout=IDLE)
            while not isinstance(item, Exception):
                found.append(item)
                item = self._finished.get_nowait()
            if not found:
                raise item
            self._finished.put(item)  # for the next call
        return found

    def _run(self) -> None:
        try:
            while True:
                self._arrived.wait()
                self._arrived.clear()
                for one in self._play(self._waiting):
                    self._finished.put(one)
        except (Stop, ConfigurationError) as error:
            self._finished.put(error)
        except Exception as error:
            self._finished.put(Stop(f"{socket.gethostname()}: {type(error).__name__}: {error}"))

    def _check_tasks(self, entry: Entry) -> None:
        """Open an entry's environment, and raise `OtherTasks` if its tasks are not those of the plan."""
        name = entry.name
        check_tasks(cached_env(entry), name, self._plan.tasks[name], self._plan.digests[name])


class NodeWorker(RemoteWorker):
    """Worker with processes for agents without a model, which share the environments' data, loaded once.

    Args:
        plan: See `RemoteWorker`, like `limits`.
        limits: See there.
        processes: Number of processes.
    """

    def __init__(self, plan: Plan, limits: TimeLimits, processes: int) -> None:
        # Copies of a process share its memory until they write to it; Windows has no such copies.
        self._workers = LocalWorkers(processes, "fork" if hasattr(os, "fork") else "spawn")
        self._opened: set[str] = set()
        super().__init__(plan, limits)

    def submit(self, pickled: bytes) -> None:
        super().submit(pickled)
        self._workers.wake()

    def close(self) -> None:
        """Kill the processes. They also end with this one."""
        self._workers.close()

    def _play(self, waiting: deque[PlannedEpisode]) -> Iterator[FinishedEpisode]:
        for entry in self._plan.suite.entries:
            if entry.name not in self._opened:
                self._check_tasks(entry)
                self._opened.add(entry.name)
        yield from self._workers.play(waiting, self._limits, 0)


class ReplicaWorker(RemoteWorker):
    """Worker with a copy of a language agent's model, for many episodes at once.

    Args:
        plan: See `RemoteWorker`, like `limits`.
        limits: See there.
        factory: Factory of the agent.
        in_flight: Maximum number of concurrent episodes.
    """

    def __init__(self, plan: Plan, limits: TimeLimits, factory: AgentFactory, in_flight: int) -> None:
        self._factory, self._in_flight = factory, in_flight
        self._agents: dict[str, Agent] = {}
        super().__init__(plan, limits)

    def _play(self, waiting: deque[PlannedEpisode]) -> Iterator[FinishedEpisode]:
        while waiting:
            entry = waiting[0].entry
            if entry.name not in self._agents:
                self._check_tasks(entry)
                self._agents[entry.name] = self._factory.make(self._plan.suite, entry)
            yield from self._play_entry(entry, self._agents[entry.name], waiting)

    def _play_entry(self, entry: Entry, agent: Agent, waiting: deque[PlannedEpisode]) -> Iterator[FinishedEpisode]:
        """Play waiting episodes of one entry, those that arrive meanwhile included."""
        jobs: deque[Job] = deque()
        keys: dict[Job, EpisodeKey] = {}

        def take() -> None:
            while waiting and waiting[0].entry.name == entry.name:
                one = waiting.popleft()
                jobs.append(Job(one.key.task, one.seed))
                keys[jobs[-1]] = one.key

        take()
        envs = [entry.make() for _ in range(min(self._in_flight, agent.at_once or self._in_flight))]
        if self._limits != NO_LIMITS:  # In this thread nothing interrupts a step, so it needs one of its own.
            for env in envs:
                env.waits = True
        for episode in play(
            agent,
            envs,
            jobs,
            max_turns=entry.max_turns,
            time_limit=self._limits.episode,
            step_time_limit=self._limits.step,
        ):
            take()
            key = keys.pop(Job(episode.task, episode.seed))
            encoded = encode_episode(key, episode)
            episode.turns, episode.exchanges = [], []  # The encoding contains them.
            yield FinishedEpisode(key, encoded, episode)
