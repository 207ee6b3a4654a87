"""Rewards of training: the environment's rewards scaled, and returns normalized within groups or batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ...envs.checks import one_of, positive
from ..data.rollouts import Rollouts
from ..data.segments import FloatArray, IntArray, group_statistics

Normalization = Literal["none", "mean", "mean-std", "asym-clip"]
NORMALIZATIONS = ("none", "mean", "mean-std", "asym-clip")


def normalize_returns(returns: FloatArray, groups: IntArray, method: Normalization) -> FloatArray:
    """Return the returns of episodes relative to those of their group, as RAGEN normalizes them.

    * "none": R.
    * "mean": R - mean.
    * "mean-std": (R - mean) / (std + 1e-6), with the sample standard deviation (n - 1); 0 where that is ≤ 1e-6.
    * "asym-clip": "mean-std", clipped to [-1, 3].

    Args:
        returns: R, shape [E].
        groups: Group of each return, numbered from 0, shape [E].
        method: See above.
    """
    if method == "none":
        return returns
    statistics = group_statistics(returns, groups)
    centered = returns - statistics.mean[groups]
    if method == "mean":
        return centered
    std = statistics.std[groups]
    scores = np.where(std > 1e-6, centered / (std + 1e-6), 0.0)
    return np.clip(scores, -1.0, 3.0) if method == "asym-clip" else scores


@dataclass(frozen=True)
class Rewards:
    """Rewards of training, made of the environment's.

    Attributes:
        scale: Factor on the environment's rewards, but not on penalties. Published penalties and KL coefficients
            presuppose the reward of a solved episode; it is 1 in most environments, and about 10 in TextSokoban
            unless its rewards are sparse.
        normalize: Normalization of an episode's return, format and length penalties included, which is then given
            at its last turn (RAGEN's reward_normalization); see `normalize_returns`. "none" leaves the rewards in
            the turns that earned them.
        over: Episodes that are normalized together: "group", those of one prompt (RAGEN's "state"), or "batch",
            all that an update trains on in one environment.
    """

    scale: float = 1.0
    normalize: Normalization = "none"
    over: Literal["group", "batch"] = "group"

    def __post_init__(self) -> None:
        positive("rewards.scale", self.scale)
        one_of("rewards.normalize", self.normalize, NORMALIZATIONS)
        one_of("rewards.over", self.over, ("group", "batch"))

    @property
    def needs_groups(self) -> bool:
        """True if a return is compared with others of one prompt."""
        return self.normalize != "none" and self.over == "group"

    def rescale(self, rollouts: Rollouts) -> Rollouts:
        """Return the rollouts with the environment's rewards scaled, and penalties unchanged."""
        if self.scale == 1.0:
            return rollouts
        redraws = rollouts.turn_redraws
        if redraws is not None:
            redraws = tuple(
                tuple(one._replace(reward=self.scale * one.reward) for one in drawn) for drawn in redraws
            )
        return replace(rollouts, turn_reward=self.scale * rollouts.turn_reward, turn_redraws=redraws)

    def apply(self, rollouts: Rollouts) -> Rollouts:
        """Return the rollouts with the rewards of training; their tokens must not have penalties yet."""
        rollouts = self.rescale(rollouts)
        if self.normalize == "none":
            return rollouts
        # Returns of different environments have different scales.
        groups = rollouts.group if self.over == "group" else rollouts.group_env[rollouts.group]
        returns = normalize_returns(rollouts.returns(penalties=True), groups, self.normalize)
        rewards = rollouts.place_at_leaves(returns)
        return replace(rollouts, turn_reward=rewards, turn_penalty=np.zeros(rollouts.turns))
