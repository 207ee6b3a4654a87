"""Schedules for a number of accelerators: which there are, and what the simulation says of each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ....envs.errors import ConfigurationError
from .cluster import Cluster
from .episodes import Lengths, total_tokens
from .simulate import Result, Schedule, simulate

STALENESS = (0, 1, 4)


class Plan(NamedTuple):
    """Best division of the devices for one kind of schedule.

    Attributes:
        name: Kind of schedule.
        gpus: Number of devices.
        schedule: The schedule.
        result: Outcome of its simulation.
    """

    name: str
    gpus: int
    schedule: Schedule
    result: Result


def make_plans(
    cluster: Cluster,
    lengths: Sequence[Lengths],
    gpus: Sequence[int],
    batch: int,
    in_flight: int,
    **simulation: Any,
) -> Iterator[Plan]:
    """Yield the fastest plan of each kind for every number of devices.

    "in turn": all devices sample, then all learn. "split": some only sample and others only learn, and wait for
    each other. "one ahead" and "four ahead": episodes may begin one or four updates before the one that they
    train.

    Args:
        cluster: Model and devices.
        lengths: Measured episodes.
        gpus: Numbers of devices.
        batch: Episodes per update.
        in_flight: Maximum number of conversations in progress per replica.
        simulation: `updates`, `warmup` and `seed` of `simulate`.

    Raises:
        ConfigurationError: The model fits on none of these numbers of devices.
    """
    context = statistics.fmean(total_tokens(episode) for episode in lengths)
    devices = cluster.tensor_parallel(context)
    slots = cluster.slots(context, in_flight, devices)
    smallest = max(cluster.min_learners(), devices)
    if max(gpus) < smallest:
        raise ConfigurationError(
            f"the model needs at least {smallest} GPUs: its weights and optimizer state take"
            f" {16 * cluster.shape.parameters / 1e9:,.0f} GB"
        )
    for count in sorted(gpus):
        if count < smallest:
            continue
        together = Schedule(batch, count // devices, devices, slots=slots)
        result = simulate(cluster, together, lengths, **simulation)
        yield Plan("in turn", count, together, result)
        # Samplers and learners are balanced where their shares of the work are those of the devices.
        share = result.learning / (result.sampling + result.learning)
        for staleness, name in zip(STALENESS, ("split", "one ahead", "four ahead"), strict=True):
            plans = [
                Plan(name, count, schedule, simulate(cluster, schedule, lengths, **simulation))
                for schedule in _divisions(cluster, count, share, Schedule(batch, 1, devices, 1, slots, staleness))
            ]
            if plans:
                yield min(plans, key=lambda plan: plan.result.seconds)


def _divisions(cluster: Cluster, gpus: int, share: float, schedule: Schedule) -> Iterator[Schedule]:
    """Yield the two divisions of the devices into samplers and learners that are closest to a share, if they fit.

    Args:
        cluster: Model and devices.
        gpus: Number of devices.
        share: Fraction of the devices that should learn.
        schedule: Schedule whose devices are to be divided.
    """
    exact = gpus * (1 - share) / schedule.devices
    most = (gpus - cluster.min_learners()) // schedule.devices
    for samplers in sorted({min(max(number, 1), most) for number in (math.floor(exact), math.ceil(exact))}):
        if samplers >= 1:
            yield replace(schedule, samplers=samplers, learners=gpus - samplers * schedule.devices)
