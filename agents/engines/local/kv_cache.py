"""Which conversation's keys and values lie where, and what has to be computed next.

A conversation keeps its row between turns for as long as nobody else needs it: a turn then costs its new tokens,
and nothing is copied. When the row is needed, the idle conversation's keys and values are parked at their exact
length. When idle conversations hold more than a budget of tokens, those idle longest are dropped, and encoded anew
should they come back. Conversations that begin alike compute what they share once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .generation import Task
from .kv_buffer import Buffer

# Prefixes shorter than this are not worth sharing.
_OPENING = 32
# Padding, in tokens, that costs less than another forward pass.
_SLACK = 32
# Longest stretch of one prompt, and most tokens of all, in one forward pass: bounds activations and masks.
_CHUNK, _TOKENS = 512, 8192


@dataclass(slots=True, eq=False)
class _Kept:
    """What is kept of a conversation.

    Attributes:
        ids: its tokens; the list of the task under way, if one is.
        cached: how many of them have keys and values.
        row: where these are; -1 where they are parked.
        parked: what `Buffer.take` gave.
        busy: whether a request is under way.
    """

    ids: list[int] = field(default_factory=list)
    cached: int = 0
    row: int = -1
    parked: list[torch.Tensor] | None = None
    busy: bool = False


class Rows:
    """The caches of all conversations.

    Args:
        model: a causal language model all of whose layers keep plain keys and values.
        layers: how many layers do.
        max_rows: most conversations in one forward pass.
        budget: most tokens that idle conversations may keep; None for what `idle_bytes` hold.
        idle_bytes: see `budget`.
    """

    keeps = True

    def __init__(self, model: Any, layers: int, max_rows: int, budget: int | None, idle_bytes: int) -> None:
        self._buffer = Buffer(model, layers)
        self._max_rows, self._budget, self._idle_bytes = max_rows, budget, idle_bytes
        self._kept: dict[str, _Kept] = {}  # idle ones in the order in which they fell idle
        self._owners: dict[int, str] = {}  # which conversation lives in a row
        self._begun: dict[int, str] = {}  # who began with these tokens, by their hash

    @property
    def computed(self) -> int:
        """Tokens that went through the model, padding included."""
        return self._buffer.computed

    @property
    def idle_tokens(self) -> int:
        """Tokens whose keys and values are kept for idle conversations."""
        return sum(kept.cached for kept in self._kept.values() if not kept.busy)

    def admit(self, task: Task) -> bool:
        """Give a task a row, with as much of its conversation's past in it as is kept; False if none is free."""
        name = task.request.conversation
        kept = self._kept.get(name)
        if kept is None or kept.row < 0:
            row = self._free_row()
            if row is None:
                return False
            kept = self._kept.setdefault(name, _Kept())
            if kept.parked is not None:
                self._buffer.put(row, kept.parked, 0, kept.cached)
                kept.parked = None
            kept.row = row
            self._owners[row] = name
        # The last token is always encoded, for its logits.
        kept.cached = min(_common(kept.ids, task.ids, kept.cached), len(task.ids) - 1)
        kept.ids, kept.busy = task.ids, True
        task.row, task.reused, task.returning = kept.row, kept.cached, kept.cached > 0
        return True

    def advance(self, tasks: Sequence[Task]) -> tuple[list[Task], torch.Tensor]:
        """Encode what is new in each task.

        Returns:
            The tasks in another order, and the logits [tasks, vocabulary], float32, after the last token of each.
        """
        going = sorted((task for task in tasks if self._new(task) == 1), key=_row)
        fresh = [task for task in tasks if self._new(task) > 1]
        ordered, logits = [*going], [self._decode(going)] if going else []
        while fresh:
            wave, fresh = self._inherit(fresh)
            for group in self._groups(wave):
                ordered += group
                logits.append(self._encode(group, [self._new(task) for task in group]))
        return ordered, (torch.cat(logits) if len(logits) > 1 else logits[0]).float()

    def finish(self, task: Task, poisoned: bool = False) -> None:
        """The task is over; its conversation falls idle. One whose keys and values may hold NaN is wiped."""
        name = task.request.conversation
        if poisoned:
            self._buffer.wipe(task.row)
            self.forget(name)
            return
        kept = self._kept.pop(name)
        kept.busy = False
        self._kept[name] = kept
        self._fit_budget()

    def forget(self, name: str) -> None:
        """Drop a conversation."""
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._owners.pop(kept.row, None)

    def invalidate(self) -> None:
        """Drop all keys and values, because the weights have changed; tasks under way encode theirs again."""
        for name in [name for name, kept in self._kept.items() if not kept.busy]:
            self.forget(name)
        for kept in self._kept.values():
            kept.cached = 0
        self._buffer.wipe()

    def close(self) -> None:
        """Let go of the model and all that was computed."""
        self._kept.clear()
        self._owners.clear()
        self._buffer.close()

    # Where conversations live.

    def _of(self, task: Task) -> _Kept:
        return self._kept[task.request.conversation]

    def _new(self, task: Task) -> int:
        return len(task.ids) - self._of(task).cached

    def _free_row(self) -> int | None:
        unused = next((row for row in range(self._max_rows) if row not in self._owners), None)
        if unused is not None:
            if unused >= self._buffer.rows:
                self._buffer.reserve(min(max(2 * self._buffer.rows, 4), self._max_rows), 0)
            return unused
        for kept in self._kept.values():
            if not kept.busy and kept.row >= 0:
                row, kept.row = kept.row, -1
                kept.parked = self._buffer.take(row, kept.cached)
                del self._owners[row]
                return row
        return None

    def _fit_budget(self) -> None:
        budget = self._budget
        if budget is None:
            budget = self._idle_bytes // max(self._buffer.token_bytes, 1)
        excess = self.idle_tokens - budget
        for name, kept in list(self._kept.items()):
            if excess <= 0:
                return
            if not kept.busy:
                excess -= kept.cached
                self.forget(name)

    # What conversations have in common.

    def _inherit(self, tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
        """Give new conversations the keys and values of prefixes that others have computed already.

        Returns:
            Those to encode now, and those that wait for one of these because they begin like it.
        """
        now: list[Task] = []
        wait: list[Task] = []
        begun: set[int] = set()
        for task in tasks:
            kept = self._of(task)
            if task.returning:
                now.append(task)
                continue
            whole, opening = hash(tuple(task.ids)), hash(tuple(task.ids[:_OPENING]))
            for name in (task.request.parent, self._begun.get(whole), self._begun.get(opening)):
                if name is not None and name in self._kept:
                    self._share(self._kept[name], task)
            gains = (whole in begun and self._new(task) > 1) or (opening in begun and kept.cached == 0)
            if gains and len(task.ids) > _OPENING:
                wait.append(task)
                continue
            now.append(task)
            for key in (whole, opening):
                begun.add(key)
                if self._begun.get(key) not in self._kept:
                    self._begun[key] = task.request.conversation
        while len(self._begun) > 8 * self._max_rows:
            del self._begun[next(iter(self._begun))]
        return now, wait

    def _share(self, source: _Kept, task: Task) -> None:
        kept = self._of(task)
        shared = min(_common(source.ids, task.ids, source.cached), len(task.ids) - 1)
        if shared <= kept.cached:
            return
        if source.parked is not None:
            self._buffer.put(kept.row, source.parked, kept.cached, shared)
        else:
            self._buffer.share(source.row, kept.row, kept.cached, shared)
        task.reused += shared - kept.cached
        kept.cached = shared

    # What is computed together.

    def _groups(self, tasks: Sequence[Task]) -> list[list[Task]]:
        """Encode all but the last stretch of long prompts; then put like with like, so that little is padding."""
        tasks = sorted(tasks, key=_row)
        while long := [task for task in tasks if self._new(task) > _CHUNK]:
            for n in range(0, len(long), _TOKENS // _CHUNK):
                some = long[n : n + _TOKENS // _CHUNK]
                self._encode(some, [_CHUNK] * len(some))
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
        return [sorted(group, key=_row) for group in groups]

    def _encode(self, tasks: Sequence[Task], counts: Sequence[int]) -> torch.Tensor:
        """Encode the next `counts` tokens of tasks in order of rows; gives the logits after the last of them."""
        width = max(counts)
        kept = [self._of(task) for task in tasks]
        ids = [k.ids[k.cached : k.cached + n] + [0] * (width - n) for k, n in zip(kept, counts, strict=True)]
        ends = [n - 1 for n in counts] if min(counts) < width else None
        logits = self._buffer.run([k.row for k in kept], [k.cached for k in kept], ids, ends)
        for k, n in zip(kept, counts, strict=True):
            k.cached += n
        return logits

    def _decode(self, tasks: Sequence[Task]) -> torch.Tensor:
        """Encode the newest token of each task, in order of rows.

        Where most rows between the first and the last are at work, the idle ones among them go along: that reads
        the buffer in place, and what they write lies beyond their end.
        """
        first, last = tasks[0].row, tasks[-1].row
        newest = {task.row: task.ids[-1] for task in tasks}
        dense = last - first + 1 < 2 * len(tasks)
        rows = list(range(first, last + 1)) if dense else list(newest)
        starts = [self._kept[self._owners[row]].cached if row in self._owners else 0 for row in rows]
        visible = max(self._of(task).cached for task in tasks) + 1
        logits = self._buffer.run(rows, starts, [[newest.get(row, 0)] for row in rows], visible=visible)
        for task in tasks:
            self._of(task).cached += 1
        if len(rows) > len(newest):
            logits = logits[torch.tensor([row - first for row in newest], device=logits.device)]
        return logits


def _row(task: Task) -> int:
    return task.row


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
