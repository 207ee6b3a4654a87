"""Log-probabilities and entropies of sampled tokens, without a [tokens × vocabulary] array in memory at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


class TokenScores(NamedTuple):
    """Log-probability of each token and entropy of the distribution it was drawn from, shape [N], float32."""

    logp: Tensor
    entropy: Tensor


def score_tokens(
    logits: Tensor, targets: Tensor, temperature: float = 1.0, entropy_grad: bool = True
) -> TokenScores:
    """Score tokens by the logits [N, V] of the positions before them; computed in float32 (or wider).

    Args:
        logits: shape [N, V].
        targets: token ids, shape [N].
        temperature: logits are divided by it.
        entropy_grad: whether the entropy carries a gradient; without one it needs no memory.
    """
    scaled = logits if logits.dtype == torch.float64 else logits.float()
    if temperature != 1.0:
        scaled = scaled / temperature
    normaliser = torch.logsumexp(scaled, dim=-1)
    logp = scaled.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - normaliser
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        entropy = normaliser - (torch.softmax(scaled, dim=-1) * scaled).sum(-1)
    return TokenScores(logp, entropy)


def score_hidden(
    hidden: Tensor,
    head: torch.nn.Module,
    targets: Tensor,
    temperature: float = 1.0,
    chunk: int = 2048,
    entropy_grad: bool = True,
) -> TokenScores:
    """`score_tokens` from hidden states, `chunk` tokens at a time; logits are recomputed in the backward pass.

    Args:
        hidden: the last hidden states of the positions before the tokens, shape [N, D].
        head: maps [n, D] to logits [n, V].
        targets: token ids, shape [N].
        temperature: logits are divided by it.
        chunk: tokens whose logits exist at the same time.
        entropy_grad: see `score_tokens`.
    """

    def part(states: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(score_tokens(head(states), ids, temperature, entropy_grad))

    if len(targets) <= chunk:
        return TokenScores(*part(hidden, targets))
    parts = [
        checkpoint(part, states, ids, use_reentrant=False)
        for states, ids in zip(torch.split(hidden, chunk), torch.split(targets, chunk), strict=True)
    ]
    return TokenScores(*(torch.cat(column) for column in zip(*parts, strict=True)))
