"""GiGPO: credit to episodes within a task, and to turns within a state (Feng et al., arXiv:2505.10978).

    A = A_E + ω A_S
    A_E = (R(τ) - mean) / F   over the episodes of a group (eq. 3)
    A_S = (R_t - mean) / F    over all turns of a group that were taken from the same state
    R_t = Σ_k γ^k r_{t+k}

F is the sample standard deviation + ε, or 1. The turns that share a state may stand at any place in any episode of
the group, also several times in one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from ....envs.checks import at_least, fraction, one_of
from ....envs.errors import ConfigurationError
from ...data.rollouts import Rollouts
from ...data.segments import BoolArray, FloatArray, IntArray, discounted_sums, factorize, sum_by_group
from .base import Advantages, Credit
from .group import Scale, Singleton, group_advantages


class AnchorCredit(NamedTuple):
    """GiGPO's parts, each [S].

    Attributes:
        step_returns: R_t.
        episode: A_E of the turn's episode.
        step: A_S.
        total: A_E + ω A_S.
    """

    step_returns: FloatArray
    episode: FloatArray
    step: FloatArray
    total: FloatArray


def anchor_groups(groups: IntArray, anchors: Sequence[Hashable], *, similarity: float | None = None) -> IntArray:
    """Number the sets of turns that were taken from the same state of the same group.

    Args:
        groups: group of each turn, shape [S].
        anchors: what identifies the state before each turn, length S.
        similarity: None: equal anchors; a ratio: anchors are texts, and a turn joins the first set of its group
            whose first member `difflib` finds at least that similar (as released, with 0.95).

    Returns:
        The set of each turn, shape [S].
    """
    if similarity is None:
        return factorize(zip(groups.tolist(), anchors, strict=True))
    sets: dict[int, list[tuple[str, int]]] = {}
    matches: dict[tuple[int, str], int] = {}
    numbers = np.empty(len(groups), dtype=np.int64)
    fresh = 0
    for i, (group, anchor) in enumerate(zip(groups.tolist(), anchors, strict=True)):
        if not isinstance(anchor, str):
            raise ConfigurationError(
                f"similarity compares texts, but an anchor is {type(anchor).__name__}; anchor on the observation."
            )
        known = matches.get((group, anchor))
        if known is None:
            known = next((n for text, n in sets.get(group, ()) if _similar(anchor, text, similarity)), None)
            if known is None:
                known = fresh
                fresh += 1
                sets.setdefault(group, []).append((anchor, known))
            matches[group, anchor] = known
        numbers[i] = known
    return numbers


def _similar(text: str, first: str, threshold: float) -> bool:
    matcher = SequenceMatcher(None, text, first)
    return matcher.real_quick_ratio() >= threshold and matcher.ratio() >= threshold


def anchor_advantages(
    rewards: FloatArray,
    episodes: IntArray,
    groups: IntArray,
    anchors: Sequence[Hashable],
    *,
    gamma: float = 0.95,
    omega: float = 1.0,
    scale: Scale = "none",
    eps: float = 1e-6,
    singleton: Singleton = "zero",
    episode_statistics: Literal["episode", "turn"] = "episode",
    similarity: float | None = None,
    own_penalties: FloatArray | None = None,
) -> AnchorCredit:
    """GiGPO's advantages of every turn.

    Args:
        rewards: r of each turn, shape [S].
        episodes: episode of each turn, shape [S]; those of one episode in time order.
        groups: group of each turn, shape [S].
        anchors: what identifies the state before each turn, length S.
        gamma: discount a turn, in R_t only; R(τ) is undiscounted.
        omega: weight of A_S.
        scale: F: "group" for the deviation, "none" for 1.
        eps: added to the deviation.
        singleton: A_E of an episode that is alone in its group; A_S of a turn that is alone in its state is 0.
        episode_statistics: pool episodes once each (the paper's eq. 3), or once a turn, so that longer ones weigh
            more (as released).
        similarity: see `anchor_groups`.
        own_penalties: at most 0, shape [S]: the released code's penalty for invalid actions. It is added to the
            step return and the episode score of that turn alone and is not discounted back to earlier turns;
            an episode enters the pool with the score of its first turn.
    """
    numbers = factorize(episodes.tolist())
    order = np.argsort(numbers, kind="stable")
    returns = np.empty(len(rewards))
    returns[order] = discounted_sums(rewards[order], numbers[order], gamma)
    scores = sum_by_group(rewards, numbers)[numbers]
    if own_penalties is not None:
        returns = returns + own_penalties
        scores = scores + own_penalties
    pool: BoolArray = np.ones(len(rewards), dtype=bool)
    if episode_statistics == "episode":
        pool = np.zeros(len(rewards), dtype=bool)
        pool[np.unique(numbers, return_index=True)[1]] = True
    of_episode = group_advantages(scores, groups, scale=scale, eps=eps, singleton=singleton, pool=pool)
    states = anchor_groups(groups, anchors, similarity=similarity)
    of_step = group_advantages(returns, states, scale=scale, eps=eps)
    return AnchorCredit(returns, of_episode, of_step, of_episode + omega * of_step)


@dataclass(frozen=True)
class Anchor(Credit):
    """GiGPO's credit, on all sampled tokens of a turn; see `anchor_advantages`. γ, ω, F and ε default to the
    released ones.

    Attributes:
        anchor: what identifies a state: the world's own key, or the observation text.
        invalid_penalty: taken off turns without a valid action in the way of the released code, beside the
            dialogue's own format penalty, which counts as reward.
    """

    gamma: float = 0.95
    omega: float = 1.0
    scale: Scale = "none"
    eps: float = 1e-6
    singleton: Singleton = "zero"
    anchor: Literal["state", "observation"] = "state"
    episode_statistics: Literal["episode", "turn"] = "episode"
    similarity: float | None = None
    invalid_penalty: float = 0.0

    name: ClassVar[str] = "anchor"
    needs_groups: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fraction("credit.gamma", self.gamma)
        at_least("credit.omega", self.omega, 0.0)
        one_of("credit.scale", self.scale, ("group", "none"))
        at_least("credit.eps", self.eps, 0.0)
        one_of("credit.singleton", self.singleton, ("zero", "return"))
        one_of("credit.anchor", self.anchor, ("state", "observation"))
        one_of("credit.episode_statistics", self.episode_statistics, ("episode", "turn"))
        at_least("credit.invalid_penalty", self.invalid_penalty, 0.0)
        if self.similarity is not None:
            fraction("credit.similarity", self.similarity)
            if self.anchor == "state":
                raise ConfigurationError('credit.similarity compares texts; set credit.anchor = "observation".')

    def assign(self, rollouts: Rollouts, values: FloatArray | None = None) -> Advantages:
        if any(anchor is None for anchor in rollouts.anchors):
            raise ConfigurationError(f"the turns name no state; make the rollouts with anchor={self.anchor!r}.")
        credit = anchor_advantages(
            rollouts.turn_scores,
            rollouts.turn_episode,
            rollouts.group[rollouts.turn_episode],
            rollouts.anchors,
            gamma=self.gamma,
            omega=self.omega,
            scale=self.scale,
            eps=self.eps,
            singleton=self.singleton,
            episode_statistics=self.episode_statistics,
            similarity=self.similarity,
            own_penalties=-self.invalid_penalty * rollouts.turn_invalid.astype(np.float64)
            if self.invalid_penalty
            else None,
        )
        return Advantages(credit.total[rollouts.action_turn])
