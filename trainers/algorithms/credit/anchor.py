"""GiGPO: advantages of episodes within a group, and of turns within a state (Feng et al., arXiv:2505.10978).

    A = A_E + ω A_S
    A_E = (R(τ) - mean) / F   over the episodes of a group (eq. 3)
    A_S = (R_t - mean) / F    over all turns of a group that start in the same state (the anchor)
    R_t = Σ_k γ^k r_{t+k}

F is the sample standard deviation + ε, or 1. Turns that share an anchor may occur at any depth of any episode of
the group, and several times in one episode.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from ....agents.forks import Keep
from ....envs.checks import at_least, fraction, one_of
from ....envs.errors import ConfigurationError
from ...data.rollouts import Rollouts
from ...data.segments import BoolArray, FloatArray, IntArray, discounted_sums, factorize, sum_by_group
from .base import Advantages, Credit
from .group import Scale, Singleton, group_advantages


class AnchorCredit(NamedTuple):
    """Terms of GiGPO's advantage, each of shape [S].

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
    """Number the sets of turns that start in the same state of the same group.

    Args:
        groups: Group of each turn, shape [S].
        anchors: Identity of the state before each turn, length S.
        similarity: None joins turns with equal anchors. A ratio from 0 to 1 compares anchors as texts: a turn
            joins the first set of its group whose first member is at least that similar by `difflib` (0.95 in the
            released code).

    Returns:
        Set of each turn, numbered from 0, shape [S].

    Raises:
        ConfigurationError: `similarity` is given, but an anchor is not a text.
    """
    if similarity is None:
        return factorize(zip(groups.tolist(), anchors, strict=True))
    sets: dict[int, list[tuple[str, int]]] = {}
    matches: dict[tuple[int, str], int] = {}
    numbers = np.empty(len(groups), dtype=np.int64)
    new_number = 0
    for i, (group, anchor) in enumerate(zip(groups.tolist(), anchors, strict=True)):
        if not isinstance(anchor, str):
            raise ConfigurationError(
                f"credit.similarity compares texts, but an anchor is of type {type(anchor).__name__}; set "
                'credit.anchor = "observation".'
            )
        known = matches.get((group, anchor))
        if known is None:
            known = next((n for text, n in sets.get(group, ()) if _similar(anchor, text, similarity)), None)
            if known is None:
                known = new_number
                new_number += 1
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
    """Return GiGPO's advantage of every turn.

    Args:
        rewards: r of each turn, shape [S].
        episodes: Episode of each turn, shape [S]; turns of an episode are in time order.
        groups: Group of each turn, shape [S].
        anchors: Identity of the state before each turn, length S.
        gamma: γ per turn, in R_t only; R(τ) is undiscounted.
        omega: ω, the weight of A_S.
        scale: F: "group" for the standard deviation + ε, "none" for 1.
        eps: ε added to the standard deviation.
        singleton: A_E of an episode that is alone in its group; see `group_advantages`. A_S of a turn that is
            alone in its state is 0.
        episode_statistics: Entries of A_E's mean and deviation: "episode" counts each episode once (eq. 3), "turn"
            once per turn, so that longer episodes weigh more (as in the released code).
        similarity: See `anchor_groups`.
        own_penalties: Penalties for invalid actions as in the released code, at most 0, shape [S]. A penalty is
            added to the step return and the episode score of its own turn only, without discounting back to
            earlier turns. With `episode_statistics="episode"` the score of an episode's first turn enters the
            statistics.
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
    episode_advantages = group_advantages(scores, groups, scale=scale, eps=eps, singleton=singleton, pool=pool)
    states = anchor_groups(groups, anchors, similarity=similarity)
    step_advantages = group_advantages(returns, states, scale=scale, eps=eps)
    return AnchorCredit(returns, episode_advantages, step_advantages, episode_advantages + omega * step_advantages)


@dataclass(frozen=True)
class Anchor(Credit):
    """GiGPO's advantage of each turn, on all its sampled tokens; the defaults are those of the released code.

    Attributes:
        gamma: Discount γ per turn in the step return; the episode's return is undiscounted.
        omega: Weight ω of the step advantage beside the episode advantage.
        scale: Divisor of the differences from the mean: "group" for the group's standard deviation + ε, "none" for
            1.
        eps: ε added to the standard deviation.
        singleton: Episode advantage in a group of one: "zero", or "return" for the return itself.
        episode_statistics: Entries of the mean over episodes: "episode" counts each episode once, "turn" once per
            turn, so that longer episodes weigh more (as in the released code).
        similarity: Ratio of matching text, from 0 to 1, from which two observations count as the same state. None
            requires equal states.
        anchor: Identity of a state: "state" for the environment's state key, "observation" for the observation
            text.
        invalid_penalty: Penalty (≥ 0) for turns without a valid action, applied as in the released code: to the
            step return and the episode score of its own turn only. It is in addition to the dialogue's format
            penalty, which is part of the reward.
    """

    gamma: float = 0.95
    omega: float = 1.0
    scale: Literal["group", "none"] = "none"
    eps: float = 1e-6
    singleton: Singleton = "zero"
    anchor: Literal["state", "observation"] = "state"
    episode_statistics: Literal["episode", "turn"] = "episode"
    similarity: float | None = None
    invalid_penalty: float = 0.0

    name: ClassVar[str] = "anchor"
    needs_groups: ClassVar[bool] = True

    @property
    def keep(self) -> frozenset[Keep]:
        return frozenset({"states"} if self.anchor == "state" else ())

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

    def assign(
        self, rollouts: Rollouts, values: FloatArray | None = None, in_loss: BoolArray | None = None
    ) -> Advantages:
        anchors = rollouts.turn_state if self.anchor == "state" else rollouts.turn_observation
        if any(anchor is None for anchor in anchors):
            raise ConfigurationError('the turns have no state keys; roll out with keep={"states"}.')
        turns, episodes = rollouts.paths
        credit = anchor_advantages(
            rollouts.turn_scores[turns],
            episodes,
            rollouts.group[episodes],
            [anchors[turn] for turn in turns.tolist()],
            gamma=self.gamma,
            omega=self.omega,
            scale=self.scale,
            eps=self.eps,
            singleton=self.singleton,
            episode_statistics=self.episode_statistics,
            similarity=self.similarity,
            own_penalties=-self.invalid_penalty * rollouts.turn_invalid[turns].astype(np.float64)
            if self.invalid_penalty
            else None,
        )
        return Advantages(credit.total[rollouts.copies.path])
