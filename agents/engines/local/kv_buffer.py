"""Tensors of the KV cache of a batch of conversations, one row each, and the forward pass over them.

Rows are padded on the right, and positions are counted per row, so the whole attention mask is one comparison (key
position <= query position): whatever is beyond the end of a row is masked until it is overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class _ForwardPlan(NamedTuple):
    """Cache positions that one forward pass writes and reads.

    Attributes:
        rows: [batch, 1], the row of each batch element.
        positions: [batch, new tokens], the position of each new token in its row.
        span: The rows as a slice of the buffer; None if they are not contiguous.
        length: Number of leading positions that the pass reads.
    """

    rows: torch.Tensor
    positions: torch.Tensor
    span: slice | None
    length: int

    def to(self, device: torch.device) -> _ForwardPlan:
        """Return the same plan for a layer on another device."""
        return self._replace(rows=self.rows.to(device), positions=self.positions.to(device))


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, [rows, heads, length, head width] each; allocated on first use."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.size = (0, 0)
        self.plan: _ForwardPlan | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        rows, length = self.size

        def zeros(states: torch.Tensor) -> torch.Tensor:  # NaN would spread even from masked positions
            return states.new_zeros((rows, states.shape[1], length, states.shape[3]))

        self.keys, self.values = zeros(key_states), zeros(value_states)
        self.is_initialized = True

    def resize(self, rows: int, length: int) -> None:
        self.size = (rows, length)
        if self.is_initialized:
            self.keys, self.values = (_enlarge(tensor, rows, length) for tensor in (self.keys, self.values))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        device = key_states.device.type
        if torch.is_autocast_enabled(device) and key_states.dtype == torch.float32:
            # Rotary embeddings give float32, which attention would cast at every later step, with the same result.
            key_states = key_states.to(torch.get_autocast_dtype(device))
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.plan is not None
        plan = self.plan if self.plan.rows.device == key_states.device else self.plan.to(key_states.device)
        visible = []
        for tensor, states in ((self.keys, key_states), (self.values, value_states)):
            tensor[plan.rows, :, plan.positions] = states.transpose(1, 2)
            rows = tensor[plan.span] if plan.span is not None else tensor.index_select(0, plan.rows[:, 0])
            visible.append(rows[:, :, : plan.length])
        return visible[0], visible[1]

    def get_seq_length(self) -> int:
        return self.plan.length if self.plan is not None else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length(), 0

    def get_max_length(self) -> int:
        return -1


def _enlarge(tensor: torch.Tensor, rows: int, length: int) -> torch.Tensor:
    enlarged = tensor.new_zeros((rows, tensor.shape[1], length, tensor.shape[3]))
    enlarged[: tensor.shape[0], :, : tensor.shape[2]] = tensor
    return enlarged


class KVBuffer:
    """Keys and values of all layers of one model.

    Args:
        model: A causal language model whose layers all keep plain keys and values.
        layers: Number of layers.

    Attributes:
        rows: Number of rows, each of which has room for one conversation.
        computed_tokens: Number of tokens that the model has encoded, padding included.
    """

    def __init__(self, model: PreTrainedModel, layers: int) -> None:
        self._model: Any = model
        self._layers = [_Layer() for _ in range(layers)]
        self._cache: Any = Cache(layers=self._layers)
        self._length = 0
        self.rows = 0
        self.computed_tokens = 0

    @property
    def token_bytes(self) -> int:
        """Memory of the keys and values of one token, in bytes; 0 before the first forward pass."""
        return sum(tensor.shape[1] * tensor.shape[3] * tensor.element_size() for tensor in self._tensors())

    def reserve(self, rows: int, length: int) -> None:
        """Ensure room for `rows` rows of `length` tokens."""
        if rows > self.rows or length > self._length:
            if length > self._length:  # grow by half, so that appending single tokens rarely copies
                length = (max(length, self._length * 3 // 2) + 63) // 64 * 64
            self.rows, self._length = max(rows, self.rows), max(length, self._length)
            for layer in self._layers:
                layer.resize(self.rows, self._length)

    def read_row(self, row: int, count: int) -> list[torch.Tensor]:
        """Return a copy of the first `count` tokens of a row."""
        return [tensor[row, :, :count].clone() for tensor in self._tensors()]

    def write_row(self, row: int, states: Sequence[torch.Tensor], start: int, end: int) -> None:
        """Write tokens `start` to `end` of a row from the result of `read_row`."""
        self.reserve(self.rows, end)
        for tensor, state in zip(self._tensors(), states, strict=True):
            tensor[row, :, start:end] = state[:, start:end]

    def copy_row(self, source: int, row: int, start: int, end: int) -> None:
        """Copy tokens `start` to `end` of one row to another."""
        for tensor in self._tensors():
            tensor[row, :, start:end] = tensor[source, :, start:end]

    def clear(self, row: int | None = None) -> None:
        """Zero a row, or all rows."""
        for tensor in self._tensors():
            (tensor if row is None else tensor[row]).zero_()

    def forward(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        ids: Sequence[Sequence[int]],
        keep: Sequence[int] | None = None,
        visible: int | None = None,
    ) -> torch.Tensor:
        """Run one forward pass and store the keys and values of its tokens.

        Args:
            rows: Rows of the buffer, ascending.
            starts: Position of the first new token of each row.
            ids: New tokens, the same number in every row.
            keep: Index of the new token of each row whose logits are returned; None for the last.
            visible: Number of leading positions that are read; None for all up to the last new token.

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
        plan = _ForwardPlan(torch.tensor(rows, device=device)[:, None], positions, span, length)
        for layer in self._layers:
            layer.plan = plan
        # An additive mask: attention kernels would convert a boolean one in every layer.
        is_visible = torch.arange(length, device=device) <= positions[:, None, :, None]
        zero, hidden = (torch.tensor(value, dtype=self._model.dtype, device=device) for value in (0.0, -torch.inf))
        # Positions of padding stay within the model's table of positions.
        last = None if keep is None else torch.tensor(keep, device=device)[:, None]
        self.computed_tokens += width * len(rows)
        output = self._model(
            input_ids=torch.tensor(ids, device=device),
            attention_mask=torch.where(is_visible, zero, hidden),
            position_ids=positions if last is None else torch.minimum(positions, positions[:, :1] + last),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1 if last is None else last,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def close(self) -> None:
        """Release the model and the tensors."""
        self._layers.clear()
        self._cache = self._model = None

    def _tensors(self) -> list[torch.Tensor]:
        """Return the keys and values of all layers; empty before the first forward pass."""
        return [tensor for layer in self._layers if layer.is_initialized for tensor in (layer.keys, layer.values)]
