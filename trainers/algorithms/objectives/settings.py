"""Settings of the loss; they are checked without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ....envs.checks import at_least, fraction, integer_at_least, one_of
from ....envs.errors import ConfigurationError
from .term import PairTerm, Term

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
    """KL penalty that keeps the policy near a frozen reference policy.

    Attributes:
        coef: Coefficient β; 0 turns the penalty off, and no reference policy is loaded.
        estimator: Estimator of the divergence at a sampled token, from the log ratio d of policy to reference:
            "k1" is d, "abs" |d|, "k2" d²/2, and "k3" exp(-d) - 1 + d.
        placement: "reward" adds -β·KL of the sampling policy to each token's reward; "loss" adds +β·KL to each
            token's loss.
        straight_through: In the loss, combine the estimator's value with the gradient of k2, the only estimator
            whose gradient is that of the divergence.
        bias_correction: In the loss, multiply the estimate by the importance ratio of the token.
        target: Divergence that an adaptive controller of β aims at; None keeps β fixed.
        horizon: Time constant of the controller, in episodes; 10,000 in verl.
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
                "objective.kl.straight_through and bias_correction change the gradient, but a KL term in the "
                'reward has no gradient; set objective.kl.placement = "loss", or turn them off.'
            )
        if self.target is not None:
            if not self.target > 0 or self.coef == 0:
                raise ConfigurationError(
                    "objective.kl.target adapts the coefficient; set both objective.kl.target and the initial "
                    "objective.kl.coef above 0."
                )
            integer_at_least("objective.kl.horizon", self.horizon, 1)


@dataclass(frozen=True)
class Mismatch:
    """Correction for sampler probabilities that differ from the trainer's.

    They differ by other kernels or precision, and with `sampler.asynchronous` because earlier weights sampled. The
    loss of a token is min(π_old / π_sampler, C) times the clipped surrogate of π / π_old, where π_old are the
    weights before the update: the decoupled objective of Hilton et al. (arXiv:2110.00641), whose first factor is
    truncated as Ionides proposes (Truncated importance sampling, JCGS 17:295, 2008).

    Attributes:
        cap: Maximum importance weight C; None measures the mismatch without correcting the loss.
        excess: "truncate" reduces weights above C to C (truncated importance sampling); "mask" sets them to 0.
        level: "token" weights each token by its own ratio; "sequence" by the product of its sequence's ratios.
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
    """Loss of the policy; the default is PPO's, averaged over tokens.

    Attributes:
        ratio: Span of an importance ratio: the "token" itself (PPO), the geometric mean over its "sequence" (GSPO)
            or its "turn", or that value with the gradient of the token alone ("sequence-token").
        clip_low, clip_high: Clip range of the ratio, [1 - clip_low, 1 + clip_high].
        dual_clip: Bound c of the loss, c·|A|, at negative advantages (3 in verl); None turns it off.
        ratio_cap: Maximum of the unclipped ratio (TRL's delta); None turns it off.
        aggregation: Aggregation of token losses to one number: the mean over tokens ("token-mean"); the mean over
            sequences of their token mean or sum; the sum over tokens / norm_length, or / (sequences · norm_length)
            ("dr-grpo"); or the mean over prompts of their token mean ("prompt-mean").
        norm_length: Divisor of the aggregations "seq-mean-token-sum-norm" and "dr-grpo", in tokens; None uses the
            limit of the run: the tokens of a reply times the turns, or the context window if that is smaller.
        entropy_coef: Coefficient of the entropy bonus.
        kl: KL penalty to a reference policy.
        mismatch: Correction for sampler probabilities that differ from the trainer's.
        terms: Further terms of the loss, such as those of plug-ins.
        reference_decay: Decay α of a reference policy that is a moving average, π_ref ← α·π_ref + (1 - α)·π after
            every update; of the adapters alone with LoRA. None keeps the initial policy as the reference.
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
    reference_decay: float | None = None

    def __post_init__(self) -> None:
        one_of("objective.ratio", self.ratio, RATIOS)
        one_of("objective.aggregation", self.aggregation, AGGREGATIONS)
        at_least("objective.clip_high", self.clip_high, 0.0)
        fraction("objective.clip_low", self.clip_low)
        if self.dual_clip is not None and not self.dual_clip > 1.0:
            raise ConfigurationError(f"objective.dual_clip must be greater than 1, but is {self.dual_clip}.")
        if self.ratio_cap is not None and self.ratio_cap < 1.0 + self.clip_high:
            raise ConfigurationError(
                f"objective.ratio_cap must be at least 1 + clip_high = {1 + self.clip_high:g}, but is "
                f"{self.ratio_cap}."
            )
        integer_at_least("objective.norm_length", self.norm_length, 1)
        if self.reference_decay is not None:
            fraction("objective.reference_decay", self.reference_decay)

    @property
    def token_terms(self) -> tuple[Term, ...]:
        """Terms on single tokens."""
        return tuple(term for term in self.terms if not isinstance(term, PairTerm))

    @property
    def pair_terms(self) -> tuple[PairTerm, ...]:
        """Terms on preference pairs."""
        return tuple(term for term in self.terms if isinstance(term, PairTerm))

    @property
    def reads_sequences(self) -> bool:
        """True if the loss of a token depends on the log-probabilities of its whole sequence."""
        corrects = self.mismatch.cap is not None and self.mismatch.level == "sequence"
        return corrects or self.ratio in ("sequence", "sequence-token")

    @property
    def needs_norm_length(self) -> bool:
        """True if the loss is divided by `norm_length`."""
        return self.aggregation in ("seq-mean-token-sum-norm", "dr-grpo")


@dataclass(frozen=True)
class Overlong:
    """DAPO's treatment of episodes that are too long (Yu et al., arXiv:2503.14476, eq. 13).

    Attributes:
        max_tokens: Length Lmax of an episode in sampled tokens, from which the penalty is -1; None uses the
            limit of the run.
        cache: Length Lc of the soft zone, in which the penalty falls from 0 at Lmax - Lc to -1 at Lmax; 4096 of
            20480 tokens in the paper.
        coef: Coefficient of the penalty; 0 turns it off.
        floor: Bound the penalty by -1 · coef beyond Lmax; False lets it fall further, as in verl.
        drop_truncated: Exclude episodes from the loss that a limit of tokens ended, in the reply or in the context
            window (overlong filtering); those that a limit of steps or turns ended remain.
    """

    max_tokens: int | None = None
    cache: int = 4096
    coef: float = 0.0
    floor: bool = True
    drop_truncated: bool = False

    def __post_init__(self) -> None:
        at_least("overlong.coef", self.coef, 0.0)
        integer_at_least("overlong.cache", self.cache, 1)
        if self.max_tokens is not None and self.max_tokens < self.cache:
            raise ConfigurationError(
                f"overlong.cache ({self.cache}) must not exceed overlong.max_tokens ({self.max_tokens})."
            )
