"""Any architecture, one conversation at a time, every turn encoded from its beginning.

For models whose layers keep something else than plain keys and values (sliding windows shorter than the context,
state spaces, linear attention): their caches cannot be cut, forked or batched in rows of unequal length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .generation import Task


class Reencoding:
    """The same interface as `Rows`, without memory between turns.

    Attributes:
        computed: tokens that went through the model.
    """

    keeps = False

    def __init__(self, model: Any) -> None:
        self._model = model
        self._past: dict[str, tuple[int, dict[str, Any]]] = {}  # tokens encoded, and the model's own cache
        self.computed = 0

    def admit(self, task: Task) -> bool:
        """There is always room."""
        return True

    def advance(self, tasks: Sequence[Task]) -> tuple[list[Task], torch.Tensor]:
        """The tasks, and the logits [tasks, vocabulary], float32, after the last token of each."""
        return list(tasks), torch.cat([self._last(task) for task in tasks]).float()

    def finish(self, task: Task, poisoned: bool = False) -> None:
        """The task is over."""
        self._past.pop(task.request.conversation, None)

    def forget(self, name: str) -> None:
        """Drop a conversation."""
        self._past.pop(name, None)

    def invalidate(self) -> None:
        """Drop all caches, because the weights have changed."""
        self._past.clear()

    def close(self) -> None:
        """Let go of the model and all that was computed."""
        self._past.clear()
        self._model = None

    def _last(self, task: Task) -> torch.Tensor:
        done, past = self._past.get(task.request.conversation, (0, {}))
        ids = torch.tensor([task.ids[done:]], device=self._model.device)
        self.computed += ids.shape[1]
        output = self._model(input_ids=ids, use_cache=True, **past)
        # State-space models call their cache otherwise; one that returns none is run over the whole each time.
        past = {name: output[name] for name in ("past_key_values", "cache_params") if output.get(name) is not None}
        self._past[task.request.conversation] = (len(task.ids) if past else 0, past)
        logits: torch.Tensor = output.logits[:, -1]
        return logits
