"""Discrete-event simulation of training schedules: samplers with continuous batching, and a learner.

All sequences of a replica share its decoding steps, so between two events each gains tokens at the same rate, and
the seconds of a step depend on how many there are and how long. Prompts that arrive during one step are encoded in
one call, which stalls the replica, and the first prompt of a group is encoded once. Episodes wait for their
environment without a place in the batch, but keep their slot.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from .cluster import Cluster
from .episodes import Lengths

_EndReply, _EndStep, _EndEpisode, _EndLearning = range(4)


@dataclass(frozen=True)
class Schedule:
    """Division of the devices between sampling and learning, and their order.

    Attributes:
        batch: Episodes per update.
        samplers: Sampling replicas.
        devices: Devices of a replica.
        learners: Devices that only learn; 0 if the samplers' devices do both in turn.
        slots: Conversations in progress per replica.
        staleness: Updates that an episode may begin ahead of: 0 is synchronous; with 1, the next batch is sampled
            while this one is learnt from.
        rollouts: Episodes of a group, which have the same first prompt.
        environments: "waiting" if environments step beside the sampler, "inline" if in its thread.
    """

    batch: int
    samplers: int
    devices: int = 1
    learners: int = 0
    slots: int = 64
    staleness: int = 0
    rollouts: int = 1
    environments: Literal["waiting", "inline"] = "waiting"

    def __post_init__(self) -> None:
        if self.learners == 0 and self.staleness > 0:
            raise ValueError("devices that sample and learn in turn cannot sample ahead")

    @property
    def gpus(self) -> int:
        """Number of devices."""
        return self.samplers * self.devices + self.learners


class Result(NamedTuple):
    """Outcome of a simulation, mean over the measured updates.

    Attributes:
        seconds: Seconds per update.
        sampling, learning, transfer: Fractions of the devices' time.
        idle: Remaining fraction: devices that wait for stragglers, for environments or for each other.
        tokens: Sampled tokens per second.
        lag: Updates between the weights with which an episode began and those that it trains, mean over episodes.
    """

    seconds: float
    sampling: float
    learning: float
    transfer: float
    idle: float
    tokens: float
    lag: float


@dataclass
class _Episode:
    """An episode in progress."""

    lengths: Lengths
    version: int
    shares_prompt: bool
    turn: int = 0
    context: int = 0


@dataclass
class _Replica:
    """A model with its batch of conversations."""

    clock: float = 0.0
    steps: float = 0.0
    context: float = 0.0
    busy: float = 0.0
    load: int = 0
    event: int = 0
    encoded_at: int = -1
    batch: list[tuple[float, int, _Episode]] = field(default_factory=list)


class _Simulation:
    """State of a simulation."""

    def __init__(self, cluster: Cluster, schedule: Schedule, draw: Callable[[], Lengths]) -> None:
        self.cluster, self.schedule, self._draw = cluster, schedule, draw
        self._sampler = cluster.sampler(schedule.devices)
        self.replicas = [_Replica() for _ in range(schedule.samplers)]
        self._idlest = [(0, number) for number in range(schedule.samplers)]
        self._events: list[tuple[float, int, int, int, int, _Episode | None]] = []
        self._serial = 0
        self._submitted = 0
        self._finished: list[_Episode] = []
        self._learning: list[_Episode] = []
        self.updates = 0
        self.ends: list[tuple[float, float, float, float]] = []
        """After every update: time, seconds of sampling of all replicas, of learning, and of transfers."""
        self.lags: list[float] = []
        self.tokens: list[int] = []
        self._learn_seconds = self._transfer_seconds = 0.0

    def run(self, updates: int) -> None:
        """Simulate a number of updates."""
        self._admit(0.0)
        while self.updates < updates:
            now, _, kind, number, event, episode = heapq.heappop(self._events)
            if kind == _EndLearning:
                self._end_learning(now)
            elif kind == _EndReply:
                if event == self.replicas[number].event:
                    self._end_reply(number, now)
            elif episode is not None:
                (self._begin_turn if kind == _EndStep else self._finish)(number, episode, now)

    def _push(
        self, time: float, kind: int, number: int = 0, event: int = 0, episode: _Episode | None = None
    ) -> None:
        self._serial += 1
        heapq.heappush(self._events, (time, self._serial, kind, number, event, episode))

    # ------------------------------------------------------------------ replicas

    def _step_seconds(self, replica: _Replica) -> float:
        cost = self._sampler
        return cost.step + cost.sequence * len(replica.batch) + cost.context * replica.context

    def _advance(self, replica: _Replica, now: float) -> None:
        """Decode until now."""
        if now <= replica.clock:
            return
        if replica.batch:
            steps = (now - replica.clock) / self._step_seconds(replica)
            replica.steps += steps
            replica.context += steps * len(replica.batch)
            replica.busy += now - replica.clock
        replica.clock = now

    def _stall(self, replica: _Replica, seconds: float, *, busy: bool = True) -> None:
        """Stop decoding for some time."""
        replica.clock += seconds
        if busy:
            replica.busy += seconds

    def _expect(self, number: int) -> None:
        """Schedule the end of the shortest reply of a replica."""
        replica = self.replicas[number]
        replica.event += 1
        if replica.batch:
            wait = max(0.0, replica.batch[0][0] - replica.steps) * self._step_seconds(replica)
            self._push(replica.clock + wait, _EndReply, number, replica.event)

    def _begin_turn(self, number: int, episode: _Episode, now: float) -> None:
        replica = self.replicas[number]
        self._advance(replica, now)
        length = episode.lengths[episode.turn]
        tokens, cost = 0 if episode.shares_prompt and not episode.turn else length.prompt, self._sampler
        seconds = cost.prompt + tokens * (cost.token + cost.square * tokens + cost.pair * episode.context)
        if int(replica.steps) != replica.encoded_at:
            seconds += cost.call
            replica.encoded_at = int(replica.steps)
        self._stall(replica, seconds)
        episode.context += length.prompt
        replica.context += episode.context
        self._serial += 1
        heapq.heappush(replica.batch, (replica.steps + length.reply, self._serial, episode))
        self._expect(number)

    def _end_reply(self, number: int, now: float) -> None:
        replica = self.replicas[number]
        self._advance(replica, now)
        end, _, episode = heapq.heappop(replica.batch)
        replica.steps = max(replica.steps, end)
        length = episode.lengths[episode.turn]
        episode.context += length.reply
        replica.context = max(0.0, replica.context - episode.context) if replica.batch else 0.0
        episode.turn += 1
        if self.schedule.environments == "inline":
            self._stall(replica, length.env_seconds)
            done = replica.clock
        else:
            done = now + length.env_seconds
        # An episode that ends later begins others later: their replicas have events before that.
        is_last = episode.turn == len(episode.lengths)
        self._push(done, _EndEpisode if is_last else _EndStep, number, 0, episode)
        self._expect(number)

    # ------------------------------------------------------------------ the schedule

    def _admit(self, now: float) -> None:
        """Begin as many episodes as slots and staleness allow, on the replicas with the fewest."""
        schedule = self.schedule
        limit = (self.updates + 1 + schedule.staleness) * schedule.batch
        while self._submitted < limit and self._idlest:
            load, number = heapq.heappop(self._idlest)
            replica = self.replicas[number]
            if load != replica.load:
                continue  # A newer entry of this replica follows.
            if load >= schedule.slots:
                heapq.heappush(self._idlest, (load, number))
                return
            replica.load += 1
            heapq.heappush(self._idlest, (replica.load, number))
            shares_prompt = self._submitted % schedule.rollouts > 0
            self._submitted += 1
            self._begin_turn(number, _Episode(self._draw(), self.updates, shares_prompt), now)

    def _finish(self, number: int, episode: _Episode, now: float) -> None:
        replica = self.replicas[number]
        replica.load -= 1
        heapq.heappush(self._idlest, (replica.load, number))
        self._finished.append(episode)
        self._learn(now)
        self._admit(now)

    def _learn(self, now: float) -> None:
        """Begin an update if the learner is free and a batch is complete, oldest episodes first."""
        batch = self.schedule.batch
        if self._learning or len(self._finished) < batch:
            return
        self._learning, self._finished = self._finished[:batch], self._finished[batch:]
        learners = self.schedule.learners or self.schedule.gpus
        seconds = self.cluster.learn_seconds([one.lengths for one in self._learning], learners)
        self._learn_seconds += seconds * learners
        self._push(now + seconds, _EndLearning)

    def _end_learning(self, now: float) -> None:
        """Transfer the new weights, for which all samplers stop, and go on."""
        seconds = self.cluster.transfer_seconds(self.schedule.gpus)
        self._transfer_seconds += seconds * self.schedule.gpus
        for number, replica in enumerate(self.replicas):
            self._advance(replica, now)
            self._stall(replica, seconds, busy=False)
            self._expect(number)
        self.lags.append(float(np.mean([self.updates - one.version for one in self._learning])))
        self.tokens.append(sum(turn.reply for one in self._learning for turn in one.lengths))
        self._learning = []
        self.updates += 1
        sampled = sum(replica.busy for replica in self.replicas) * self.schedule.devices
        self.ends.append((now + seconds, sampled, self._learn_seconds, self._transfer_seconds))
        self._learn(now + seconds)
        self._admit(now + seconds)


def simulate(
    cluster: Cluster,
    schedule: Schedule,
    lengths: Sequence[Lengths],
    *,
    updates: int = 4,
    warmup: int | None = None,
    seed: int = 0,
) -> Result:
    """Simulate a schedule with episodes drawn from measured ones.

    Args:
        cluster: Devices and model.
        schedule: Schedule.
        lengths: Measured episodes, from which episodes are drawn with replacement.
        updates: Updates to measure.
        warmup: Updates before these, in which a pipeline fills. None means 2 more than the staleness.
        seed: Seed of the draws.
    """
    warmup = 2 + schedule.staleness if warmup is None else warmup
    rng = np.random.default_rng(seed)
    simulation = _Simulation(cluster, schedule, lambda: lengths[int(rng.integers(len(lengths)))])
    simulation.run(warmup + updates)
    before = simulation.ends[warmup - 1] if warmup else (0.0, 0.0, 0.0, 0.0)
    window, sampled, learnt, sent = (
        after - start for after, start in zip(simulation.ends[-1], before, strict=True)
    )
    total = window * schedule.gpus
    shares = sampled / total, learnt / total, sent / total
    return Result(
        window / updates,
        *shares,
        idle=max(0.0, 1.0 - sum(shares)),
        tokens=sum(simulation.tokens[warmup:]) / window,
        lag=float(np.mean(simulation.lags[warmup:])),
    )
