"""T-STAR's surgical loss: prefer the rectified thought to the failed one (arXiv:2604.07165, eq. 10-12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ....envs.checks import at_least, positive
from .term import PairTerm
from .tokens import Pairs

if TYPE_CHECKING:
    from torch import Tensor


def surgical_margins(logp_rect: Tensor, ref_rect: Tensor, logp_neg: Tensor, ref_neg: Tensor) -> Tensor:
    """Return Δ = [log π(z_rect) - log π_ref(z_rect)] - [log π(z⁻) - log π_ref(z⁻)] of each pair (eq. 12).

    Args:
        logp_rect, ref_rect: Summed log-probabilities of the rectified thought's tokens under the policy and the
            reference, shape [pairs].
        logp_neg, ref_neg: Summed log-probabilities of the failed thought's tokens, shape [pairs].
    """
    return (logp_rect - ref_rect) - (logp_neg - ref_neg)


def surgical_losses(margins: Tensor, beta: float = 0.1) -> Tensor:
    """Return -log σ(β Δ) of each pair (eq. 11); log 2 if policy and reference are equal.

    Args:
        margins: Δ, shape [pairs].
        beta: β.
    """
    from torch.nn.functional import logsigmoid

    return -logsigmoid(beta * margins)


@dataclass(frozen=True)
class Surgical(PairTerm):
    """T-STAR's preference loss at divergences, λ · mean of -log σ(β Δ) over pairs (eq. 10-12).

    The loss is that of DPO (arXiv:2305.18290), between two continuations of one conversation. Defaults are the
    published values.

    Attributes:
        beta: Inverse temperature β of the preference.
        weight: Coefficient λ of the term.
        length_normalized: Take mean log-probabilities per token instead of sums, so that Δ does not grow with the
            length of the thoughts (as in SimPO, arXiv:2405.14734).
    """

    beta: float = 0.1  # T-STAR, section 4
    weight: float = 0.15  # T-STAR, section 4
    length_normalized: bool = False

    name: ClassVar[str] = "surgical"
    needs_reference: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive("objective.terms: surgical.beta", self.beta)
        at_least("objective.terms: surgical.weight", self.weight, 0.0)

    def pair_losses(self, pairs: Pairs) -> Tensor:
        assert pairs.ref_chosen is not None and pairs.ref_rejected is not None
        chosen, rejected = 1.0, 1.0
        if self.length_normalized:
            chosen, rejected = 1.0 / pairs.chosen_tokens, 1.0 / pairs.rejected_tokens
        margins = surgical_margins(
            pairs.chosen * chosen,
            pairs.ref_chosen * chosen,
            pairs.rejected * rejected,
            pairs.ref_rejected * rejected,
        )
        return self.weight * surgical_losses(margins, self.beta)
