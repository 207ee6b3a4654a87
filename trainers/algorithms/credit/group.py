"""Advantages relative to a group of episodes from the same start: GRPO, Dr. GRPO, RLOO.

* GRPO (Shao et al., arXiv:2402.03300, outcome supervision): A_i = (R_i - mean R) / (std R + ε).
* Dr. GRPO (Liu et al., arXiv:2503.20783): A_i = R_i - mean R.
* RLOO (Ahmadian et al., arXiv:2402.14740): A_i = R_i - mean of the others = n/(n-1) · (R_i - mean R).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ....envs.checks import at_least, one_of
from ...data.rollouts import Rollouts
from ...data.segments import BoolArray, FloatArray, IntArray, group_statistics, nearly_equal
from .base import Advantages, Credit

Scale = Literal["group", "batch", "none"]
Singleton = Literal["zero", "return"]


def group_advantages(
    returns: FloatArray,
    groups: IntArray,
    *,
    scale: Scale = "group",
    eps: float = 1e-6,
    singleton: Singleton = "zero",
    leave_one_out: bool = False,
    pool: BoolArray | None = None,
) -> FloatArray:
    """Return the advantage of each return relative to its group.

    Args:
        returns: R, shape [E].
        groups: Group of each return, numbered from 0, shape [E].
        scale: Divisor of the difference from the group's mean: "group" for the group's sample standard deviation
            (n - 1) + ε, or 1 if that deviation is 0, "batch" for that of the whole batch + ε, "none" for 1.
        eps: ε added to the standard deviation; 1e-6 in verl and its derivatives, 1e-4 in TRL.
        singleton: Advantage in a group of one: "zero", or "return" for R with mean 0 and standard deviation 1
            (as in verl, SkyRL and Search-R1), which is REINFORCE without a baseline.
        leave_one_out: Subtract the mean of the other members instead of the mean of all.
        pool: Mask of the entries that the statistics are computed from, shape [E]; None uses all. Every group
            needs at least one.

    Returns:
        Advantages, shape [E]. Exactly 0 in a group whose returns are nearly equal, and wherever the divisor is 0
        (only possible with ε = 0 and the deviation of the batch).
    """
    pooled = np.ones(len(returns), dtype=bool) if pool is None else pool
    statistics = group_statistics(returns[pooled], groups[pooled], int(groups.max(initial=-1)) + 1)
    count = statistics.count[groups]
    mean = statistics.mean[groups]
    constant = nearly_equal(returns, mean) & (statistics.std[groups] == 0)
    advantages = np.where(constant, 0.0, returns - mean)
    if leave_one_out:
        advantages = advantages * (count / np.maximum(count - 1, 1))
    divisor = np.ones(len(returns))
    if scale == "group":
        # Entries beside the pool may differ from a pool of equal ones, whose deviation says nothing about them.
        divisor = np.where(statistics.std > 0, statistics.std + eps, 1.0)[groups]
    elif scale == "batch" and pooled.any():
        batch = group_statistics(returns[pooled], np.zeros(int(pooled.sum()), dtype=np.int64))
        divisor = np.full(len(returns), batch.std[0] + eps)
    single = 0.0 if singleton == "zero" else returns / (1.0 if scale == "none" else 1.0 + eps)
    scaled = np.divide(advantages, divisor, out=np.zeros(len(returns)), where=divisor > 0)
    return np.where(count <= 1, single, scaled)


@dataclass(frozen=True)
class Group(Credit):
    """One advantage per episode, on all its sampled tokens.

    Attributes:
        scale: Divisor of the difference from the group's mean: "group" for the group's standard deviation + ε,
            "batch" for that of the whole batch + ε, "none" for 1.
        eps: ε added to the standard deviation.
        singleton: Advantage in a group of one: "zero", or "return" for the return itself.
        leave_one_out: Subtract the mean of the other episodes instead of the mean of all (RLOO).
    """

    scale: Scale = "group"
    eps: float = 1e-6
    singleton: Singleton = "zero"
    leave_one_out: bool = False

    name: ClassVar[str] = "group"
    needs_groups: ClassVar[bool] = True

    def __post_init__(self) -> None:
        one_of("credit.scale", self.scale, ("group", "batch", "none"))
        one_of("credit.singleton", self.singleton, ("zero", "return"))
        at_least("credit.eps", self.eps, 0.0)

    def assign(
        self, rollouts: Rollouts, values: FloatArray | None = None, in_loss: BoolArray | None = None
    ) -> Advantages:
        advantages = group_advantages(
            rollouts.returns(penalties=True),
            rollouts.group,
            scale=self.scale,
            eps=self.eps,
            singleton=self.singleton,
            leave_one_out=self.leave_one_out,
        )
        return Advantages(advantages[rollouts.copies.episode])
