"""Keys and values of many conversations, one row of a buffer each, and the forward passes over them.

A conversation keeps its row between turns for as long as nobody else needs it, so that a turn costs its new tokens
only and nothing is copied. When the row is needed, the idle conversation's keys and values are parked at their exact
length; when a budget of parked and idle tokens is exceeded, those idle longest are dropped and encoded again should
they come back. Rows are padded on the right, positions are counted in every row, and one comparison (key position at
most query position) is the whole attention mask: what lies beyond a row's end is never seen and later overwritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from .task import Task

# A conversation's first tokens under which others find it: shorter prefixes are not worth sharing.
_OPENING = 32
# Padding that costs less than another forward pass.
_SLACK = 32
# Longest stretch of one prompt, and most tokens, in one forward pass: bounds activations and masks.
_CHUNK = 512
_TOKENS = 8192


class _Plan(NamedTuple):
    """Where the tokens of one forward pass go, and which keys they see."""

    rows: torch.Tensor  # [batch, 1]
    positions: torch.Tensor  # [batch, new tokens]
    span: slice | None  # the rows as one stretch of the buffer; None where they lie scattered
    length: int  # keys that any row may see


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's buffer, [rows, heads, length, width]; made when the first keys show their shape."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.plan: _Plan | None = None
        self.size = (0, 0)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        rows, length = self.size

        def empty(states: torch.Tensor) -> torch.Tensor:  # zeros: even a masked NaN would spread
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
        plan = self.plan
        assert plan is not None
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


@dataclass(slots=True, eq=False)
class _Kept:
    """What is kept of a conversation.

    Attributes:
        ids: its tokens; the list of the task under way, if one is.
        cached: how many of them have keys and values.
        row: where these are, or None.
        parked: or here, a tensor for each of all layers' keys and values.
        busy: whether a request is under way.
    """

    ids: list[int] = field(default_factory=list)
    cached: int = 0
    row: int | None = None
    parked: list[torch.Tensor] | None = None
    busy: bool = False


class Rows:
    """The conversations' caches and the model.

    Args:
        model: a causal language model all of whose layers keep plain keys and values.
        layers: how many layers have a cache.
        max_rows: most conversations in one forward pass.
        budget: most tokens that idle conversations may keep; None for what `idle_bytes` hold.
        idle_bytes: see `budget`.

    Attributes:
        computed: tokens that went through the model, padding included.
    """

    keeps = True

    def __init__(self, model: Any, layers: int, max_rows: int, budget: int | None, idle_bytes: int) -> None:
        self._model = model
        self._layers = [_Layer() for _ in range(layers)]
        self._cache = Cache(layers=self._layers)
        self._max_rows, self._budget, self._idle_bytes = max_rows, budget, idle_bytes
        self._rows, self._length = 0, 0
        self._owners: dict[int, str] = {}  # which conversation lives in a row
        self._kept: dict[str, _Kept] = {}  # idle ones in the order in which they fell idle
        self._begun: dict[int, str] = {}  # who began with these tokens, by their hash
        self._eager = model.config._attn_implementation == "eager"
        self.computed = 0

    def admit(self, task: Task) -> bool:
        """Give a task a row, with as much of its conversation's past in it as is kept; False if none is free."""
        name = task.request.conversation
        kept = self._kept.get(name)
        if kept is None or kept.row is None:
            row = self._free_row(name)
            if row is None:
                return False
            kept = self._kept.setdefault(name, _Kept())
            if kept.parked is not None:
                self._unpark(kept, row)
            kept.row = row
            self._owners[row] = name
        kept.cached = min(_common(kept.ids, task.ids, kept.cached), len(task.ids) - 1)
        kept.ids, kept.busy = task.ids, True
        task.row, task.reused = self._row_of(kept), kept.cached
        return True

    def advance(self, tasks: Sequence[Task]) -> tuple[list[Task], torch.Tensor]:
        """Encode what is new in each task.

        Returns:
            The tasks in another order, and the logits [tasks, vocabulary], float32, after the last token of each.
        """
        fresh = [task for task in tasks if len(task.ids) - self._of(task).cached > 1]
        going = [task for task in tasks if len(task.ids) - self._of(task).cached == 1]
        ordered, logits = [], []
        if going:
            going.sort(key=lambda task: task.row)
            ordered += going
            logits.append(self._decode(going))
        while fresh:
            wave, fresh = self._inherit(fresh)
            for group in self._groups(wave):
                ordered += group
                logits.append(self._forward(group, [self._new(task) for task in group]))
        return ordered, torch.cat(logits).float() if len(logits) > 1 else logits[0].float()

    def finish(self, task: Task, poisoned: bool = False) -> None:
        """The task is over; its conversation falls idle. One whose cache holds NaN is wiped."""
        name = task.request.conversation
        kept = self._kept.pop(name)
        kept.busy = False
        if poisoned:
            self._owners.pop(self._row_of(kept))
            for buffer in self._buffers():
                buffer[kept.row] = 0
            return
        self._kept[name] = kept
        self._fit_budget()

    def forget(self, name: str) -> None:
        """Drop a conversation."""
        kept = self._kept.pop(name, None)
        if kept is not None and kept.row is not None:
            del self._owners[kept.row]

    def invalidate(self) -> None:
        """Drop all keys and values, because the weights have changed; tasks under way encode theirs again."""
        self._kept = {name: kept for name, kept in self._kept.items() if kept.busy}
        self._owners = {self._row_of(kept): name for name, kept in self._kept.items()}
        for kept in self._kept.values():
            kept.cached = 0
        for buffer in self._buffers():
            buffer.zero_()

    # What happens to rows.

    def _of(self, task: Task) -> _Kept:
        return self._kept[task.request.conversation]

    @staticmethod
    def _row_of(kept: _Kept) -> int:
        assert kept.row is not None
        return kept.row

    def _buffers(self) -> Iterable[torch.Tensor]:
        return [b for layer in self._layers if layer.is_initialized for b in (layer.keys, layer.values)]

    def _free_row(self, newcomer: str) -> int | None:
        unused = next((row for row in range(self._max_rows) if row not in self._owners), None)
        if unused is not None:
            if unused >= self._rows:
                self._resize(min(max(2 * self._rows, 4), self._max_rows), self._length)
            return unused
        for name, kept in self._kept.items():
            if not kept.busy and kept.row is not None and name != newcomer:
                row = kept.row
                kept.parked = [buffer[row, :, : kept.cached].clone() for buffer in self._buffers()]
                kept.row = None
                return row
        return None

    def _unpark(self, kept: _Kept, row: int) -> None:
        assert kept.parked is not None
        self._make_room(kept.cached)
        for buffer, states in zip(self._buffers(), kept.parked, strict=True):
            buffer[row, :, : kept.cached] = states
        kept.parked = None

    def _make_room(self, length: int) -> None:
        if length > self._length:
            self._resize(self._rows, max(length, self._length * 3 // 2) + 63 & ~63)

    def _resize(self, rows: int, length: int) -> None:
        self._rows, self._length = rows, length
        for layer in self._layers:
            layer.resize(rows, length)

    def _fit_budget(self) -> None:
        budget = self._budget
        if budget is None:
            cells = sum(b.shape[1] * b.shape[3] * b.element_size() for b in self._buffers())
            budget = self._idle_bytes // max(cells, 1)
        idle = {name: kept.cached for name, kept in self._kept.items() if not kept.busy}
        total = sum(idle.values())
        for name, cached in idle.items():
            if total <= budget:
                return
            total -= cached
            self.forget(name)

    # What conversations have in common.

    def _inherit(self, tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
        """Copy the keys and values of prefixes that other conversations have computed already.

        Returns:
            Those to encode now, and those that wait for one of these because they begin like it.
        """
        now: list[Task] = []
        wait: list[Task] = []
        begun: set[int] = set()
        for task in tasks:
            kept = self._of(task)
            if kept.cached > 0:
                now.append(task)
                continue
            whole, opening = hash(tuple(task.ids)), hash(tuple(task.ids[:_OPENING]))
            names = (task.request.parent, self._begun.get(whole), self._begun.get(opening))
            for source in [self._kept[name] for name in names if name in self._kept]:
                self._share(source, task)
            if len(task.ids) > _OPENING and (whole in begun or (kept.cached == 0 and opening in begun)):
                wait.append(task)
                continue
            now.append(task)
            begun |= {whole, opening}
            for key in (whole, opening):
                if self._begun.get(key) not in self._kept:
                    self._begun[key] = task.request.conversation
        while len(self._begun) > 8 * self._max_rows:
            del self._begun[next(iter(self._begun))]
        return now, wait

    def _share(self, source: _Kept, task: Task) -> None:
        kept = self._of(task)
        shared = min(_common(source.ids, task.ids, source.cached), len(task.ids) - 1)
        if source is kept or shared <= kept.cached:
            return
        self._make_room(shared)
        for n, buffer in enumerate(self._buffers()):
            past = buffer[source.row] if source.parked is None else source.parked[n]
            buffer[kept.row, :, kept.cached : shared] = past[:, kept.cached : shared]
        task.reused += shared - kept.cached
        kept.cached = shared

    # Forward passes.

    def _groups(self, tasks: Sequence[Task]) -> list[list[Task]]:
        """Encode all but the last stretch of long prompts; then put like with like, so that little is padding."""
        at_once = _TOKENS // _CHUNK
        while long := [task for task in tasks if self._new(task) > _CHUNK]:
            for n in range(0, len(long), at_once):
                self._forward(long[n : n + at_once], [_CHUNK] * len(long[n : n + at_once]))
        groups: list[list[Task]] = []
        longest = real = 0
        for task in sorted(tasks, key=self._new, reverse=True):
            new = self._new(task)
            size = len(groups[-1]) + 1 if groups else 0
            padding = longest * size - real - new
            if groups and padding <= max(_SLACK, (real + new) // 12) and longest * size <= _TOKENS:
                groups[-1].append(task)
                real += new
            else:
                groups.append([task])
                longest = real = new
        return groups

    def _new(self, task: Task) -> int:
        return len(task.ids) - self._of(task).cached

    def _forward(self, tasks: Sequence[Task], counts: Sequence[int]) -> torch.Tensor:
        """Encode the next `counts` tokens of each task; the logits after the last of them."""
        width = max(counts)
        kept = [self._of(task) for task in tasks]
        ids = [
            task.ids[k.cached : k.cached + n] + [0] * (width - n)
            for task, k, n in zip(tasks, kept, counts, strict=True)
        ]
        logits = self._run([task.row for task in tasks], [k.cached for k in kept], ids, [n - 1 for n in counts])
        for k, n in zip(kept, counts, strict=True):
            k.cached += n
        return logits

    def _decode(self, tasks: Sequence[Task]) -> torch.Tensor:
        """Encode the newest token of each task, in order of rows.

        Where most rows between the first and the last are at work, the idle ones among them go along: that reads the
        buffer in place, and what they write lies beyond their end.
        """
        first, last = tasks[0].row, tasks[-1].row
        at_work = {task.row: task for task in tasks}
        dense = last - first + 1 < 2 * len(tasks)
        rows = list(range(first, last + 1)) if dense else [task.row for task in tasks]
        starts, ids = [], []
        for row in rows:
            task = at_work.get(row)
            owner = self._kept[self._owners[row]] if row in self._owners else None
            starts.append(owner.cached if owner is not None else 0)
            ids.append([task.ids[-1] if task is not None else 0])
        logits = self._run(rows, starts, ids, None, visible=max(self._of(task).cached for task in tasks) + 1)
        for task in tasks:
            self._of(task).cached += 1
        if len(rows) > len(tasks):
            logits = logits[torch.tensor([row - first for row in at_work], device=logits.device)]
        return logits

    def _run(
        self,
        rows: list[int],
        starts: list[int],
        ids: list[list[int]],
        keep: list[int] | None,
        visible: int | None = None,
    ) -> torch.Tensor:
        """One forward pass.

        Args:
            rows: of the buffer, ascending.
            starts: in each row, the position of its first new token.
            ids: new tokens, equally many in each row.
            keep: which of them to give logits for, one a row; None for the last.
            visible: how many keys rows may see; by default all up to the farthest new token.
        """
        device = self._model.device
        width = len(ids[0])
        end = max(starts) + width
        self._make_room(end)
        length = visible or end
        positions = torch.tensor(starts, device=device)[:, None]
        if width > 1:
            positions = positions + torch.arange(width, device=device)
        span = slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == len(rows) else None
        plan = _Plan(torch.tensor(rows, device=device)[:, None], positions, span, length)
        for layer in self._layers:
            layer.plan = plan
        mask = torch.arange(length, device=device) <= positions[:, None, :, None]
        if self._eager:
            lowest = torch.finfo(self._model.dtype).min
            mask = torch.zeros(mask.shape, dtype=self._model.dtype, device=device).masked_fill(~mask, lowest)
        self.computed += width * len(rows)
        output = self._model(
            input_ids=torch.tensor(ids, device=device),
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1 if keep is None else torch.tensor(keep, device=device)[:, None],
        )
        return output.logits[:, -1]


def _common(one: Sequence[int], other: Sequence[int], limit: int) -> int:
    """How many of the first `limit` tokens two conversations share."""
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
