"""Sampling of the next token of every row of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..base import Sampling


class SampledTokens(NamedTuple):
    """The sampled tokens of a batch, one value per row.

    Attributes:
        tokens: Token ids.
        logprobs: Log-probability of each token.
        usable: False where the logits were not finite; the token is then meaningless.
    """

    tokens: list[int]
    logprobs: list[float]
    usable: list[bool]


class BatchSampling:
    """The sampling settings of a batch as tensors; recomputed only when the batch changes.

    Args:
        rows: Settings of each row.
        device: Device of the logits.
        processed: Report log-probabilities of the sampling distribution, after temperature, top-p and top-k,
            instead of those at temperature 1. Those of greedy rows are at temperature 1 in both cases.
    """

    def __init__(self, rows: Sequence[Sampling], device: torch.device, *, processed: bool = False) -> None:
        self.processed = processed
        self.all_greedy = all(row.temperature == 0 for row in rows)
        truncated = [row.temperature > 0 and (row.top_p < 1 or row.top_k > 0) for row in rows]
        self.some_truncated = any(truncated)

        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)[:, None]

        self.temperature = column([row.temperature if row.temperature > 0 else 1.0 for row in rows])
        self.is_truncated = column([float(one) for one in truncated]).bool()
        self.is_greedy = column([float(row.temperature == 0) for row in rows]).bool()
        self.some_greedy = any(row.temperature == 0 for row in rows)
        self.unscaled = all(row.temperature == 1 for row in rows)
        self.top_p = column([row.top_p if row.temperature > 0 else 1.0 for row in rows])
        self.top_k = column([float((row.temperature > 0 and row.top_k) or 2**31) for row in rows])


def sample_tokens(logits: torch.Tensor, uniforms: Sequence[float], settings: BatchSampling) -> SampledTokens:
    """Sample a token per row by inverting the cumulative distribution at a uniform number.

    Args:
        logits: [rows, vocabulary], float32.
        uniforms: A number per row, as returned by `draw_uniforms`; ignored in greedy rows.
        settings: Sampling settings of the same rows.

    Returns:
        The tokens. Rows whose logits contain NaN or +inf, or are all -inf, are marked as unusable.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    if settings.all_greedy:
        tokens = logits.argmax(dim=-1, keepdim=True)
    else:
        tokens, processed_logprobs = _sample(logits, logprobs, uniforms, settings)
        if settings.processed:
            logprobs = processed_logprobs
        if settings.some_greedy:
            tokens = torch.where(settings.is_greedy, logits.argmax(dim=-1, keepdim=True), tokens)
    # Softmax spreads NaN and infinity over the whole row, so checking the sampled token suffices.
    sampled = logprobs.gather(-1, tokens)[:, 0].tolist()
    return SampledTokens(tokens[:, 0].tolist(), sampled, [math.isfinite(value) for value in sampled])


def draw_uniforms(seed: int, count: int) -> list[float]:
    """Return `count` numbers in [0, 1), the same on every device; none is rounded up to 1 in float32."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    numbers: list[float] = (torch.rand(count, generator=generator) * (1 - 2**-20)).tolist()
    return numbers


def _sample(
    logits: torch.Tensor, logprobs: torch.Tensor, uniforms: Sequence[float], settings: BatchSampling
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample with temperature, top-p and top-k.

    Returns:
        Tokens [rows, 1], and the log-probabilities [rows, vocabulary] of the sampling distribution; those of
        tokens excluded by top-p or top-k are meaningless.
    """
    scaled = logprobs if settings.unscaled else torch.log_softmax(logits / settings.temperature, dim=-1)
    probabilities = scaled.exp()
    order = None
    if settings.some_truncated:
        ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
        mass_before = ordered.cumsum(dim=-1) - ordered
        rank = torch.arange(ordered.shape[-1], device=ordered.device)
        # The most likely token is always kept, even at top_p = 0.
        excluded = ((mass_before >= settings.top_p) | (rank >= settings.top_k)) & (rank > 0)
        # Other rows keep the order of the vocabulary, in which they are sampled in a batch of their own, too.
        probabilities = torch.where(settings.is_truncated, ordered.masked_fill(excluded, 0.0), probabilities)
        order = torch.where(settings.is_truncated, order, rank)
    cumulative = probabilities.cumsum(dim=-1)
    if settings.some_truncated:
        scaled = torch.where(settings.is_truncated, scaled - cumulative[:, -1:].log(), scaled)
    target = torch.tensor(uniforms, dtype=cumulative.dtype, device=cumulative.device)[:, None] * cumulative[:, -1:]
    # NaN sorts above all numbers; clamp its index to the last token.
    index = torch.searchsorted(cumulative, target, right=True).clamp_(max=cumulative.shape[-1] - 1)
    return (index if order is None else order.gather(-1, index)), scaled
