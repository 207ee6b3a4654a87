"""Workers on the nodes of a Ray cluster: one pool of processes per node, and replicas of language agents' models.

A node may die. What it had not returned is played by the others, so that nothing is lost; nothing is stored twice,
because an episode counts only when it has arrived here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ...agents.base import Stop
from ...agents.play import TimeLimits
from ...envs.errors import ConfigurationError
from ..agents import AgentFactory, NamedAgent
from ..planning import Plan, PlannedEpisode
from ..store import EpisodeKey
from .connection import Place, connected, first_line, living_nodes, make_actor
from .interface import FinishedEpisode
from .local import OPENING
from .node import NodeWorker, ReplicaWorker

_PER_PROCESS = 16
"""Episodes that a node holds for each of its processes, those in progress included."""
_STARTS = 2
"""Times that a worker is started on a node that stays alive."""

_Start = Callable[[Place], Any]
"""Function that starts a worker in a place, and returns its handle."""


class _Member:
    """A worker on the cluster, and the episodes that it holds.

    Args:
        place: Its resources.
        ahead: Episodes that it holds at most.
        start: Starts the worker in a place.
    """

    def __init__(self, place: Place, ahead: int, start: _Start) -> None:
        self.place, self.ahead = place, ahead
        self.actor = start(place)
        self.held: dict[EpisodeKey, PlannedEpisode] = {}
        self.is_open = False
        self.starts = 1

    def call(self) -> Any:
        """Return the call that the worker has to answer next, or None while it has nothing to do.

        The first one is answered when Ray has found room for the worker, which may be never; until then the worker
        gets no episode.
        """
        if not self.is_open:
            return self.actor.__ray_ready__.remote()
        return self.actor.collect.remote() if self.held else None

    def fill(self, waiting: deque[PlannedEpisode], members: int) -> None:
        """Submit waiting episodes once half of those before are played, and fewer towards the end of the queue."""
        from ray import cloudpickle

        if self.is_open and waiting and 2 * len(self.held) <= self.ahead:
            count = min(self.ahead - len(self.held), math.ceil(len(waiting) / (2 * members)))
            batch = [waiting.popleft() for _ in range(count)]
            self.held |= {one.key: one for one in batch}
            self.actor.submit.remote(cloudpickle.dumps(batch))

    def give_back(self, waiting: deque[PlannedEpisode]) -> None:
        """Return what the worker held to the front of the queue."""
        waiting.extendleft(reversed(self.held.values()))
        self.held.clear()


class Cluster:
    """Workers on all nodes of a Ray cluster to which this process is connected.

    Args:
        plan: Plan of the run. Every node compares its tasks with the plan's before it plays.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def play(
        self, planned: Iterable[PlannedEpisode], limits: TimeLimits, in_flight: int, /
    ) -> Iterator[FinishedEpisode]:
        """Play episodes of agents without a model, as many at a time as the cluster has CPUs.

        Args:
            planned: The episodes.
            limits: Time limits of episodes.
            in_flight: Not used.

        Raises:
            ConfigurationError: A node has other tasks, or there are no CPUs.
            Stop: The agent failed, or all nodes have died.
        """
        places = [Place(node, cpus) for node, cpus in living_nodes("CPU").items() if cpus >= 1]
        if not places:
            raise ConfigurationError("the Ray cluster has no CPUs; start nodes with `ray start --num-cpus`.")

        def start(place: Place) -> Any:
            return make_actor(NodeWorker, place, self._plan, limits, int(place.cpus))

        members = [_Member(place, _PER_PROCESS * int(place.cpus), start) for place in places]
        yield from _play(deque(planned), members, start)

    def hosts(self, factory: AgentFactory) -> bool:
        """Return True if copies of the agent's model can play on the cluster: if it is run by their processes."""
        return isinstance(factory, NamedAgent) and factory.model is not None and factory.model.is_local

    def play_replicated(
        self, factory: AgentFactory, planned: Iterable[PlannedEpisode], limits: TimeLimits, in_flight: int, /
    ) -> Iterator[FinishedEpisode]:
        """Play episodes of a language agent with a copy of its model for every GPU, or for every node without any.

        A model that `tensor_parallel_size` spreads takes as many GPUs.

        Args:
            factory: Factory of the agent, for which `hosts` is True.
            planned: The episodes.
            limits: Time limits of episodes.
            in_flight: Maximum number of concurrent episodes of a copy.

        Raises:
            ConfigurationError: A node has other tasks, or not the model.
            Stop: The agent failed, or all nodes have died.
        """
        waiting = deque(planned)
        width = factory.model.devices if isinstance(factory, NamedAgent) and factory.model is not None else 1
        copies = int(sum(gpus // width for gpus in living_nodes("GPU").values()))
        if copies:
            places = [Place(None, 1, width) for _ in range(copies)]
        else:
            places = [Place(node, cpus) for node, cpus in living_nodes("CPU").items() if cpus >= 1]
        if not places:
            raise ConfigurationError("the Ray cluster has neither GPUs nor CPUs for the model.")
        places = places[: len(waiting)]
        at_once = min(in_flight, math.ceil(len(waiting) / len(places)))

        def start(place: Place) -> Any:
            return make_actor(ReplicaWorker, place, self._plan, limits, factory, at_once)

        yield from _play(waiting, [_Member(place, 2 * at_once, start) for place in places], start)


def _play(waiting: deque[PlannedEpisode], members: list[_Member], start: _Start) -> Iterator[FinishedEpisode]:
    """Play episodes by workers, and yield them as they arrive."""
    import ray
    from ray.exceptions import ActorUnschedulableError, RayActorError, RayTaskError

    called: dict[Any, _Member] = {}
    try:
        while waiting or any(member.held for member in members):
            for member in members:
                member.fill(waiting, len(members))
                if member not in called.values() and (call := member.call()) is not None:
                    called[call] = member
            limit = None if any(member.is_open for member in members) else OPENING
            ready, _ = ray.wait(list(called), num_returns=1, timeout=limit)
            if not ready:
                raise Stop(
                    f"no worker started on the Ray cluster within {OPENING:g} s; see `ray status` for what is free"
                )
            for call in ready:
                member = called.pop(call)
                try:
                    finished = ray.get(call)
                except RayTaskError as error:
                    raise (error.cause if isinstance(error.cause, Exception) else error) from None
                except (RayActorError, ActorUnschedulableError) as error:
                    member.give_back(waiting)
                    members.remove(member)
                    members += _replace(member, start)
                    if not members:
                        raise Stop(f"no worker is left on the Ray cluster ({first_line(error)})") from None
                    continue
                if not member.is_open:
                    member.is_open = True
                    continue
                for one in finished:
                    if member.held.pop(one.key, None) is not None:
                        yield one
    finally:
        for member in members:
            with suppress(Exception):
                ray.kill(member.actor)


def _replace(member: _Member, start: _Start) -> list[_Member]:
    """Start a worker again whose node is still there, if it has not died too often."""
    node = member.place.node
    if member.starts >= _STARTS or (node is not None and node not in living_nodes("CPU")):
        return []
    again = _Member(member.place, member.ahead, start)
    again.starts = member.starts + 1
    return [again]


@contextmanager
def ray_workers(address: str, plan: Plan) -> Iterator[Cluster]:
    """Context with the workers of a Ray cluster. Requires the extra `ray`.

    Args:
        address: Address for `ray.init`: "auto", "local", or host and port.
        plan: Plan of the run.

    Raises:
        ConfigurationError: Ray is not installed, or there is no cluster at the address.
    """
    with connected(address):
        yield Cluster(plan)


__all__ = ["Cluster", "ray_workers"]
