"""One optimizer over all that is learnt, which refuses to take a step that would spoil it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..envs.errors import ConfigurationError
from .policy import Policy
from .recipe import Critic, Optimisation

PATIENCE = 3
"""Steps in a row that may be skipped."""


class Diverged(RuntimeError):
    """Gradients were NaN or infinite too often in a row."""


class Step(NamedTuple):
    """What became of one step.

    Attributes:
        grad_norm: of the policy, before clipping; may be NaN or infinite.
        critic_grad_norm: of the critic; 0 without one.
        skipped: whether the step was not taken.
    """

    grad_norm: float
    critic_grad_norm: float
    skipped: bool


def rate_factor(optimisation: Optimisation, update: int) -> float:
    """What the learning rate is multiplied by in an update (the first is 0): linear warm-up, then the schedule."""
    if update < optimisation.warmup:
        return (update + 1) / optimisation.warmup
    rest = max(optimisation.updates - optimisation.warmup, 1)
    done = min((update - optimisation.warmup) / rest, 1.0)
    if optimisation.schedule == "linear":
        return 1.0 - done
    if optimisation.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * done))
    return 1.0


def make_accelerator(device: str | None, precision: str, trackers: tuple[str, ...] = (), folder: str = ".") -> Any:
    """Hugging Face Accelerate's view of this process: alone, or one of many if its launcher started it.

    Raises:
        ConfigurationError: it is set up in a way that this trainer cannot work in.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState

    if PartialState._shared_state and PartialState().num_processes == 1:
        # Settings of an earlier run in this process must not decide over this one.
        AcceleratorState._reset_state(reset_partial_state=True)
    try:
        accelerator = Accelerator(
            cpu=device == "cpu",
            mixed_precision="bf16" if precision == "bfloat16" else "no",
            log_with=list(trackers) or None,
            project_dir=folder,
        )
    except (ValueError, ImportError) as error:
        raise ConfigurationError(f"Accelerate cannot be set up: {error}") from None
    kind = str(accelerator.distributed_type.value)
    if kind not in ("NO", "MULTI_GPU", "MULTI_CPU"):
        raise ConfigurationError(
            f"Accelerate is configured for {kind}; so far the policy can only be sampled from where every process "
            "holds it whole: use plain data parallelism (DDP)."
        )
    return accelerator


@dataclass
class Descent:
    """AdamW over policy and critic, through Accelerate.

    Args:
        accelerator: of `make_accelerator`.
        policy: what is learnt.
        optimisation: how.
        critic: settings of its critic, if it has one.

    Attributes:
        model: the policy as Accelerate wrapped it: what is to be called.
        streak: steps skipped in a row by now.
        skipped: steps skipped in all.
        slowdown: what all learning rates are multiplied by, beside their schedule.
    """

    accelerator: Any
    policy: Policy
    optimisation: Optimisation
    critic: Critic | None = None
    streak: int = 0
    skipped: int = 0
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        self._parts: list[list[Tensor]] = [[p for p in self.policy.causal.parameters() if p.requires_grad]]
        rates = [self.optimisation.lr]
        if self.policy.critic is not None:
            assert self.critic is not None
            self._parts.append([p for p in self.policy.critic.parameters() if p.requires_grad])
            rates.append(self.critic.lr)
        groups = [
            {"params": part, "lr": rate, "base_lr": rate} for part, rate in zip(self._parts, rates, strict=True)
        ]
        optimizer = torch.optim.AdamW(
            groups, betas=self.optimisation.betas, weight_decay=self.optimisation.weight_decay
        )
        self.model, self.optimizer = self.accelerator.prepare(self.policy, optimizer)

    @property
    def world(self) -> int:
        """Processes that learn together."""
        return int(self.accelerator.num_processes)

    @property
    def micro_tokens(self) -> int:
        """Tokens that are run through the model at once where a run does not say how many."""
        return 4096 if self.accelerator.device.type == "cpu" else 16384

    def set_rates(self, update: int) -> float:
        """Set the learning rates of an update; returns the policy's."""
        factor = rate_factor(self.optimisation, update) * self.slowdown
        waits = self.critic is not None and update < self.critic.warmup
        for number, group in enumerate(self.optimizer.param_groups):
            group["lr"] = group["base_lr"] * (0.0 if waits and number == 0 else factor)
        return float(self.optimizer.param_groups[0]["lr"])

    @contextmanager
    def part(self, last: bool) -> Iterator[None]:
        """Around forward and backward of one micro-batch: gradients are exchanged with the last one only."""
        with nullcontext() if last or self.world == 1 else self.accelerator.no_sync(self.model):
            yield

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a summand of the loss (which Accelerate averages over processes)."""
        self.accelerator.backward(loss * self.world)

    def step(self) -> Step:
        """Clip the gradients (policy and critic each to the same norm) and take a step, unless one is not finite.

        Raises:
            Diverged: it was the third skipped step in a row.
        """
        limit = self.optimisation.max_grad_norm
        norms = [float(self.accelerator.clip_grad_norm_(part, limit)) for part in self._parts]
        finite = all(math.isfinite(norm) for norm in norms)
        if finite:
            self.optimizer.step()
            self.streak = 0
        else:
            self.streak += 1
            self.skipped += 1
        self.optimizer.zero_grad()
        if self.streak >= PATIENCE:
            raise Diverged(
                f"the gradient was NaN or infinite in {self.streak} steps in a row; none of them was taken. Lower "
                "optimisation.lr, or look at the rewards of the last episodes."
            )
        return Step(norms[0], norms[1] if len(norms) > 1 else 0.0, not finite)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of the optimizer."""
        inner = self.optimizer.optimizer
        return {"optimizer": inner.state_dict(), "streak": self.streak, "skipped": self.skipped}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.optimizer.optimizer.load_state_dict(state["optimizer"])
        self.streak, self.skipped = state["streak"], state["skipped"]
