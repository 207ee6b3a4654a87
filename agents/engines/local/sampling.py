"""Choosing the next token of every row of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..base import Sampling


class Drawn(NamedTuple):
    """One value a row: the token, its log-probability, and whether the logits were usable."""

    tokens: list[int]
    logprobs: list[float]
    usable: list[bool]


class Settings:
    """The sampling settings of a batch as tensors; made anew only when the batch changes.

    Args:
        rows: the settings of each row.
        device: where the logits are.
        as_drawn: report log-probabilities of the distribution that a token was drawn from, after temperature,
            top-p and top-k, instead of those at temperature 1. A greedy row's are at temperature 1 in any case.
    """

    def __init__(self, rows: Sequence[Sampling], device: torch.device, *, as_drawn: bool = False) -> None:
        self.as_drawn = as_drawn
        self.greedy = all(row.temperature == 0 for row in rows)
        self.restricted = any(row.temperature > 0 and (row.top_p < 1 or row.top_k > 0) for row in rows)

        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)[:, None]

        self.temperature = column([row.temperature if row.temperature > 0 else 1.0 for row in rows])
        self.is_greedy = column([float(row.temperature == 0) for row in rows]).bool()
        self.some_greedy = any(row.temperature == 0 for row in rows)
        self.plain = all(row.temperature == 1 for row in rows)
        self.top_p = column([row.top_p for row in rows])
        self.top_k = column([float(row.top_k or 2**31) for row in rows])


def draw(logits: torch.Tensor, uniform: Sequence[float], settings: Settings) -> Drawn:
    """Choose a token in each row by inverting its cumulative distribution at `uniform`.

    Args:
        logits: [rows, vocabulary], float32.
        uniform: a number for each row, as `uniforms` gives them; ignored where greedy.
        settings: of the same rows.

    Returns:
        Rows whose logits hold NaN or +inf, or are -inf throughout, are marked unusable; their token means nothing.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    if settings.greedy:
        tokens = logits.argmax(dim=-1, keepdim=True)
    else:
        tokens, drawn_from = _sample(logits, logprobs, uniform, settings)
        if settings.as_drawn:
            logprobs = drawn_from
        if settings.some_greedy:
            tokens = torch.where(settings.is_greedy, logits.argmax(dim=-1, keepdim=True), tokens)
    # Softmax spreads NaN and infinity over the whole row, so that whichever token was chosen shows them.
    chosen = logprobs.gather(-1, tokens)[:, 0].tolist()
    return Drawn(tokens[:, 0].tolist(), chosen, [math.isfinite(value) for value in chosen])


def uniforms(seed: int, count: int) -> list[float]:
    """`count` numbers in [0, 1) for `draw`, the same on every device, never rounded up to 1."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    numbers: list[float] = (torch.rand(count, generator=generator) * (1 - 2**-20)).tolist()
    return numbers


def _sample(
    logits: torch.Tensor, logprobs: torch.Tensor, uniform: Sequence[float], settings: Settings
) -> tuple[torch.Tensor, torch.Tensor]:
    """Drawn tokens, and the log-probabilities [rows, vocabulary] of what they were drawn from.

    Those of tokens that top-p or top-k leave out mean nothing.
    """
    scaled = logprobs if settings.plain else torch.log_softmax(logits / settings.temperature, dim=-1)
    chances = scaled.exp()
    order = None
    if settings.restricted:
        chances, order = chances.sort(dim=-1, descending=True, stable=True)
        likelier = chances.cumsum(dim=-1) - chances
        rank = torch.arange(chances.shape[-1], device=chances.device)
        # The likeliest token always stays, also at top_p = 0.
        dropped = ((likelier >= settings.top_p) | (rank >= settings.top_k)) & (rank > 0)
        chances = chances.masked_fill(dropped, 0.0)
    heaped = chances.cumsum(dim=-1)
    if settings.restricted:
        scaled = scaled - heaped[:, -1:].log()
    target = torch.tensor(uniform, dtype=heaped.dtype, device=heaped.device)[:, None] * heaped[:, -1:]
    # NaN is above all numbers: the last index, not one past it.
    index = torch.searchsorted(heaped, target, right=True).clamp_(max=heaped.shape[-1] - 1)
    return (index if order is None else order.gather(-1, index)), scaled
