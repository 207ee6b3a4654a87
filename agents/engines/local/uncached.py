"""Decoding of any architecture, one conversation at a time, without a cache between turns.

It serves models whose layers keep other state than plain keys and values (sliding windows shorter than the context
window, state spaces, linear attention): such caches cannot be truncated, forked or batched with ragged lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from .generation import Generation

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class UncachedDecoder:
    """Decoder with the interface of `KVCache` that encodes every turn from its beginning.

    Args:
        model: A causal language model.
        rescaling_length: Length in tokens beyond which the model scales all positions otherwise, so that a longer
            sequence is encoded again; None if there is none.

    Attributes:
        computed_tokens: Number of tokens that the model has encoded.
    """

    keeps_cache = False

    def __init__(self, model: PreTrainedModel, rescaling_length: int | None = None) -> None:
        self._model: Any = model
        self._rescaling_length = rescaling_length
        self._states: dict[str, tuple[int, dict[str, Any]]] = {}  # number of encoded tokens, and the model's cache
        self.computed_tokens = 0

    def admit(self, generation: Generation) -> bool:
        """Return True: there is always room."""
        return True

    def advance(self, generations: Sequence[Generation]) -> tuple[list[Generation], torch.Tensor]:
        """Return the generations and the logits [generations, vocabulary], float32, after their last tokens."""
        return list(generations), torch.cat([self._last_logits(one) for one in generations]).float()

    def finish(self, generation: Generation, poisoned: bool = False) -> None:
        """Drop the state of a finished generation."""
        self._states.pop(generation.request.conversation, None)

    def forget(self, name: str) -> None:
        """Drop the state of a conversation."""
        self._states.pop(name, None)

    def invalidate(self) -> None:
        """Drop all states, because the weights have changed."""
        self._states.clear()

    def close(self) -> None:
        """Release the model and all states."""
        self._states.clear()
        self._model = None

    def _last_logits(self, generation: Generation) -> torch.Tensor:
        encoded, state = self._states.get(generation.request.conversation, (0, {}))
        if self._rescaling_length is not None and encoded <= self._rescaling_length < len(generation.ids):
            encoded, state = 0, {}
        ids = torch.tensor([generation.ids[encoded:]], device=self._model.device)
        self.computed_tokens += ids.shape[1]
        output = self._model(input_ids=ids, use_cache=True, **state)
        # State-space models have another name for their cache. Without any, the whole sequence is encoded again.
        state = {
            name: output[name] for name in ("past_key_values", "cache_params") if output.get(name) is not None
        }
        self._states[generation.request.conversation] = (len(generation.ids) if state else 0, state)
        logits: torch.Tensor = output.logits[:, -1]
        return logits
