"""Workers on the nodes of a Ray cluster: one pool of processes per node, and replicas of language agents' models.

A node may die. What it had not returned is played by the others, so that nothing is lost; nothing is stored twice,
because an episode counts only when it has arrived here.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ..agents.base import Stop
from ..agents.play import TimeLimits
from ..envs.errors import ConfigurationError
from ..envs.extras import missing_extra
from .agents import AgentFactory, NamedAgent
from .cluster_node import NodeWorker, RemoteWorker, ReplicaWorker
from .planning import Plan, PlannedEpisode
from .store import EpisodeKey
from .workers import FinishedEpisode

_PER_PROCESS = 16
"""Episodes that a node holds for each of its processes, those in progress included."""
_STARTS = 2
"""Times that a worker is started on a node that stays alive."""


class _Place(NamedTuple):
    """Resources of a worker: a node, and what it uses there.

    Attributes:
        node: Id of the node; None for any node.
        cpus: Number of CPUs.
        gpus: Number of GPUs.
        ahead: Episodes that the worker holds at most.
    """

    node: str | None
    cpus: float
    gpus: float
    ahead: int


class _Member:
    """A worker on the cluster, and the episodes that it holds."""

    def __init__(self, place: _Place, start: Callable[[_Place], Any]) -> None:
        self.place = place
        self.actor = start(place)
        self.held: dict[EpisodeKey, PlannedEpisode] = {}
        self.starts = 1

    def fill(self, waiting: deque[PlannedEpisode], members: int) -> None:
        """Submit waiting episodes once half of those before are played, and fewer towards the end of the queue."""
        if waiting and 2 * len(self.held) <= self.place.ahead:
            count = min(self.place.ahead - len(self.held), math.ceil(len(waiting) / (2 * members)))
            batch = [waiting.popleft() for _ in range(count)]
            self.held |= {one.key: one for one in batch}
            self.actor.submit.remote(batch)

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
        places = [
            _Place(node, cpus, 0, _PER_PROCESS * int(cpus)) for node, cpus in _nodes("CPU").items() if cpus >= 1
        ]
        if not places:
            raise ConfigurationError("the Ray cluster has no CPUs; start nodes with `ray start --num-cpus`.")

        def start(place: _Place) -> Any:
            return _make_actor(NodeWorker, place, self._plan, limits, int(place.cpus))

        yield from _play(deque(planned), places, start)

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
        copies = int(sum(gpus // width for gpus in _nodes("GPU").values()))
        if copies:
            places = [_Place(None, 1, width, 0) for _ in range(copies)]
        else:
            places = [_Place(node, cpus, 0, 0) for node, cpus in _nodes("CPU").items() if cpus >= 1]
        if not places:
            raise ConfigurationError("the Ray cluster has neither GPUs nor CPUs for the model.")
        places = places[: len(waiting)]
        at_once = min(in_flight, math.ceil(len(waiting) / len(places)))
        places = [place._replace(ahead=2 * at_once) for place in places]

        def start(place: _Place) -> Any:
            return _make_actor(ReplicaWorker, place, self._plan, limits, factory, at_once)

        yield from _play(waiting, places, start)


def _nodes(resource: str) -> dict[str, float]:
    """Return the amount of a resource on each node that is alive, by the node's id."""
    import ray

    nodes: Any = ray.nodes()
    return {node["NodeID"]: node["Resources"].get(resource, 0.0) for node in nodes if node["Alive"]}


def _make_actor(kind: type[RemoteWorker], place: _Place, *arguments: Any) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options: dict[str, Any] = {"num_cpus": place.cpus, "num_gpus": place.gpus}
    if place.node is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(place.node, soft=False)
    return ray.remote(kind).options(**options).remote(*arguments)


def _play(
    waiting: deque[PlannedEpisode], places: Iterable[_Place], start: Callable[[_Place], Any]
) -> Iterator[FinishedEpisode]:
    """Play episodes by a worker in each place, and yield them as they arrive."""
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    members = [_Member(place, start) for place in places]
    collecting: dict[Any, _Member] = {}
    try:
        while waiting or any(member.held for member in members):
            for member in members:
                member.fill(waiting, len(members))
                if member.held and member not in collecting.values():
                    collecting[member.actor.collect.remote()] = member
            ready, _ = ray.wait(list(collecting), num_returns=1)
            for call in ready:
                member = collecting.pop(call)
                try:
                    finished = ray.get(call)
                except RayTaskError as error:
                    raise (error.cause if isinstance(error.cause, Exception) else error) from None
                except RayActorError as error:
                    member.give_back(waiting)
                    members.remove(member)
                    members += _replace(member, start)
                    if not members:
                        raise Stop(f"every node of the Ray cluster has died ({_first_line(error)})") from None
                    continue
                for one in finished:
                    if member.held.pop(one.key, None) is not None:
                        yield one
    finally:
        for member in members:
            with suppress(Exception):
                ray.kill(member.actor)


def _replace(member: _Member, start: Callable[[_Place], Any]) -> list[_Member]:
    """Start a worker again whose node is still there, if it has not died too often."""
    node = member.place.node
    if member.starts >= _STARTS or (node is not None and node not in _nodes("CPU")):
        return []
    again = _Member(member.place, start)
    again.starts = member.starts + 1
    return [again]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


@contextmanager
def ray_workers(address: str, plan: Plan) -> Iterator[Cluster]:
    """Context with the workers of a Ray cluster. Requires the extra `ray`.

    Args:
        address: Address for `ray.init`: "auto", "local", or host and port.
        plan: Plan of the run.

    Raises:
        ConfigurationError: Ray is not installed, or there is no cluster at the address.
    """
    try:
        import ray
    except ImportError as error:
        raise missing_extra("--ray", "ray", error) from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError) as error:
        raise ConfigurationError(f"no Ray cluster at {address!r} ({error}).") from None
    try:
        yield Cluster(plan)
    finally:
        ray.shutdown()


__all__ = ["Cluster", "ray_workers"]
