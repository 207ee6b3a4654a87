"""KV cache of many conversations, with reuse across turns and branches.

A conversation keeps its row of the buffer between turns until another one needs it, so a turn costs only its new
tokens and copies nothing. When the row is needed, the keys and values of the idle conversation are offloaded at
their exact length. When idle conversations exceed a budget of tokens, the least recently used ones are evicted and
encoded again on their next turn. A prefix that several conversations share is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from .generation import Generation
from .kv_buffer import KVBuffer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Number of leading tokens by which conversations with a common prefix are found; shorter prefixes are not shared.
_PREFIX = 32
# Padding, in tokens, that costs less than another forward pass.
_PADDING = 32
# Maximum number of tokens per prompt and in total in one forward pass; bounds the memory of activations and masks.
_CHUNK, _MAX_TOKENS = 512, 8192


@dataclass(slots=True, eq=False)
class _CachedConversation:
    """The cached state of a conversation.

    Attributes:
        ids: Its token ids; the same list object as that of its generation in progress.
        cached: Number of leading tokens whose keys and values are cached.
        row: Row of the buffer; -1 if offloaded.
        offloaded: Result of `KVBuffer.read_row`; None if the conversation has a row.
        busy: True while a request is in progress.
    """

    ids: list[int] = field(default_factory=list)
    cached: int = 0
    row: int = -1
    offloaded: list[torch.Tensor] | None = None
    busy: bool = False


class KVCache:
    """KV cache of all conversations of an engine.

    Args:
        model: A causal language model whose layers all keep plain keys and values.
        layers: Number of layers.
        max_rows: Maximum number of conversations in one forward pass.
        budget: Maximum number of cached tokens of idle conversations; None derives it from `idle_bytes`.
        idle_bytes: Maximum memory of idle conversations in bytes, if `budget` is None.
    """

    keeps_cache = True

    def __init__(
        self, model: PreTrainedModel, layers: int, max_rows: int, budget: int | None, idle_bytes: int
    ) -> None:
        self._buffer = KVBuffer(model, layers)
        self._max_rows, self._budget, self._idle_bytes = max_rows, budget, idle_bytes
        self._conversations: dict[str, _CachedConversation] = {}  # idle ones from least to most recently used
        self._owners: dict[int, str] = {}  # name of the conversation in each row
        self._prefixes: dict[int, str] = {}  # name of a conversation by the hash of its first tokens

    @property
    def computed_tokens(self) -> int:
        """Number of tokens that the model has encoded, padding included."""
        return self._buffer.computed_tokens

    @property
    def idle_tokens(self) -> int:
        """Number of cached tokens of idle conversations."""
        return sum(one.cached for one in self._conversations.values() if not one.busy)

    def admit(self, generation: Generation) -> bool:
        """Assign a row to a generation, with the cached prefix of its conversation.

        Returns:
            False if no row is free.
        """
        name = generation.request.conversation
        conversation = self._conversations.get(name)
        if conversation is None or conversation.row < 0:
            row = self._free_row()
            if row is None:
                return False
            conversation = self._conversations.setdefault(name, _CachedConversation())
            if conversation.offloaded is not None:
                self._buffer.write_row(row, conversation.offloaded, 0, conversation.cached)
                conversation.offloaded = None
            conversation.row = row
            self._owners[row] = name
        # The last token is always encoded, for its logits.
        shared = _common_prefix(conversation.ids, generation.ids, conversation.cached)
        conversation.cached = min(shared, len(generation.ids) - 1)
        conversation.ids, conversation.busy = generation.ids, True
        generation.row, generation.reused = conversation.row, conversation.cached
        generation.resumed = conversation.cached > 0
        return True

    def advance(self, generations: Sequence[Generation]) -> tuple[list[Generation], torch.Tensor]:
        """Encode the new tokens of each generation.

        Returns:
            The generations in another order, and the logits [generations, vocabulary], float32, after the last
            token of each.
        """
        decoding = sorted((one for one in generations if self._new_tokens(one) == 1), key=_row)
        prefilling = [one for one in generations if self._new_tokens(one) > 1]
        ordered, logits = [*decoding], [self._decode(decoding)] if decoding else []
        while prefilling:
            ready, prefilling = self._share_prefixes(prefilling)
            for group in self._groups(ready):
                ordered += group
                logits.append(self._encode(group, [self._new_tokens(one) for one in group]))
        return ordered, (torch.cat(logits) if len(logits) > 1 else logits[0]).float()

    def finish(self, generation: Generation, poisoned: bool = False) -> None:
        """Mark the conversation of a finished generation as idle.

        Args:
            generation: The generation.
            poisoned: True if its keys and values may contain NaN; they are then cleared and forgotten.
        """
        name = generation.request.conversation
        if poisoned:
            self._buffer.clear(generation.row)
            self.forget(name)
            return
        conversation = self._conversations.pop(name)
        conversation.busy = False
        self._conversations[name] = conversation
        self._evict()

    def forget(self, name: str) -> None:
        """Drop the cached state of a conversation."""
        conversation = self._conversations.pop(name, None)
        if conversation is not None:
            self._owners.pop(conversation.row, None)

    def invalidate(self) -> None:
        """Drop all keys and values, because the weights have changed.

        Generations in progress encode theirs again.
        """
        for name in [name for name, conversation in self._conversations.items() if not conversation.busy]:
            self.forget(name)
        for conversation in self._conversations.values():
            conversation.cached = 0
        self._buffer.clear()

    def close(self) -> None:
        """Release the model and the cached state."""
        self._conversations.clear()
        self._owners.clear()
        self._buffer.close()

    # ------------------------------------------------------------------ rows

    def _conversation(self, generation: Generation) -> _CachedConversation:
        return self._conversations[generation.request.conversation]

    def _new_tokens(self, generation: Generation) -> int:
        """Return the number of tokens to encode."""
        return len(generation.ids) - self._conversation(generation).cached

    def _free_row(self) -> int | None:
        """Return an unused row, after offloading the least recently used conversation if necessary.

        Returns:
            None if all rows are busy.
        """
        unused = next((row for row in range(self._max_rows) if row not in self._owners), None)
        if unused is not None:
            if unused >= self._buffer.rows:
                self._buffer.reserve(min(max(2 * self._buffer.rows, 4), self._max_rows), 0)
            return unused
        for conversation in self._conversations.values():
            if not conversation.busy and conversation.row >= 0:
                row, conversation.row = conversation.row, -1
                conversation.offloaded = self._buffer.read_row(row, conversation.cached)
                del self._owners[row]
                return row
        return None

    def _evict(self) -> None:
        """Drop the least recently used idle conversations beyond the budget."""
        budget = self._budget
        if budget is None:
            budget = self._idle_bytes // max(self._buffer.token_bytes, 1)
        excess = self.idle_tokens - budget
        for name, conversation in list(self._conversations.items()):
            if excess <= 0:
                return
            if not conversation.busy:
                excess -= conversation.cached
                self.forget(name)

    # ------------------------------------------------------------------ shared prefixes

    def _share_prefixes(self, generations: Sequence[Generation]) -> tuple[list[Generation], list[Generation]]:
        """Copy the keys and values of prefixes that other conversations have already computed.

        Returns:
            The generations to encode now, and those that wait for one of these because they share its prefix.
        """
        ready: list[Generation] = []
        waiting: list[Generation] = []
        encoding: set[int] = set()  # hashes of the prompts and prefixes that are encoded now
        for generation in generations:
            conversation = self._conversation(generation)
            if generation.resumed:
                ready.append(generation)
                continue
            prompt, prefix = hash(tuple(generation.ids)), hash(tuple(generation.ids[:_PREFIX]))
            for name in (generation.request.parent, self._prefixes.get(prompt), self._prefixes.get(prefix)):
                if name is not None and name in self._conversations:
                    self._copy_prefix(self._conversations[name], generation)
                    # Further branches are likely, so the source is evicted after others.
                    self._conversations[name] = self._conversations.pop(name)
            saves_tokens = (prompt in encoding and self._new_tokens(generation) > 1) or (
                prefix in encoding and conversation.cached == 0
            )
            if saves_tokens and len(generation.ids) > _PREFIX:
                waiting.append(generation)
                continue
            ready.append(generation)
            for key in (prompt, prefix):
                encoding.add(key)
                if self._prefixes.get(key) not in self._conversations:
                    self._prefixes[key] = generation.request.conversation
        while len(self._prefixes) > 8 * self._max_rows:
            del self._prefixes[next(iter(self._prefixes))]
        return ready, waiting

    def _copy_prefix(self, source: _CachedConversation, generation: Generation) -> None:
        """Copy the keys and values of the prefix that a generation shares with another conversation."""
        conversation = self._conversation(generation)
        shared = min(_common_prefix(source.ids, generation.ids, source.cached), len(generation.ids) - 1)
        if shared <= conversation.cached:
            return
        if source.offloaded is not None:
            self._buffer.write_row(conversation.row, source.offloaded, conversation.cached, shared)
        else:
            self._buffer.copy_row(source.row, conversation.row, conversation.cached, shared)
        generation.reused += shared - conversation.cached
        conversation.cached = shared

    # ------------------------------------------------------------------ forward passes

    def _groups(self, generations: Sequence[Generation]) -> list[list[Generation]]:
        """Encode all but the last chunk of long prompts, then group by length, so that there is little padding."""
        generations = sorted(generations, key=_row)
        while long := [one for one in generations if self._new_tokens(one) > _CHUNK]:
            for n in range(0, len(long), _MAX_TOKENS // _CHUNK):
                batch = long[n : n + _MAX_TOKENS // _CHUNK]
                self._encode(batch, [_CHUNK] * len(batch))
        groups: list[list[Generation]] = []
        longest = total = 0
        for generation in sorted(generations, key=self._new_tokens, reverse=True):
            new = self._new_tokens(generation)
            size = len(groups[-1]) + 1 if groups else 0
            padding = longest * size - total - new
            if groups and padding <= max(_PADDING, (total + new) // 12) and longest * size <= _MAX_TOKENS:
                groups[-1].append(generation)
                total += new
            else:
                groups.append([generation])
                longest = total = new
        return [sorted(group, key=_row) for group in groups]

    def _encode(self, generations: Sequence[Generation], counts: Sequence[int]) -> torch.Tensor:
        """Encode the next `counts` tokens of generations in ascending order of rows.

        Returns:
            Logits [generations, vocabulary] after the last of these tokens.
        """
        width = max(counts)
        conversations = [self._conversation(one) for one in generations]
        ids = [
            c.ids[c.cached : c.cached + n] + [0] * (width - n) for c, n in zip(conversations, counts, strict=True)
        ]
        ends = [n - 1 for n in counts] if min(counts) < width else None
        logits = self._buffer.forward([c.row for c in conversations], [c.cached for c in conversations], ids, ends)
        for c, n in zip(conversations, counts, strict=True):
            c.cached += n
        return logits

    def _decode(self, generations: Sequence[Generation]) -> torch.Tensor:
        """Encode the newest token of generations in ascending order of rows.

        If most rows between the first and the last are active, the idle rows among them are included: the buffer
        is then read as one slice, without a copy, and what they write is beyond their end.

        Returns:
            Logits [generations, vocabulary].
        """
        first, last = generations[0].row, generations[-1].row
        newest = {one.row: one.ids[-1] for one in generations}
        dense = last - first + 1 < 2 * len(generations)
        rows = list(range(first, last + 1)) if dense else list(newest)
        starts = [self._conversations[self._owners[row]].cached if row in self._owners else 0 for row in rows]
        visible = max(self._conversation(one).cached for one in generations) + 1
        logits = self._buffer.forward(rows, starts, [[newest.get(row, 0)] for row in rows], visible=visible)
        for one in generations:
            self._conversation(one).cached += 1
        if len(rows) > len(newest):
            logits = logits[torch.tensor([row - first for row in newest], device=logits.device)]
        return logits


def _row(generation: Generation) -> int:
    return generation.row


def _common_prefix(one: Sequence[int], other: Sequence[int], limit: int) -> int:
    """Return the length of the common prefix of two sequences, at most `limit`."""
    low, high = 0, min(limit, len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
