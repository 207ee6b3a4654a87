"""Connection to a Ray cluster, its nodes, and actors in chosen places; evaluation and training share them."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...envs.errors import ConfigurationError
from ...envs.extras import missing_extra

ANSWER_SECONDS = 10.0
"""Seconds within which the head of a cluster accepts a connection."""


class Place(NamedTuple):
    """Resources of an actor: a node, and what it uses there.

    Attributes:
        node: Id of the node; None for any node.
        cpus: Number of CPUs.
        gpus: Number of GPUs.
    """

    node: str | None
    cpus: float
    gpus: float = 0


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Context in which this process is connected to a Ray cluster. Requires the extra `ray`.

    Args:
        address: Address for `ray.init`: "auto", "local", or host and port.

    Raises:
        ConfigurationError: Ray is not installed, there is no cluster at the address, or this process already uses
            one.
    """
    try:
        import ray
    except ImportError as error:
        raise missing_extra("--ray", "ray", error) from None
    if ray.is_initialized():
        raise ConfigurationError("this process is connected to a Ray cluster already; call ray.shutdown() before.")
    _check_answers(address)
    try:
        with _own_signals():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # For a node that does not start, Ray raises no class of its own.
        raise _no_cluster(address, first_line(error)) from None
    try:
        yield
    finally:
        ray.shutdown()


def _no_cluster(address: str, reason: object) -> ConfigurationError:
    if address == "auto":  # Ray's reason names options of its own.
        reason = "none runs on this machine"
    return ConfigurationError(
        f"no Ray cluster at {address!r} ({reason}); start one with `ray start --head`, or pass --ray HOST:PORT."
    )


def _check_answers(address: str) -> None:
    """Raise a ConfigurationError if nothing answers at a host and port, which Ray would ask for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from None


@contextmanager
def _own_signals() -> Iterator[None]:
    """Context that keeps the caller's handler of SIGTERM, which Ray replaces."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def living_nodes(resource: str) -> dict[str, float]:
    """Return the amount of a resource on each node that is alive, by the node's id."""
    import ray

    nodes: Any = ray.nodes()
    return {node["NodeID"]: node["Resources"].get(resource, 0.0) for node in nodes if node["Alive"]}


def make_actor(kind: type[Any], place: Place, *arguments: Any) -> Any:
    """Return the handle of a new actor of a class, which starts in the background."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options: dict[str, Any] = {"num_cpus": place.cpus, "num_gpus": place.gpus}
    if place.node is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(place.node, soft=False)
    return ray.remote(kind).options(**options).remote(*arguments)


def first_line(error: Exception) -> str:
    """Return the first line of an error of Ray, whose texts are long."""
    return str(error).strip().partition("\n")[0]
