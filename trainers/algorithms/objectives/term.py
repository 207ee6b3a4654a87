"""Additional terms of the policy's loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ....envs.user_code import wrong_result
from ..part_failures import part_failures
from .tokens import Pairs, Tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Term(ABC):
    """Term that the objective adds to the loss of every token, beside the clipped surrogate.

    Class attributes:
        name: Name of the term; its metric is `term/<name>`.
        needs_reference: True if `losses` reads `Tokens.ref_logp`.
        needs_entropy: True if `losses` differentiates `Tokens.entropy`.
    """

    name: ClassVar[str]
    needs_reference: ClassVar[bool] = False
    needs_entropy: ClassVar[bool] = False

    @abstractmethod
    def losses(self, tokens: Tokens) -> Tensor:
        """Return the term at every token, its coefficient included, shape [n].

        The tokens' weights (the aggregation of the objective) are applied by the caller.
        """


@dataclass(frozen=True)
class PairTerm(Term):
    """Term that the objective adds for every preference pair; single tokens get nothing.

    The mean over the pairs of an optimizer step is added to the loss of the step; without pairs nothing is. Pairs
    come from the branches that the credit rule compares (`Advantages.divergences`).

    Class attributes:
        name: Name of the term; its metric is `term/<name>`, the mean over pairs.
        needs_reference: True if `pair_losses` reads the reference's log-probabilities.
    """

    def losses(self, tokens: Tokens) -> Tensor:
        return tokens.logp.new_zeros(tokens.logp.shape)

    @abstractmethod
    def pair_losses(self, pairs: Pairs) -> Tensor:
        """Return the term at every pair, its coefficient included, shape [p]."""


def token_losses(term: Term, tokens: Tokens) -> Tensor:
    """Return `term.losses`, after a check of its shape.

    Raises:
        PartFailed: The term failed, or its shape is not that of the tokens.
    """
    with part_failures("term", term):
        return _of_shape(tokens.logp, term.losses(tokens), term.losses)


def pair_losses(term: PairTerm, pairs: Pairs) -> Tensor:
    """Return `term.pair_losses`, after a check of its shape.

    Raises:
        PartFailed: The term failed, or its shape is not that of the pairs.
    """
    with part_failures("term", term):
        return _of_shape(pairs.chosen, term.pair_losses(pairs), term.pair_losses)


def _of_shape(like: Tensor, found: Any, method: Callable[..., Any]) -> Tensor:
    if not isinstance(found, type(like)) or found.shape != like.shape:
        shown = (*found.shape,) if isinstance(found, type(like)) else found
        raise wrong_result(method, f"a tensor of shape {(*like.shape,)}", shown)
    return found
