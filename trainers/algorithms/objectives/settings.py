"""The settings of a loss, readable and checkable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ....envs.checks import at_least, one_of
from ....envs.errors import ConfigurationError
from .term import Term

Ratio = Literal["token", "sequence", "sequence-token", "turn"]
Aggregation = Literal[
    "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "dr-grpo", "prompt-mean"
]
Estimator = Literal["k1", "k2", "k3", "abs"]

RATIOS = ("token", "sequence", "sequence-token", "turn")
AGGREGATIONS = (
    "token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "dr-grpo",
    "prompt-mean",
)
ESTIMATORS = ("k1", "k2", "k3", "abs")


@dataclass(frozen=True)
class Kl:
    """How the policy is held near a reference policy.

    Attributes:
        coef: β; 0 is off, and no reference policy is kept.
        estimator: of the divergence, a sampled token; see `kl.kl_estimate`.
        placement: "reward": -β·KL of the sampling policy is part of each token's reward; "loss": +β·KL is a term
            of the loss. Never both.
        straight_through: (loss) keep the estimator's value, but take the gradient of k2, the only one of them
            whose gradient is that of the divergence.
        bias_correction: (loss) weight the estimate by the ratio of the policies.
        target: of an adaptive controller; None keeps β fixed.
        horizon: of the controller, in episodes; 10,000 in verl.
    """

    coef: float = 0.0
    estimator: Estimator = "k3"
    placement: Literal["reward", "loss"] = "loss"
    straight_through: bool = False
    bias_correction: bool = False
    target: float | None = None
    horizon: int = 10_000

    def __post_init__(self) -> None:
        at_least("objective.kl.coef", self.coef, 0.0)
        one_of("objective.kl.estimator", self.estimator, ESTIMATORS)
        one_of("objective.kl.placement", self.placement, ("reward", "loss"))
        if self.placement == "reward" and (self.straight_through or self.bias_correction):
            raise ConfigurationError(
                "straight_through and bias_correction change gradients, and a KL term in the reward has none; "
                'set objective.kl.placement = "loss" or leave them off.'
            )
        if self.target is not None:
            if not self.target > 0 or self.coef == 0:
                raise ConfigurationError("an adaptive KL coefficient needs kl.target > 0 and a first kl.coef > 0.")
            at_least("objective.kl.horizon", self.horizon, 1)


@dataclass(frozen=True)
class Mismatch:
    """Correction for a sampler whose probabilities differ from the trainer's (other kernels, other precision).

    Attributes:
        cap: C, the largest weight; None leaves the loss alone, and only measures.
        excess: "truncate" weights above C to C (truncated importance sampling), or "mask" such tokens out.
        level: weight single tokens, or whole sequences by the product of their tokens.
    """

    cap: float | None = None
    excess: Literal["truncate", "mask"] = "truncate"
    level: Literal["token", "sequence"] = "token"

    def __post_init__(self) -> None:
        at_least("objective.mismatch.cap", self.cap, 1.0)
        one_of("objective.mismatch.excess", self.excess, ("truncate", "mask"))
        one_of("objective.mismatch.level", self.level, ("token", "sequence"))


@dataclass(frozen=True)
class Objective:
    """The policy's loss; by default PPO's with verl's clips, averaged over tokens.

    Attributes:
        ratio: what one importance ratio spans; see `ratio.importance_ratios`.
        clip_low, clip_high: the ratio is clipped to [1 - low, 1 + high].
        dual_clip: c: where the advantage is negative the loss is at most c·|A|; None is off. verl: 3.
        ratio_cap: TRL's delta: the *unclipped* ratio is cut above this; None is off.
        aggregation: how token losses become one number; see `aggregate.token_weights`.
        norm_length: the constant of "seq-mean-token-sum-norm" and "dr-grpo", in tokens.
        entropy_coef: the loss falls by this times the policy's mean entropy.
        kl: distance to a reference policy.
        mismatch: correction for the sampler's own probabilities.
        terms: Further terms of the loss, such as a plug-in's.
    """

    ratio: Ratio = "token"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    ratio_cap: float | None = None
    aggregation: Aggregation = "token-mean"
    norm_length: int | None = None
    entropy_coef: float = 0.0
    kl: Kl = Kl()
    mismatch: Mismatch = Mismatch()
    terms: tuple[Term, ...] = ()

    def __post_init__(self) -> None:
        one_of("objective.ratio", self.ratio, RATIOS)
        one_of("objective.aggregation", self.aggregation, AGGREGATIONS)
        at_least("objective.clip_high", self.clip_high, 0.0)
        if not 0.0 <= self.clip_low <= 1.0:
            raise ConfigurationError(f"objective.clip_low must lie between 0 and 1, but is {self.clip_low}.")
        if self.dual_clip is not None and not self.dual_clip > 1.0:
            raise ConfigurationError(f"objective.dual_clip must be greater than 1, but is {self.dual_clip}.")
        if self.ratio_cap is not None and self.ratio_cap < 1.0 + self.clip_high:
            raise ConfigurationError(
                f"objective.ratio_cap must be ≥ 1 + clip_high ({1 + self.clip_high:g}), is {self.ratio_cap}."
            )
        needs_length = self.aggregation in ("seq-mean-token-sum-norm", "dr-grpo")
        if needs_length and (self.norm_length is None or self.norm_length < 1):
            raise ConfigurationError(
                f"aggregation {self.aggregation!r} divides by a constant; set objective.norm_length, in tokens."
            )


@dataclass(frozen=True)
class Overlong:
    """DAPO's treatment of episodes that are too long (Yu et al., arXiv:2503.14476, eq. 13).

    Attributes:
        max_tokens: Lmax: sampled tokens of an episode; None lets the loop take the run's own limit.
        cache: Lc: the penalty grows from 0 at Lmax - Lc to -1 at Lmax. Published: 4096 of 20480 tokens.
        coef: multiplies the penalty; 0 is off.
        floor: the penalty never falls below -1 · coef (verl's line goes on falling).
        drop_truncated: leave episodes that a limit cut out of the loss (overlong filtering).
    """

    max_tokens: int | None = None
    cache: int = 4096
    coef: float = 0.0
    floor: bool = True
    drop_truncated: bool = False

    def __post_init__(self) -> None:
        at_least("overlong.coef", self.coef, 0.0)
        at_least("overlong.cache", self.cache, 1)
        if self.max_tokens is not None and self.max_tokens < self.cache:
            raise ConfigurationError(
                f"overlong.cache ({self.cache}) must not exceed overlong.max_tokens ({self.max_tokens})."
            )
