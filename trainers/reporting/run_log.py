"""Records of a run as it makes them: the files in its folder, and experiment trackers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...agents.episode import Episode
from ..checkpoints.run_folder import METRICS_FILE
from ..config.run import TrainingConfig
from ..config.serialize import flatten, to_plain
from .metrics import MetricsFile
from .samples import SampleEpisodes
from .trees import TreeFile

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedTokenizerBase

    from ..learning.preparation import Prepared
    from ..sampling.grafting import GraftText


class RunLog:
    """Metrics, sample episodes and trees of a run, in its folder, and its trackers.

    All processes call the methods; only the main process writes files.

    Args:
        config: Configuration of the run.
        tokenizer: Tokenizer of the model.
        accelerator: Accelerate's view of the processes.
    """

    def __init__(
        self, config: TrainingConfig, tokenizer: PreTrainedTokenizerBase, accelerator: Accelerator
    ) -> None:
        self._config = config
        self._accelerator = accelerator
        self._writes_files = bool(accelerator.is_main_process)
        self._metrics = MetricsFile(config.out / METRICS_FILE)
        self._samples = SampleEpisodes(config.out, tokenizer)
        self._trees = TreeFile(config, tokenizer)

    def open(self, history: Sequence[Mapping[str, float]], update: int) -> None:
        """Drop what is recorded of later updates, which will be made again, and start the trackers.

        Args:
            history: Metrics of all records so far; empty in a new run.
            update: Updates made.
        """
        if self._writes_files:
            self._config.out.mkdir(parents=True, exist_ok=True)
            self._metrics.restart(history)
            # The last validation can be missing from the history: it failed, and will be made again.
            self._samples.truncate(min(update, int(history[-1]["update"])) if history else -1)
            self._trees.truncate(update)
        if self._config.trackers:
            settings = {
                name: value if isinstance(value, (str, int, float)) else json.dumps(value)
                for name, value in flatten(to_plain(self._config)).items()
            }
            self._accelerator.init_trackers("trackers", config=settings)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Record the metrics of an update, or of the validation before the first."""
        if self._writes_files:
            self._metrics.append(metrics)
        if self._config.trackers:
            self._accelerator.log(metrics, step=int(metrics["update"]))

    def add_samples(self, update: int, episodes: Iterable[Episode]) -> None:
        """Record sample episodes of the validation after an update."""
        if self._writes_files:
            self._samples.add(update, episodes)

    def add_trees(
        self, update: int, prepared: Prepared, grafts: Sequence[GraftText] = (), *, is_last: bool
    ) -> None:
        """Record the trees of an update, if they are due; see `TreeFile.add`."""
        if self._writes_files:
            self._trees.add(update, prepared.rollouts, prepared.credit, grafts, is_last=is_last)

    def close(self) -> None:
        """Release the trackers."""
        if self._config.trackers:
            self._accelerator.end_training()
