"""Contents of a checkpoint of a training run, written and read.

model/ or adapter/      policy, as `transformers` or `peft` load it, with its tokenizer
trainer.pt              learner, random states, and counters of the run
sampling.pt             weights that sample the next rollouts, if they are not the policy's (asynchronous sampling)
metrics.jsonl           metrics of all updates
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...envs.errors import DataError
from ..learning.learner import Learner
from ..learning.optimizer import PolicyOptimizer
from ..learning.policy import load_trainable_model, peft_wrapper
from ..learning.sharding import full_state_dict, load_full_state_dict
from ..sampling.asynchronous import AsynchronousSampling
from ..state import TrainerState
from .run_folder import METRICS_FILE
from .store import verify_checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLING_FILE = "sampling.pt"
KEYS = {"learner", "adapters", "state", "rng", "device_rng"}
LEARNER_KEYS = {"optimizer", "kl_coef", "reference", "preferences"}


class FullState(NamedTuple):
    """Unsharded state of policy and learner, which any number of processes can load.

    Attributes:
        weights: Weights of the policy (of its adapters, if it has any).
        learner: See `Learner.state_dict`.
    """

    weights: dict[str, torch.Tensor]
    learner: dict[str, Any]


@dataclass
class CheckpointContents:
    """Writer and reader of the contents of checkpoints.

    Attributes:
        optimizer, learner, tokenizer, state: Of the run.
        ahead: Asynchronous sampling of the run; None without it.
    """

    optimizer: PolicyOptimizer
    learner: Learner
    tokenizer: PreTrainedTokenizerBase
    state: TrainerState
    ahead: AsynchronousSampling | None = None

    def full_state(self) -> FullState:
        """Return what `write` writes; a collective operation of all processes."""
        return FullState(trained_weights(self.optimizer), self.learner.state_dict())

    def write(self, full: FullState, history: Sequence[dict[str, float]], folder: Path) -> None:
        """Write a checkpoint into an empty folder."""
        model = self.optimizer.policy.model
        wrapper = peft_wrapper(model)
        if wrapper is None:
            model.save_pretrained(folder / "model", state_dict=full.weights)
        else:
            weights = {f"base_model.model.{name}": weight for name, weight in full.weights.items()}
            wrapper.save_pretrained(folder / "adapter", state_dict=weights)
        self.tokenizer.save_pretrained(folder / ("model" if wrapper is None else "adapter"))
        state = {
            "learner": full.learner,
            "adapters": None if wrapper is None else full.weights,
            "state": vars(self.state),
            "rng": torch.get_rng_state(),
            "device_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        torch.save(state, folder / "trainer.pt")
        if self.ahead is not None:
            torch.save(self.ahead.state_dict(), folder / SAMPLING_FILE)
        lines = [json.dumps(record) + "\n" for record in history]
        (folder / METRICS_FILE).write_text("".join(lines), encoding="utf-8")

    def load(self, folder: Path) -> list[dict[str, float]]:
        """Continue from a checkpoint, whose weights were loaded with the model (adapters are loaded here).

        Returns:
            Metrics of all updates before it.

        Raises:
            DataError: The checkpoint is damaged.
        """
        state = _read(folder)
        try:
            lines = (folder / METRICS_FILE).read_text(encoding="utf-8").splitlines()
            history = [dict(json.loads(line)) for line in lines]
        except (OSError, ValueError, TypeError) as error:
            raise DataError(folder, f"is not a checkpoint that can be resumed ({error}).") from None
        self._load_weights(state, state["adapters"])
        if self.ahead is not None and (folder / SAMPLING_FILE).exists():
            self.ahead.load_state_dict(torch.load(folder / SAMPLING_FILE, map_location="cpu", weights_only=True))
        vars(self.state).update(state["state"])
        torch.set_rng_state(state["rng"])
        # The run may continue on a machine with fewer devices.
        for device, rng in enumerate(state["device_rng"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(rng, device)
        return history

    def roll_back(self, folder: Path) -> None:
        """Load policy, critic and optimizer of a checkpoint; counters, history and random states stay.

        Raises:
            DataError: The checkpoint is damaged.
        """
        state = _read(folder)
        weights = state["adapters"]
        if weights is None:
            weights = load_trainable_model(folder / "model", "cpu")[0].state_dict()
        skipped = self.optimizer.skipped
        self._load_weights(state, weights)
        self.optimizer.skipped = skipped

    def _load_weights(self, state: dict[str, Any], weights: dict[str, torch.Tensor] | None) -> None:
        if weights is not None:
            load_full_state_dict(self.optimizer.policy.model, weights)
            self.optimizer.version += 1
        self.learner.load_state_dict(state["learner"])


def trained_weights(optimizer: PolicyOptimizer, *, always_filter: bool = False) -> dict[str, torch.Tensor]:
    """Return the full weights of the policy, or of its adapters alone; a collective operation of all processes.

    Args:
        optimizer: Policy in training.
        always_filter: Leave out frozen weights of a policy without adapters, too.
    """
    model = optimizer.policy.model
    weights = full_state_dict(model)
    if always_filter or peft_wrapper(model) is not None:
        trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
        weights = {name: weight for name, weight in weights.items() if name in trained}
    return weights


def _read(folder: Path) -> dict[str, Any]:
    verify_checkpoint(folder)
    try:
        state: dict[str, Any] = torch.load(folder / "trainer.pt", map_location="cpu", weights_only=True)
        if missing := (KEYS - set(state)) or (LEARNER_KEYS - set(state["learner"])):
            names = ", ".join(sorted(missing))
            raise ValueError(
                f"trainer.pt lacks {names}; the version of Arboretum that wrote it may be able to resume the run"
            )
    except Exception as error:  # a damaged archive can raise anything
        raise DataError(folder, f"is not a checkpoint that can be resumed ({error}).") from None
    return state
