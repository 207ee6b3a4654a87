"""One optimizer over all that is learnt, which refuses to take a step that would spoil it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algorithms.recipe import Critic, Optimisation
from .policy import Policy
from .sharding import optimizer_state, put_optimizer_state, put_state, whole, whole_state

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
        version: of the weights; it changes whenever they do.
    """

    accelerator: Any
    policy: Policy
    optimisation: Optimisation
    critic: Critic | None = None
    streak: int = 0
    skipped: int = 0
    slowdown: float = 1.0
    version: int = 0

    def __post_init__(self) -> None:
        parts = [[p for p in self.policy.causal.parameters() if p.requires_grad]]
        rates = [self.optimisation.lr]
        if self.policy.critic is not None:
            assert self.critic is not None
            parts.append([p for p in self.policy.critic.parameters() if p.requires_grad])
            rates.append(self.critic.lr)
        groups = [{"params": part, "lr": rate, "base_lr": rate} for part, rate in zip(parts, rates, strict=True)]
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
        return 2048 if self.accelerator.device.type == "cpu" else 16384

    @property
    def in_pieces(self) -> bool:
        """Whether this process holds but a piece of each weight."""
        return bool(self.accelerator.is_fsdp2)

    def autocast(self) -> AbstractContextManager[Any]:
        """Within it the models compute in the precision of the run."""
        context: AbstractContextManager[Any] = self.accelerator.autocast()
        return context

    def set_rates(self, update: int) -> float:
        """Set the learning rates of an update; returns the policy's."""
        factor = rate_factor(self.optimisation, update) * self.slowdown
        waits = self.critic is not None and update < self.critic.warmup
        for number, group in enumerate(self.optimizer.param_groups):
            group["lr"] = group["base_lr"] * (0.0 if waits and number == 0 else factor)
        return float(self.optimizer.param_groups[0]["lr"])

    @contextmanager
    def part(self, last: bool) -> Iterator[None]:
        """Around forward and backward of one micro-batch: whole gradients are exchanged with the last one only."""
        waits = not last and self.world > 1 and not self.in_pieces
        with self.accelerator.no_sync(self.model) if waits else nullcontext():
            yield

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a summand of the loss (which Accelerate averages over processes)."""
        self.accelerator.backward(loss * self.world)

    def step(self) -> Step:
        """Clip the gradients (policy and critic each to the same norm) and take a step, unless one is not finite.

        Raises:
            Diverged: it was the third skipped step in a row.
        """
        norms = self._clip(self.optimisation.max_grad_norm)
        # These are norms of whole gradients, so that all processes come to the same conclusion.
        finite = all(math.isfinite(norm) for norm in norms)
        self._take(finite)
        if finite:
            self.streak = 0
            self.version += 1
        else:
            self.streak += 1
            self.skipped += 1
        if self.streak >= PATIENCE:
            raise Diverged(
                f"the gradient was NaN or infinite in {self.streak} steps in a row; none of them was taken. Lower "
                "optimisation.lr, or look at the rewards of the last episodes."
            )
        return Step(norms[0], norms[1] if len(norms) > 1 else 0.0, not finite)

    def _clip(self, limit: float) -> list[float]:
        """Scale the gradients of each parameter group down to a norm; the norms before it."""
        groups = self.optimizer.param_groups
        return [float(whole(torch.nn.utils.clip_grad_norm_(group["params"], limit))) for group in groups]

    def _take(self, finite: bool) -> None:
        """Take the step if the gradients are finite, and forget them in any case."""
        if finite:
            self.optimizer.step()
        self.optimizer.zero_grad()

    # ------------------------------------------------------------------ checkpoints

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of optimizer and critic, the same however many processes there are.

        All processes must ask for it together.
        """
        critic = self.policy.critic
        return {
            "optimizer": self._optimizer_state(),
            "critic": None if critic is None else whole_state(critic),
            "streak": self.streak,
            "skipped": self.skipped,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`, once the policy itself has been loaded."""
        self._put_optimizer_state(state["optimizer"])
        if self.policy.critic is not None:
            put_state(self.policy.critic, state["critic"])
        self.streak, self.skipped = state["streak"], state["skipped"]
        self.version += 1

    def _optimizer_state(self) -> dict[str, dict[str, Tensor]]:
        return optimizer_state(self.policy, self.optimizer.optimizer)

    def _put_optimizer_state(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        put_optimizer_state(self.policy, self.optimizer.optimizer, state)


def make_descent(
    accelerator: Any, policy: Policy, optimisation: Optimisation, critic: Critic | None = None
) -> Descent:
    """The descent that fits how the processes share the learning; see `Descent`."""
    if str(accelerator.distributed_type.value) == "DEEPSPEED":
        from .zero_optimizer import ZeroDescent

        return ZeroDescent(accelerator, policy, optimisation, critic)
    return Descent(accelerator, policy, optimisation, critic)
