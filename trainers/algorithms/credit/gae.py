"""Generalised advantage estimation over sampled tokens (Schulman et al., arXiv:1506.02438, eq. 16).

    δ_t = r_t + γ V_{t+1} - V_t,     A_t = δ_t + γλ A_{t+1}

where t + 1 is the next *sampled* token: prompts, replies of the world and padding are no time steps. They have no
value, no reward, and cost no discount. An episode ends with V = A = 0, whether the world or a limit ended it.
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
    """Advantages and what the critic should have said (A + V), of one shape."""

    advantages: FloatArray
    returns: FloatArray


def gae(
    rewards: FloatArray, values: FloatArray, segments: IntArray, *, gamma: float = 1.0, lam: float = 1.0
) -> Estimates:
    """GAE over time steps that follow each other directly.

    Args:
        rewards: r, shape [N].
        values: V before each step, shape [N].
        segments: episode of each step, shape [N]; steps of one episode stand together, in order.
        gamma: discount a step.
        lam: λ.

    Returns:
        A and A + V, shape [N], not whitened.
    """
    deltas = rewards + gamma * next_in_segment(values, segments) - values
    advantages = discounted_sums(deltas, segments, gamma * lam)
    return Estimates(advantages, advantages + values)


def masked_gae(
    rewards: FloatArray, values: FloatArray, mask: BoolArray, *, gamma: float = 1.0, lam: float = 1.0
) -> Estimates:
    """GAE over the steps of padded rows where `mask` is true; all others are skipped as if they were not there.

    Args:
        rewards, values, mask: shape [B, T].

    Returns:
        A and A + V, shape [B, T]; 0 where the mask is false.
    """
    rows = np.nonzero(mask)[0]
    advantages = np.zeros(rewards.shape)
    returns = np.zeros(rewards.shape)
    advantages[mask], returns[mask] = gae(rewards[mask], values[mask], rows, gamma=gamma, lam=lam)
    return Estimates(advantages, returns)


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
    """GAE between turns, then within each turn (RAGEN).

    Turns are steps of their own, valued at their last token. A turn's return, A + V, is then paid at that token,
    and GAE runs over the turn's tokens alone. Turn ends are given, not guessed from rewards that are not 0.

    Args:
        turn_rewards: shape [S].
        values: V before each token, shape [N].
        turns: turn of each token, shape [N], in order. A turn without tokens is no step; its reward is not read.
        turn_episode: episode of each turn, shape [S].
        turn_gamma: discount a turn.
        gamma: discount a token.
        lam: λ of both levels.

    Returns:
        A and A + V, shape [N], not whitened.
    """
    ends = np.flatnonzero(np.r_[turns[1:] != turns[:-1], True]) if len(turns) else np.zeros(0, dtype=np.int64)
    spoken = turns[ends]
    upper = gae(turn_rewards[spoken], values[ends], turn_episode[spoken], gamma=turn_gamma, lam=lam)
    rewards = np.zeros(len(values))
    rewards[ends] = upper.returns
    return gae(rewards, values, turns, gamma=gamma, lam=lam)


def whiten(values: FloatArray, *, shift: bool = True) -> FloatArray:
    """(x - mean) / sqrt(var + 1e-8) with the sample variance (n - 1); fewer than two numbers stay as they are.

    Args:
        values: shape [N], the sampled tokens of a whole batch.
        shift: whether the mean is taken off; else only the scale changes.
    """
    if len(values) < 2:
        return values.copy()
    mean = values.mean()
    white: FloatArray = (values - mean) / np.sqrt(values.var(ddof=1) + 1e-8)
    return white if shift else white + mean


@dataclass(frozen=True)
class Gae(Credit):
    """A critic's credit, token by token.

    Attributes:
        gamma, lam: γ and λ a token.
        turn_gamma: discount a turn: makes the estimate bi-level; None for the ordinary one.
        whiten: normalise advantages over the batch (after the value targets are taken).
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

    def assign(self, rollouts: Rollouts, values: FloatArray | None = None) -> Advantages:
        if values is None:
            raise ConfigurationError("gae needs a critic's values; set recipe.critic, or take group credit.")
        if self.turn_gamma is None:
            rewards = rollouts.token_rewards(rollouts.turn_reward + rollouts.turn_penalty)
            estimates = gae(
                rewards + rollouts.action_penalty, values, rollouts.action_episode, gamma=self.gamma, lam=self.lam
            )
        else:
            estimates = bi_level_gae(
                _carried(rollouts, rollouts.turn_scores),
                values,
                rollouts.action_turn,
                rollouts.turn_episode,
                turn_gamma=self.turn_gamma,
                gamma=self.gamma,
                lam=self.lam,
            )
        advantages = whiten(estimates.advantages) if self.whiten else estimates.advantages
        return Advantages(advantages, estimates.returns)


def _carried(rollouts: Rollouts, scores: FloatArray) -> FloatArray:
    """Scores [S] of turns in which nothing was sampled, moved to the turn before that bears them."""
    ends = rollouts.turn_ends
    paid = ends >= 0
    return sum_by_group(scores[paid], rollouts.action_turn[ends[paid]], rollouts.turns)
