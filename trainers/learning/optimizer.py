"""Optimizer over policy and critic: clipping, learning rates, gradient accumulation, and skipped steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..algorithms.recipe import Critic, Optimization
from .policy import Policy
from .sharding import (
    full_optimizer_state,
    full_state_dict,
    full_tensor,
    load_full_optimizer_state,
    load_full_state_dict,
)

if TYPE_CHECKING:
    from accelerate import Accelerator

MAX_SKIPPED_IN_A_ROW = 3
"""Consecutive skipped steps after which training stops."""


class Diverged(RuntimeError):
    """Too many consecutive steps had NaN or infinite gradients."""


class Step(NamedTuple):
    """Outcome of one optimizer step.

    Attributes:
        grad_norm: Norm of the policy's gradient before clipping; may be NaN or infinite.
        critic_grad_norm: Norm of the critic's gradient before clipping; 0 without a critic.
        skipped: True if the step was skipped.
    """

    grad_norm: float
    critic_grad_norm: float
    skipped: bool


def lr_factor(optimization: Optimization, update: int) -> float:
    """Return the factor on the learning rate in an update (the first is 0): linear warm-up, then the schedule."""
    if update < optimization.warmup:
        return (update + 1) / optimization.warmup
    total = max(optimization.updates - optimization.warmup, 1)
    progress = min((update - optimization.warmup) / total, 1.0)
    if optimization.schedule == "linear":
        return 1.0 - progress
    if optimization.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0


@dataclass
class PolicyOptimizer:
    """Optimizer over the policy and critic: AdamW, prepared by Accelerate.

    Args:
        accelerator: Result of `make_accelerator`.
        policy: Policy, with its critic if it has one.
        optimization: Hyper-parameters of the policy's optimizer.
        critic: Hyper-parameters of the critic; required if the policy has one.

    Attributes:
        model: The policy as Accelerate wrapped it; call this one.
        skipped_in_a_row: Consecutive skipped steps up to now.
        skipped: Skipped steps in the whole run.
        lr_scale: Factor on all learning rates, on top of their schedule.
        version: Version of the weights; changes whenever they do.
        critic_only: True in updates of the critic's warm-up, whose gradients of the policy are discarded: they
            change neither its weights nor its moments.
    """

    accelerator: Accelerator
    policy: Policy
    optimization: Optimization
    critic: Critic | None = None
    skipped_in_a_row: int = 0
    skipped: int = 0
    lr_scale: float = 1.0
    version: int = 0
    critic_only: bool = False

    def __post_init__(self) -> None:
        parameters = [[p for p in self.policy.model.parameters() if p.requires_grad]]
        lrs = [self.optimization.lr]
        if self.policy.critic is not None:
            assert self.critic is not None
            parameters.append([p for p in self.policy.critic.parameters() if p.requires_grad])
            lrs.append(self.critic.lr)
        groups = [{"params": part, "lr": lr, "base_lr": lr} for part, lr in zip(parameters, lrs, strict=True)]
        adamw = torch.optim.AdamW(
            groups, betas=self.optimization.betas, weight_decay=self.optimization.weight_decay
        )
        self.model, self._prepared = self.accelerator.prepare(self.policy, adamw)

    @property
    def world_size(self) -> int:
        """Number of training processes."""
        return int(self.accelerator.num_processes)

    @property
    def default_microbatch_tokens(self) -> int:
        """Tokens of a micro-batch where the run does not set them: what a CPU's caches or a GPU's memory hold."""
        return 2048 if self.accelerator.device.type == "cpu" else 16384

    @property
    def is_sharded(self) -> bool:
        """True if this process holds only a shard of each parameter."""
        return bool(self.accelerator.is_fsdp2)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the optimizer: the policy's, then the critic's."""
        groups: list[dict[str, Any]] = self._prepared.param_groups
        return groups

    @property
    def torch_optimizer(self) -> Any:
        """Optimizer inside Accelerate's wrapper: torch's, or DeepSpeed's."""
        return self._prepared.optimizer

    def autocast(self) -> AbstractContextManager[Any]:
        """Context in which models compute in the precision of the run."""
        context: AbstractContextManager[Any] = self.accelerator.autocast()
        return context

    def set_lr(self, update: int) -> float:
        """Set the learning rates for an update, and return the policy's."""
        factor = lr_factor(self.optimization, update) * self.lr_scale
        self.critic_only = self.critic is not None and update < self.critic.warmup
        for number, group in enumerate(self.param_groups):
            group["lr"] = group["base_lr"] * (0.0 if self.critic_only and number == 0 else factor)
        return float(self.param_groups[0]["lr"])

    @contextmanager
    def accumulate(self, is_last: bool) -> Iterator[None]:
        """Context for one micro-batch; gradients synchronize on the last only."""
        defer = not is_last and self.world_size > 1 and not self.is_sharded
        with self.accelerator.no_sync(self.model) if defer else nullcontext():
            yield

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of one summand of the loss, undoing Accelerate's mean over processes."""
        self.accelerator.backward(loss * self.world_size)

    def step(self) -> Step:
        """Clip the gradients of policy and critic, each to the same norm, and step unless one is not finite.

        Raises:
            Diverged: This was the third skipped step in a row.
        """
        norms = self._clip(self.optimization.max_grad_norm)
        # These are norms of the full gradients, so all processes reach the same decision.
        finite = all(math.isfinite(norm) for norm in norms)
        self._step_and_zero(finite)
        if finite:
            self.skipped_in_a_row = 0
            self.version += 1
        else:
            self.skipped_in_a_row += 1
            self.skipped += 1
        if self.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise Diverged(
                f"the gradient was NaN or infinite in {self.skipped_in_a_row} steps in a row; none was taken. "
                "Lower optimization.lr, or inspect the rewards of the last episodes."
            )
        return Step(norms[0], norms[1] if len(norms) > 1 else 0.0, not finite)

    def step_metrics(self, steps: Sequence[Step]) -> dict[str, float]:
        """Return metrics of the steps of an update: their number, and the gradient norms of those not skipped.

        Args:
            steps: Outcomes of `step`, in order.

        Returns:
            `steps`, `steps_skipped`, `steps_skipped_total` (in the whole run), and, if any was not skipped,
            `grad_norm` (mean), `grad_norm_max` and, with a critic, `critic_grad_norm` (mean).
        """
        taken = [step for step in steps if not step.skipped]
        report = {
            "steps": float(len(steps)),
            "steps_skipped": float(len(steps) - len(taken)),
            "steps_skipped_total": float(self.skipped),
        }
        if taken:
            report["grad_norm"] = float(np.mean([step.grad_norm for step in taken]))
            report["grad_norm_max"] = max(step.grad_norm for step in taken)
            if self.critic is not None:
                report["critic_grad_norm"] = float(np.mean([step.critic_grad_norm for step in taken]))
        return report

    def _clip(self, max_norm: float) -> list[float]:
        """Clip the gradients of each parameter group to a norm, and return the norms before clipping."""
        return [
            float(full_tensor(torch.nn.utils.clip_grad_norm_(group["params"], max_norm)))
            for group in self.param_groups
        ]

    def _step_and_zero(self, finite: bool) -> None:
        """Step if the gradients are finite, and zero them in any case."""
        if finite:
            if self.critic_only:
                for parameter in self.param_groups[0]["params"]:
                    parameter.grad = None  # AdamW skips it.
            self._prepared.step()
        self._prepared.zero_grad()

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the state of optimizer and critic, independent of the number of processes.

        A collective operation: all processes must call it together.
        """
        critic = self.policy.critic
        return {
            "optimizer": self._optimizer_state(),
            "critic": None if critic is None else full_state_dict(critic),
            "skipped_in_a_row": self.skipped_in_a_row,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a `state_dict`; the policy's own weights must have been loaded before."""
        self._load_optimizer_state(state["optimizer"])
        if self.policy.critic is not None:
            load_full_state_dict(self.policy.critic, state["critic"])
        self.skipped_in_a_row, self.skipped = state["skipped_in_a_row"], state["skipped"]
        self.version += 1

    def _optimizer_state(self) -> dict[str, dict[str, Tensor]]:
        return full_optimizer_state(self.policy, self.torch_optimizer)

    def _load_optimizer_state(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        load_full_optimizer_state(self.policy, self.torch_optimizer, state)
