"""What a checkpoint of a training run holds, written and read.

model/ or adapter/      the policy, as `transformers` or `peft` load it, with its tokenizer
trainer.pt              learner, random states, and where the run stood
metrics.jsonl           its history
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...envs.errors import DataError
from ..learning.learner import Learner
from ..learning.optimizer import Descent
from ..learning.policy import adapters, load_causal
from ..learning.sharding import put_state, whole_state
from ..reporting.metrics import Position

PARTS = {"learner", "adapters", "position", "rng", "device_rng"}


class Held(NamedTuple):
    """What is learnt, whole, so that any number of processes can resume.

    Attributes:
        weights: of the policy (of its adapters, where it has any).
        learner: see `Learner.state`.
    """

    weights: dict[str, torch.Tensor]
    learner: dict[str, Any]


@dataclass
class Kept:
    """Keeps a run, and puts it back.

    Attributes:
        descent, learner, tokenizer, position: of the run.
    """

    descent: Descent
    learner: Learner
    tokenizer: Any
    position: Position

    def held(self) -> Held:
        """What is to be written; all processes must ask for it together."""
        causal = self.descent.policy.causal
        weights = whole_state(causal)
        if adapters(causal) is not None:
            learnt = {name for name, weight in causal.named_parameters() if weight.requires_grad}
            weights = {name: weight for name, weight in weights.items() if name in learnt}
        return Held(weights, self.learner.state())

    def write(self, held: Held, history: Sequence[dict[str, float]], folder: Path) -> None:
        """Fill an empty folder."""
        causal = self.descent.policy.causal
        adapted = adapters(causal)
        if adapted is None:
            causal.save_pretrained(folder / "model", state_dict=held.weights)
        else:
            named = {f"base_model.model.{name}": weight for name, weight in held.weights.items()}
            adapted.save_pretrained(folder / "adapter", state_dict=named)
        self.tokenizer.save_pretrained(folder / ("model" if adapted is None else "adapter"))
        state = {
            "learner": held.learner,
            "adapters": None if adapted is None else held.weights,
            "position": vars(self.position),
            "rng": torch.get_rng_state(),
            "device_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        torch.save(state, folder / "trainer.pt")
        lines = [json.dumps(record) + "\n" for record in history]
        (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")

    def load(self, folder: Path) -> list[dict[str, float]]:
        """Continue from a checkpoint, whose weights were loaded with the model (adapters are loaded here).

        Returns:
            Its history.

        Raises:
            DataError: it is damaged.
        """
        state = _read(folder)
        try:
            text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
            history = [dict(json.loads(row)) for row in text.splitlines()]
        except (OSError, ValueError, TypeError) as error:
            raise DataError(folder, f"is no checkpoint that can be resumed ({error}).") from None
        self._put(state, state["adapters"])
        vars(self.position).update(state["position"])
        torch.set_rng_state(state["rng"])
        if torch.cuda.is_available() and state["device_rng"]:
            torch.cuda.set_rng_state_all(state["device_rng"])
        return history

    def go_back(self, folder: Path) -> None:
        """Take the policy, critic and optimizer of a checkpoint; the run's place, history and luck stay.

        Raises:
            DataError: it is damaged.
        """
        state = _read(folder)
        weights = state["adapters"]
        self._put(state, load_causal(folder / "model", "cpu")[0].state_dict() if weights is None else weights)

    def _put(self, state: dict[str, Any], weights: dict[str, torch.Tensor] | None) -> None:
        if weights is not None:
            put_state(self.descent.policy.causal, weights)
            self.descent.version += 1
        self.learner.load(state["learner"])


def _read(folder: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(folder / "trainer.pt", map_location="cpu", weights_only=True)
        if missing := PARTS - set(state):
            raise ValueError(f"trainer.pt lacks {', '.join(sorted(missing))}")
    except Exception as error:  # whatever a damaged archive raises
        raise DataError(folder, f"is no checkpoint that can be resumed ({error}).") from None
    return state
