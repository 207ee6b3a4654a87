"""Choosing the next token of every row of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..base import Sampling


class Drawn(NamedTuple):
    """One value a row: the token, its log-probability at temperature 1, and whether the logits were usable."""

    tokens: list[int]
    logprobs: list[float]
    usable: list[bool]


class Settings:
    """The sampling settings of a batch as tensors; made anew only when the batch changes.

    Args:
        rows: the settings of each row.
        device: where the logits are.
    """

    def __init__(self, rows: Sequence[Sampling], device: torch.device) -> None:
        self.greedy = all(row.temperature == 0 for row in rows)
        self.restricted = any(row.temperature > 0 and (row.top_p < 1 or row.top_k > 0) for row in rows)

        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)[:, None]

        self.temperature = column([row.temperature if row.temperature > 0 else 1.0 for row in rows])
        self.is_greedy = column([float(row.temperature == 0) for row in rows]).bool()[:, 0]
        self.some_greedy = any(row.temperature == 0 for row in rows)
        self.plain = all(row.temperature == 1 for row in rows)
        self.top_p = column([row.top_p for row in rows])
        self.top_k = column([float(row.top_k or 2**31) for row in rows])


def draw(logits: torch.Tensor, uniform: Sequence[float], settings: Settings) -> Drawn:
    """Choose a token in each row by inverting its cumulative distribution at `uniform`.

    Args:
        logits: [rows, vocabulary], float32.
        uniform: a number in [0, 1) for each row; ignored where greedy.
        settings: of the same rows.

    Returns:
        Rows whose logits hold NaN or +inf, or are -inf throughout, are marked unusable; their token means nothing.
    """
    total = torch.logsumexp(logits, dim=-1)
    usable = torch.isfinite(total)
    if settings.greedy:
        tokens = logits.argmax(dim=-1)
    else:
        # Unusable rows get a harmless distribution, so that indexing below stays in range.
        sane = logits if bool(usable.all()) else torch.where(usable[:, None], logits, torch.zeros_like(logits))
        tokens = _sample(sane, uniform, settings)
        if settings.some_greedy:
            tokens = torch.where(settings.is_greedy, sane.argmax(dim=-1), tokens)
    logprobs = logits.gather(-1, tokens[:, None])[:, 0] - total
    # One transfer for all three; float64 holds every token id exactly.
    columns = torch.stack((tokens.double(), logprobs.double(), usable.double())) if _has_double(logits) else None
    if columns is None:
        return Drawn(tokens.tolist(), logprobs.tolist(), usable.tolist())
    ids, values, fine = columns.tolist()
    return Drawn([int(i) for i in ids], values, [bool(u) for u in fine])


def _sample(logits: torch.Tensor, uniform: Sequence[float], settings: Settings) -> torch.Tensor:
    chances = torch.softmax(logits if settings.plain else logits / settings.temperature, dim=-1)
    order = None
    if settings.restricted:
        chances, order = chances.sort(dim=-1, descending=True, stable=True)
        before = chances.cumsum(dim=-1) - chances  # mass of the likelier tokens
        rank = torch.arange(chances.shape[-1], device=chances.device)
        # The likeliest token always stays, also at top_p = 0.
        dropped = ((before >= settings.top_p) | (rank >= settings.top_k)) & (rank > 0)
        chances = chances.masked_fill(dropped, 0.0)
    heaped = chances.cumsum(dim=-1)
    mass = heaped[:, -1:]
    # Strictly below the whole mass, so that rounding never picks a token past the last one with a chance.
    target = torch.tensor(uniform, dtype=mass.dtype, device=mass.device)[:, None] * mass
    target = torch.minimum(target, torch.nextafter(mass, torch.zeros_like(mass)))
    index = torch.searchsorted(heaped, target, right=True)
    return (index if order is None else order.gather(-1, index))[:, 0]


def _has_double(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type != "mps")
