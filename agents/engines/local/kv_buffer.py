"""Keys and values of a batch of conversations, one row each, and the forward pass that fills and reads them.

Rows are padded on the right and positions are counted in every row, so one comparison (key position at most query
position) is the whole attention mask: what lies beyond a row's end is never seen, and overwritten in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class _Plan(NamedTuple):
    """Where the tokens of one forward pass go, and which keys they may see."""

    rows: torch.Tensor  # [batch, 1]
    positions: torch.Tensor  # [batch, new tokens]
    span: slice | None  # the rows as one stretch of the buffer; None where they lie scattered
    length: int  # keys that any row may see

    def to(self, device: torch.device) -> _Plan:
        """The same for a layer on another device."""
        return self._replace(rows=self.rows.to(device), positions=self.positions.to(device))


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values, [rows, heads, length, width] each; made when first needed."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.size = (0, 0)
        self.plan: _Plan | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        rows, length = self.size

        def empty(
            states: torch.Tensor,
        ) -> torch.Tensor:  # zeros, for NaN spreads even from where nobody looks
            return states.new_zeros((rows, states.shape[1], length, states.shape[3]))

        self.keys, self.values = empty(key_states), empty(value_states)
        self.is_initialized = True

    def resize(self, rows: int, length: int) -> None:
        self.size = (rows, length)
        if self.is_initialized:
            self.keys, self.values = (_enlarged(buffer, rows, length) for buffer in (self.keys, self.values))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.plan is not None
        plan = self.plan if self.plan.rows.device == key_states.device else self.plan.to(key_states.device)
        seen = []
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            buffer[plan.rows, :, plan.positions] = states.transpose(1, 2)
            rows = buffer[plan.span] if plan.span is not None else buffer.index_select(0, plan.rows[:, 0])
            seen.append(rows[:, :, : plan.length])
        return seen[0], seen[1]

    def get_seq_length(self) -> int:
        return self.plan.length if self.plan is not None else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length(), 0

    def get_max_length(self) -> int:
        return -1


def _enlarged(buffer: torch.Tensor, rows: int, length: int) -> torch.Tensor:
    larger = buffer.new_zeros((rows, buffer.shape[1], length, buffer.shape[3]))
    larger[: buffer.shape[0], :, : buffer.shape[2]] = buffer
    return larger


class Buffer:
    """The rows of one model.

    Args:
        model: a causal language model all of whose layers keep plain keys and values.
        layers: how many layers do.

    Attributes:
        rows: how many conversations fit.
        computed: tokens that went through the model, padding included.
    """

    def __init__(self, model: Any, layers: int) -> None:
        self._model = model
        self._layers = [_Layer() for _ in range(layers)]
        self._cache: Any = Cache(layers=self._layers)
        self._length = 0
        self.rows = 0
        self.computed = 0

    @property
    def token_bytes(self) -> int:
        """Memory of one token's keys and values; 0 before anything was encoded."""
        return sum(part.shape[1] * part.shape[3] * part.element_size() for part in self._parts())

    def reserve(self, rows: int, length: int) -> None:
        """Make room for so many rows of so many tokens."""
        if rows > self.rows or length > self._length:
            if length > self._length:  # half as much again, so that growing token by token copies little
                length = (max(length, self._length * 3 // 2) + 63) // 64 * 64
            self.rows, self._length = max(rows, self.rows), max(length, self._length)
            for layer in self._layers:
                layer.resize(self.rows, self._length)

    def take(self, row: int, count: int) -> list[torch.Tensor]:
        """A copy of a row's first `count` tokens."""
        return [part[row, :, :count].clone() for part in self._parts()]

    def put(self, row: int, states: Sequence[torch.Tensor], start: int, end: int) -> None:
        """Fill tokens `start` to `end` of a row from what `take` gave."""
        self.reserve(self.rows, end)
        for part, state in zip(self._parts(), states, strict=True):
            part[row, :, start:end] = state[:, start:end]

    def share(self, source: int, row: int, start: int, end: int) -> None:
        """Fill tokens `start` to `end` of a row with those of another."""
        for part in self._parts():
            part[row, :, start:end] = part[source, :, start:end]

    def wipe(self, row: int | None = None) -> None:
        """Forget a row, or all."""
        for part in self._parts():
            (part if row is None else part[row]).zero_()

    def run(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        ids: Sequence[Sequence[int]],
        keep: Sequence[int] | None = None,
        visible: int | None = None,
    ) -> torch.Tensor:
        """One forward pass.

        Args:
            rows: ascending.
            starts: in each row, the position of its first new token.
            ids: new tokens, equally many in each row.
            keep: which of them to give logits for, one a row; None for the last.
            visible: how many keys a row may see; None for all up to the farthest new token.

        Returns:
            Logits [rows, vocabulary].
        """
        device = self._model.device
        width, end = len(ids[0]), max(starts) + len(ids[0])
        self.reserve(self.rows, end)
        length = visible or end
        positions = torch.tensor(starts, device=device)[:, None]
        if width > 1:
            positions = positions + torch.arange(width, device=device)
        span = slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == len(rows) else None
        plan = _Plan(torch.tensor(rows, device=device)[:, None], positions, span, length)
        for layer in self._layers:
            layer.plan = plan
        # Added to the scores: kernels would turn true and false into this again in every layer.
        seen = torch.arange(length, device=device) <= positions[:, None, :, None]
        zero, hidden = (torch.tensor(value, dtype=self._model.dtype, device=device) for value in (0.0, -torch.inf))
        self.computed += width * len(rows)
        output = self._model(
            input_ids=torch.tensor(ids, device=device),
            attention_mask=torch.where(seen, zero, hidden),
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1 if keep is None else torch.tensor(keep, device=device)[:, None],
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def close(self) -> None:
        """Let go of the model and all that was computed."""
        self._layers.clear()
        self._cache = self._model = None

    def _parts(self) -> list[torch.Tensor]:
        return [part for layer in self._layers if layer.is_initialized for part in (layer.keys, layer.values)]
