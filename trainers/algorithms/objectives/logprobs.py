"""Log-probabilities and entropies of sampled tokens, without all [tokens × vocabulary] logits in memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


class TokenScores(NamedTuple):
    """Scores of sampled tokens, float32 (float64 for float64 logits).

    Attributes:
        logp: Log-probability of each token, shape [N].
        entropy: Entropy of the distribution that each token was drawn from, shape [N].
    """

    logp: Tensor
    entropy: Tensor


def score_tokens(
    logits: Tensor, targets: Tensor, temperature: float = 1.0, entropy_grad: bool = True
) -> TokenScores:
    """Return log-probabilities and entropies from logits, computed in float32 or wider.

    Args:
        logits: Logits of the positions before the tokens, shape [N, V].
        targets: Token ids, shape [N].
        temperature: Divisor of the logits.
        entropy_grad: Differentiate the entropy; without a gradient no intermediate results of it are stored.
    """
    scaled = logits if logits.dtype == torch.float64 else logits.float()
    if temperature != 1.0:
        scaled = scaled / temperature
    log_normalizer = torch.logsumexp(scaled, dim=-1)
    logp = scaled.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - log_normalizer
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        entropy = log_normalizer - (torch.softmax(scaled, dim=-1) * scaled).sum(-1)
    return TokenScores(logp, entropy)


def score_hidden(
    hidden: Tensor,
    head: torch.nn.Module,
    targets: Tensor,
    temperature: float = 1.0,
    chunk: int = 2048,
    entropy_grad: bool = True,
) -> TokenScores:
    """Return log-probabilities and entropies from hidden states, in chunks.

    With more than one chunk, the backward pass recomputes the logits instead of storing them.

    Args:
        hidden: Last hidden states of the positions before the tokens, shape [N, D].
        head: Module that maps [n, D] to logits [n, V].
        targets: Token ids, shape [N].
        temperature: Divisor of the logits.
        chunk: Maximum number of tokens whose logits are in memory at once.
        entropy_grad: See `score_tokens`.
    """

    def score_chunk(states: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(score_tokens(head(states), ids, temperature, entropy_grad))

    if len(targets) <= chunk:
        return TokenScores(*score_chunk(hidden, targets))
    parts = [
        checkpoint(score_chunk, states, ids, use_reentrant=False)
        for states, ids in zip(torch.split(hidden, chunk), torch.split(targets, chunk), strict=True)
    ]
    return TokenScores(*(torch.cat(column) for column in zip(*parts, strict=True)))
