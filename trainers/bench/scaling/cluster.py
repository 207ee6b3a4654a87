"""Placement of a model on accelerators, and the seconds of the phases there."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ....envs.errors import ConfigurationError
from .costs import Costs, decode_work, prefill_work, score_work, update_work
from .devices import GPUS_PER_MACHINE, Assumptions, Device
from .episodes import Lengths, total_tokens
from .model_shape import WEIGHT_BYTES, ModelShape

TRAINING_BYTES = 16
"""Bytes of a trained weight: float32 weight, gradient and two moments of AdamW."""
_USABLE = 0.9
"""Fraction of the memory that models and caches may take."""
_LEARNER_SHARE = 0.6
"""Fraction of the memory for sharded weights and optimizer state; activations take the rest."""


class Sampler(NamedTuple):
    """Seconds of sampling on a replica, as polynomials.

    A decoding step takes `step + sequence · n + context · c` for n sequences of c tokens together. A call that
    encodes prompts takes `call`, and for each of t tokens after c `prompt + t · (token + square · t + pair · c)`,
    where `prompt` includes a turn of the harness.
    """

    step: float
    sequence: float
    context: float
    call: float
    prompt: float
    token: float
    square: float
    pair: float


@dataclass(frozen=True)
class Cluster:
    """Accelerators of one kind, with a model on them.

    Attributes:
        shape: Sizes of the model.
        costs: Seconds per unit of work on one device.
        device: Published figures; None for a single device with measured costs, where nothing is transferred.
        assumptions: Network and delays.
        microbatch_tokens: Tokens of a micro-batch of one device.
        scores: Passes that score sampled tokens before an update: one for the policy's own log-probabilities, and
            one for a reference policy; 0 where the sampler's are used.
        steps: Optimizer steps per update.
    """

    shape: ModelShape
    costs: Costs
    device: Device | None = None
    assumptions: Assumptions = field(default_factory=Assumptions)
    microbatch_tokens: int = 16384
    scores: int = 1
    steps: int = 1

    # ------------------------------------------------------------------ memory

    def tensor_parallel(self, context: float) -> int:
        """Return the smallest number of devices, a power of two, that holds the weights and 16 conversations.

        Args:
            context: Mean length of a conversation at its end, in tokens.

        Raises:
            ConfigurationError: A machine of eight cannot hold them.
        """
        if self.device is None:
            return 1
        needed = self.shape.weight_bytes + 16 * context * self.shape.cache_bytes
        devices = 1
        while devices * _USABLE * self.device.memory < needed:
            devices *= 2
        if devices > GPUS_PER_MACHINE:
            room = GPUS_PER_MACHINE * _USABLE * self.device.memory
            raise ConfigurationError(
                f"the model does not fit: its weights and 16 conversations take {needed / 1e9:,.0f} GB, and a"
                f" machine has room for {room / 1e9:,.0f} GB; choose a smaller model or shorter replies."
            )
        return devices

    def slots(self, context: float, in_flight: int, devices: int) -> int:
        """Return the number of conversations whose keys and values fit beside the weights of a replica.

        Args:
            context: Mean length of a conversation at its end, in tokens.
            in_flight: Upper bound.
            devices: Devices of a replica, as `tensor_parallel` returns them.
        """
        if self.device is None:
            return in_flight
        room = devices * _USABLE * self.device.memory - self.shape.weight_bytes
        return max(1, min(in_flight, int(room / (context * self.shape.cache_bytes))))

    def min_learners(self) -> int:
        """Return the smallest number of devices whose memory holds weights, gradients and optimizer state."""
        if self.device is None:
            return 1
        return math.ceil(TRAINING_BYTES * self.shape.parameters / (_LEARNER_SHARE * self.device.memory))

    # ------------------------------------------------------------------ seconds

    def sampler(self, devices: int) -> Sampler:
        """Return the seconds of sampling on a replica.

        Args:
            devices: Devices of the replica (tensor parallelism), which share memory traffic and operations.
        """
        shape = self.shape

        def decode(sequences: float, context: float) -> float:
            work = dict(decode_work(shape, sequences, context))
            work["byte"] /= devices
            work["flop"] /= devices
            return self.costs.of("decode", work) + self._exchange(sequences, devices)

        def prefill(tokens: float, context: float) -> float:
            work = dict(prefill_work(shape, tokens, context))
            work["flop"] /= devices
            return self.costs.of("prefill", work) + self._exchange(tokens, devices)

        # Both are polynomials, whose coefficients are much faster to evaluate than the functions.
        step = decode(0.0, 0.0)
        none = prefill(0.0, 0.0)
        call = self.costs.of("prefill", {"call": 1.0, "layer": shape.layers}) + self._exchange(0.0, devices)
        pair = prefill(1.0, 1.0) - prefill(1.0, 0.0)
        square = (prefill(2.0, 0.0) - 2 * prefill(1.0, 0.0) + none) / 2
        return Sampler(
            step=step,
            sequence=decode(1.0, 0.0) - step,
            context=decode(0.0, 1.0) - step,
            call=call,
            prompt=none - call + self.costs.of("turn", {"turn": 1.0}),
            token=prefill(1.0, 0.0) - none - square,
            square=square,
            pair=pair,
        )

    def learn_seconds(self, episodes: Sequence[Lengths], devices: int) -> float:
        """Return the seconds of scoring and of an update on sharded devices, each of which takes whole episodes.

        The longest episodes are distributed first, each to the device with the fewest tokens. Gathering weights
        and reducing gradients overlap with computing.

        Args:
            episodes: Episodes of the update.
            devices: Number of devices.
        """
        loads: list[tuple[int, int]] = [(0, rank) for rank in range(devices)]
        shares: list[list[Lengths]] = [[] for _ in range(devices)]
        for episode in sorted(episodes, key=total_tokens, reverse=True):
            load, rank = heapq.heappop(loads)
            shares[rank].append(episode)
            heapq.heappush(loads, (load + total_tokens(episode), rank))
        busiest = max(load for load, _ in loads)
        microbatches = max(self.steps, math.ceil(busiest / self.microbatch_tokens))
        scored, updated = max((self._share_seconds(share, microbatches) for share in shares), key=sum)
        if devices > 1:
            link = self._link(devices)
            gathered = WEIGHT_BYTES * self.shape.parameters * (devices - 1) / devices
            delay = self.shape.layers * self.assumptions.latency
            # A backward pass gathers the weights once more and reduces the gradients.
            scored = max(scored, microbatches * (gathered / link + delay))
            updated = max(updated, microbatches * (3 * gathered / link + 3 * delay))
        optimizer = self.costs.of("update", {"parameter": self.steps * self.shape.parameters / devices})
        return self.scores * scored + updated + optimizer

    def _share_seconds(self, share: Sequence[Lengths], microbatches: int) -> tuple[float, float]:
        """Return the seconds of scoring, and of forward and backward passes, of the episodes of one device."""
        lengths = [total_tokens(episode) for episode in share]
        sampled = sum(turn.reply for episode in share for turn in episode)
        score = self.costs.of("score", score_work(self.shape, lengths, sampled, microbatches))
        update = self.costs.of("update", update_work(self.shape, lengths, sampled, microbatches, 0.0))
        return score, update

    def transfer_seconds(self, devices: int) -> float:
        """Return the seconds in which all samplers receive the weights, as a pipelined broadcast.

        Args:
            devices: Number of all devices.
        """
        if self.device is None or devices == 1:
            return 0.0
        return self.shape.weight_bytes / self._link(devices) + self.assumptions.latency * math.log2(devices)

    def _link(self, devices: int) -> float:
        """Return the bytes per second between the devices of a group."""
        assert self.device is not None, "one device has no link"
        return self.device.link if devices <= GPUS_PER_MACHINE else self.assumptions.network

    def _exchange(self, tokens: float, devices: int) -> float:
        """Return the seconds of the two all-reduces of every layer under tensor parallelism."""
        if devices == 1:
            return 0.0
        assert self.device is not None, "one device has no link"
        size = 2 * WEIGHT_BYTES * tokens * self.shape.attention * (devices - 1) / devices
        return 2 * self.shape.layers * (self.assumptions.latency + size / self.device.link)
