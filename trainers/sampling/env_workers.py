"""Processes on the nodes of a Ray cluster that step the environments of a training run.

The policy stays in the training process; what the cluster executes are the environments' methods. Each worker has
several environments. If it dies, alone or with its node, they are built again by the process that replaces it
or by the other workers, which execute the calls that it had not answered.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, cast

from ...agents.base import Stop
from ...envs.core import TextEnv
from ...envs.errors import ConfigurationError
from ...eval.suite import Entry
from ...eval.workers.connection import Place, connected, living_nodes
from ..config.settings import SteppingConfig
from .env_host import EnvAnswer, EnvCall, EnvSource, EnvState
from .env_worker import EnvWorker, Request
from .hosted_env import HostedEnv


class EnvWorkers:
    """Worker processes of a training process, one CPU each.

    Args:
        settings: Address of the cluster, and number of workers.
        entries: Environments of the run, whose tasks every worker compares with those of this process.
        rank: Number of this training process.
        world_size: Number of training processes, each of which has workers of its own.

    Attributes:
        queries: See `Hosts`.

    Raises:
        ConfigurationError: Ray is not installed, there is no cluster, it has too few CPUs, or a node has other
            tasks or another version.
    """

    def __init__(
        self, settings: SteppingConfig, entries: Sequence[Entry], *, rank: int = 0, world_size: int = 1
    ) -> None:
        assert settings.ray is not None
        self.queries: set[str] = set()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._homes: dict[int, EnvWorker] = {}
        self._known: dict[str, tuple[EnvSource, TextEnv[Any]]] = {}
        self._workers: list[EnvWorker] = []
        self._failure: Stop | None = None
        with ExitStack() as stack:
            stack.enter_context(connected(settings.ray))
            stack.callback(self._close_workers)
            sources = [self._source(entry)[0] for entry in entries]
            for place in choose_places(living_nodes("CPU"), settings.ray_workers, rank, world_size):
                self._workers.append(EnvWorker(place, sources, settings.step_timeout, self._give_up))
            for worker in self._workers:
                worker.wait_until_open()
            for worker in self._workers:
                worker.start()
            self._stack = stack.pop_all()

    def make(self, entry: Entry) -> TextEnv[Any]:
        """Return an environment of an entry whose calls the workers execute."""
        return cast(TextEnv[Any], HostedEnv(self, *self._source(entry)))

    def execute(self, call: EnvCall, state: EnvState) -> EnvAnswer:
        """Return the answer to a call; see `Hosts.execute`."""
        request = Request(call, state)
        self._submit(request)
        return request.answer.result()

    def register(self, env: HostedEnv) -> int:
        """Return a number for an environment; see `Hosts.register`."""
        number = next(self._numbers)
        weakref.finalize(env, self._release, number).atexit = False
        return number

    def _give_up(self, worker: EnvWorker, reason: str) -> None:
        """Give the calls of a worker to the others; if there is none, every call fails from then on."""
        with self._lock:
            if worker in self._workers:
                self._workers.remove(worker)
            if not self._workers and self._failure is None:
                self._failure = Stop(f"every worker of the Ray cluster has died ({reason.rstrip('.')})")
            waiting = worker.take_waiting()
        for request in waiting:
            try:
                self._submit(request)
            except Stop as error:
                request.answer.set_exception(error)

    def close(self) -> None:
        """End the workers, and the connection to the cluster."""
        self._stack.close()

    def _close_workers(self) -> None:
        with self._lock:
            self._failure = self._failure or Stop("the connection to the Ray cluster was closed")
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.close()
            for request in worker.take_waiting():
                request.answer.set_exception(self._failure)

    def _submit(self, request: Request) -> None:
        number = request.call.number
        with self._lock:
            if self._failure is not None:
                raise self._failure
            home = self._homes.get(number)
            if home is None or home not in self._workers:
                home = self._homes[number] = min(self._workers, key=lambda worker: worker.envs)
                home.envs += 1
            home.submit(request)

    def _release(self, number: int) -> None:
        # Called by the garbage collector, perhaps in a thread that holds the lock.
        home = self._homes.pop(number, None)
        if home is not None:
            home.envs -= 1
            home.drop(number)

    def _source(self, entry: Entry) -> tuple[EnvSource, TextEnv[Any]]:
        key = repr(entry)
        if key not in self._known:
            model = entry.make()
            self._known[key] = EnvSource.of(entry, model), model
        return self._known[key]


def choose_places(cpus: Mapping[str, float], count: int | None, rank: int, world_size: int) -> list[Place]:
    """Return the places of a training process's workers, spread over the nodes.

    Args:
        cpus: CPUs of each node.
        count: Number of workers of each training process; None for a share of all CPUs.
        rank: Number of the training process.
        world_size: Number of training processes.

    Raises:
        ConfigurationError: There are too few CPUs.
    """
    turns = range(int(max(cpus.values(), default=0)))
    places = [Place(node, 1) for turn in turns for node, own in cpus.items() if own >= turn + 1]
    share = max(len(places) // world_size, 1) if count is None else count
    if share * world_size > len(places):
        raise ConfigurationError(
            f"the Ray cluster has {len(places)} CPUs for {share * world_size} workers of environments; lower"
            " --ray-workers, or start nodes with `ray start --num-cpus`."
        )
    return places[rank * share : (rank + 1) * share]


__all__ = ["EnvWorkers", "choose_places"]
