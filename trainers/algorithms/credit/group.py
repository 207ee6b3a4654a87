"""Advantages relative to a group of episodes from the same start: GRPO, Dr. GRPO, RLOO.

* GRPO (Shao et al., arXiv:2402.03300, outcome supervision): A_i = (R_i - mean R) / (std R + ε).
* Dr. GRPO (Liu et al., arXiv:2503.20783): the same without the division.
* RLOO (Ahmadian et al., arXiv:2402.14740): A_i = R_i - mean of the others = n/(n-1) · (R_i - mean R).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ....envs.checks import at_least, one_of
from ...data.rollouts import Rollouts
from ...data.segments import BoolArray, FloatArray, IntArray, equal, group_statistics
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
    """Returns relative to their group.

    Args:
        returns: R, shape [E].
        groups: group of each, numbered from 0, shape [E].
        scale: what the difference from the group's mean is divided by: the group's sample standard deviation
            (n - 1) plus `eps`, that of the whole batch, or nothing.
        eps: added to the deviation; 1e-6 in verl and its kin, 1e-4 in TRL.
        singleton: what a group of one gets: nothing, or (as verl, SkyRL and Search-R1 do) R as if the mean were 0
            and the deviation 1, which is REINFORCE without a baseline.
        leave_one_out: measure against the mean of the others.
        pool: which entries make up the statistics, [E]; default all. Every group needs one.

    Returns:
        Advantages, shape [E]; exactly 0 throughout a group whose returns are all equal but for rounding, and
        wherever a deviation of 0 would be divided by (with `eps` = 0).
    """
    counted = np.ones(len(returns), dtype=bool) if pool is None else pool
    statistics = group_statistics(returns[counted], groups[counted], int(groups.max(initial=-1)) + 1)
    count = statistics.count[groups]
    mean = statistics.mean[groups]
    advantages = np.where(equal(returns, mean) & (statistics.std[groups] == 0), 0.0, returns - mean)
    if leave_one_out:
        advantages = advantages * (count / np.maximum(count - 1, 1))
    spread = np.ones(len(returns))
    if scale == "group":
        spread = statistics.std[groups] + eps
    elif scale == "batch" and counted.any():
        whole = group_statistics(returns[counted], np.zeros(int(counted.sum()), dtype=np.int64))
        spread = np.full(len(returns), whole.std[0] + eps)
    single = 0.0 if singleton == "zero" else returns / (1.0 if scale == "none" else 1.0 + eps)
    divided = np.divide(advantages, spread, out=np.zeros(len(returns)), where=spread > 0)
    return np.where(count <= 1, single, divided)


@dataclass(frozen=True)
class Group(Credit):
    """One advantage an episode, on all its sampled tokens; see `group_advantages`."""

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

    def assign(self, rollouts: Rollouts, values: FloatArray | None = None) -> Advantages:
        advantages = group_advantages(
            rollouts.returns(penalties=True),
            rollouts.group,
            scale=self.scale,
            eps=self.eps,
            singleton=self.singleton,
            leave_one_out=self.leave_one_out,
        )
        return Advantages(advantages[rollouts.action_episode])
