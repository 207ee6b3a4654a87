"""Generalized advantage estimation over sampled tokens (Schulman et al., arXiv:1506.02438, eq. 16).

    δ_t = r_t + γ V_{t+1} - V_t,     A_t = δ_t + γλ A_{t+1}

where t + 1 is the next *sampled* token. Tokens of prompts and observations are not time steps: they have no
value and no reward, and are not discounted. An episode ends with V = A = 0, whether it terminated or was
truncated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ....envs.checks import fraction
from ....envs.errors import ConfigurationError
from ...data.rollouts import Rollouts
from ...data.segments import BoolArray, FloatArray, IntArray, discounted_sums, next_in_segment, sum_by_group
from .base import Advantages, Credit


class Estimates(NamedTuple):
    """Result of GAE.

    Attributes:
        advantages: A, shape [N].
        returns: A + V, the regression target of the critic, shape [N].
    """

    advantages: FloatArray
    returns: FloatArray


def gae(
    rewards: FloatArray, values: FloatArray, segments: IntArray, *, gamma: float = 1.0, lam: float = 1.0
) -> Estimates:
    """Return A and A + V of every time step; see the module's equation.

    Args:
        rewards: r, shape [N].
        values: V before each step, shape [N].
        segments: Episode of each step, shape [N]; steps of an episode are contiguous and in time order.
        gamma: γ per step.
        lam: λ.

    Returns:
        Advantages and returns, not whitened.
    """
    deltas = rewards + gamma * next_in_segment(values, segments) - values
    advantages = discounted_sums(deltas, segments, gamma * lam)
    return Estimates(advantages, advantages + values)


def bi_level_gae(
    turn_rewards: FloatArray,
    values: FloatArray,
    turns: IntArray,
    turn_episode: IntArray,
    *,
    turn_gamma: float = 0.95,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> Estimates:
    """Return GAE computed between turns, then within each turn (RAGEN).

    On the upper level turns are time steps, with the value of their last token. The return A + V of a turn then is
    the reward of its last token on the lower level, where GAE runs over the tokens of each turn alone. The ends of
    turns are an input; they are not inferred from nonzero rewards.

    Args:
        turn_rewards: Reward of each turn, shape [S].
        values: V before each token, shape [N].
        turns: Turn of each token, ascending, shape [N]. A turn without tokens is not a time step; its reward is
            ignored.
        turn_episode: Episode of each turn, shape [S].
        turn_gamma: γ per turn.
        gamma: γ per token.
        lam: λ of both levels.

    Returns:
        Advantages and returns of the tokens, not whitened.
    """
    ends = np.flatnonzero(np.r_[turns[1:] != turns[:-1], True]) if len(turns) else np.zeros(0, dtype=np.int64)
    sampled = turns[ends]
    upper = gae(turn_rewards[sampled], values[ends], turn_episode[sampled], gamma=turn_gamma, lam=lam)
    rewards = np.zeros(len(values))
    rewards[ends] = upper.returns
    return gae(rewards, values, turns, gamma=gamma, lam=lam)


def whiten(values: FloatArray, *, shift: bool = True, pool: BoolArray | None = None) -> FloatArray:
    """Return (x - mean) / sqrt(var + 1e-8), with the sample variance (n - 1).

    Args:
        values: x of all sampled tokens of a batch, shape [N].
        shift: False keeps the mean and changes only the scale.
        pool: Mask of the values that mean and variance are computed from, shape [N]; None uses all. With fewer
            than two of them, the values are returned unchanged.
    """
    pooled = values if pool is None else values[pool]
    if len(pooled) < 2:
        return values.copy()
    mean = pooled.mean()
    white: FloatArray = (values - mean) / np.sqrt(pooled.var(ddof=1) + 1e-8)
    return white if shift else white + mean


@dataclass(frozen=True)
class Gae(Credit):
    """Critic-based advantage of each token, by GAE.

    Attributes:
        gamma: Discount γ per token.
        lam: Decay λ per token of the weight of later temporal differences; 1 uses the full return.
        turn_gamma: Discount γ per turn of the bi-level estimate; None uses the ordinary estimate.
        whiten: Normalize the advantages over the tokens of the batch that are trained on; value targets are not
            affected.
    """

    gamma: float = 1.0
    lam: float = 1.0
    turn_gamma: float | None = None
    whiten: bool = True

    name: ClassVar[str] = "gae"
    needs_critic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fraction("credit.gamma", self.gamma)
        fraction("credit.lam", self.lam)
        if self.turn_gamma is not None:
            fraction("credit.turn_gamma", self.turn_gamma)

    def assign(
        self, rollouts: Rollouts, values: FloatArray | None = None, in_loss: BoolArray | None = None
    ) -> Advantages:
        if values is None:
            raise ConfigurationError(
                "credit 'gae' needs the values of a critic; set critic.lr, or choose another credit."
            )
        copies = rollouts.copies
        values = values[copies.action]
        if self.turn_gamma is None:
            rewards = rollouts.token_rewards(rollouts.turn_reward + rollouts.turn_penalty)
            rewards = rewards + rollouts.action_penalty[copies.action]
            estimates = gae(rewards, values, copies.episode, gamma=self.gamma, lam=self.lam)
        else:
            estimates = bi_level_gae(
                _move_to_sampled_turns(rollouts, rollouts.turn_scores),
                values,
                copies.path,
                rollouts.paths.episode,
                turn_gamma=self.turn_gamma,
                gamma=self.gamma,
                lam=self.lam,
            )
        advantages = whiten(estimates.advantages, pool=in_loss) if self.whiten else estimates.advantages
        return Advantages(advantages, estimates.returns)


def _move_to_sampled_turns(rollouts: Rollouts, scores: FloatArray) -> FloatArray:
    """Return the scores [S] of all paths, [P]; a turn without a sampled token adds its score to the one before."""
    ends, turns = rollouts.path_ends, rollouts.paths.turn
    rewarded = ends >= 0
    return sum_by_group(scores[turns[rewarded]], rollouts.copies.path[ends[rewarded]], len(turns))
