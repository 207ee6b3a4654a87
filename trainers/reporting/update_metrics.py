"""Metrics of one update: statistics of its rollouts, and the wall time of its phases."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..data.rollouts import Rollouts
from .env_metrics import env_metrics
from .metrics import rollout_metrics

if TYPE_CHECKING:
    from ..sampling.collector import Collection


def collection_metrics(
    collection: Collection, sampling: Mapping[str, float], envs: Sequence[str]
) -> dict[str, float]:
    """Return metrics of the rollouts of an update, before selection, in total and of each environment.

    Args:
        collection: Rollouts of the update.
        sampling: Metrics of their sampling; see `ReplyCounts.metrics` and `Delivery.metrics`.
        envs: Names of the environments.
    """
    rollouts = Rollouts.concatenate(collection.batches)
    metrics = rollout_metrics(rollouts, collection.failures)
    metrics |= collection.budget.metrics() | collection.trees
    metrics["batches"] = float(len(collection.batches))
    metrics |= sampling
    metrics["groups_kept"] = len(collection.kept) / rollouts.groups
    return metrics | env_metrics(collection, envs)


class UpdateTimer:
    """Timer of a run's updates; the seconds of all phases add up to the wall time of the run.

    Attributes:
        checkpoint: Seconds spent on checkpoints since the last update.
        validation: Seconds spent on validation since the last update.
    """

    def __init__(self) -> None:
        self.checkpoint = self.validation = 0.0
        self._started = self._sampled = self._ended = time.perf_counter()
        self._cpu_started = time.process_time()

    def restart(self) -> None:
        """Measure the time before the next update from now on."""
        self._ended = time.perf_counter()

    def begin(self) -> None:
        """Begin an update, with its sampling."""
        self._started, self._cpu_started = time.perf_counter(), time.process_time()

    def end_sampling(self) -> None:
        """End the sampling of an update, and begin its learning."""
        self._sampled = time.perf_counter()

    def end(self, metrics: Mapping[str, float], *, sampled_tokens: int, trained_tokens: int) -> dict[str, float]:
        """End an update, and return its seconds by phase, its CPU time, and its tokens per second.

        Args:
            metrics: Metrics of the update. `seconds/…` that credit rule and grafting report are not part of
                `seconds/learn`; `sampling_seconds` is the time that asynchronous sampling took.
            sampled_tokens: Tokens generated in the update.
            trained_tokens: Tokens of the selected rollouts, times the passes over them; 0 without an optimizer
                step, after which there is no rate of training.
        """
        ended = time.perf_counter()
        between, sampling = self._started - self._ended, self._sampled - self._started
        parts = sum(value for name, value in metrics.items() if name.startswith("seconds/"))
        found = {
            "seconds/sample": sampling,
            "seconds/learn": ended - self._sampled - parts,
            "seconds/checkpoint": self.checkpoint,  # of the checkpoint before this update
            # Between two updates, beside validation and checkpoints: logging, and the caller's own work.
            "seconds/rest": max(between - self.checkpoint - self.validation, 0.0),
            "sampled_tokens_per_second": sampled_tokens / max(metrics.get("sampling_seconds", sampling), 1e-9),
            "cpu_seconds": time.process_time() - self._cpu_started,
        }
        if trained_tokens:
            found["trained_tokens_per_second"] = trained_tokens / max(ended - self._sampled, 1e-9)
        self.checkpoint = self.validation = 0.0
        self._ended = ended
        return found
