"""Metrics of a training run: of its rollouts, and the file that records them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...envs.files import write_atomic
from ..data.rollouts import Rollouts
from ..data.segments import group_statistics, sum_by_group
from ..monitor import Alarm

if TYPE_CHECKING:
    from ..sampling.failures import Failures


@dataclass
class UpdateRecord:
    """Record of one update, or of the validation before the first.

    Attributes:
        metrics: Metrics by name; see `rollout_metrics`, `Learner.update` and `loss.reduce_metrics`.
        alarms: Signs of collapse that appeared with this update.
        notes: Further messages for the user.
    """

    metrics: dict[str, float]
    alarms: list[Alarm] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note_failures(self, failures: Failures, kind: str) -> None:
        """Add a note of failures, if there are any; see `Failures.describe`."""
        if failures.failed:
            self.notes.append(f"update {self.metrics['update']:g}: {failures.describe(kind)}")


class MetricsFile:
    """File `metrics.jsonl` of a run, one record a line.

    Args:
        path: The file; created by `restart`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def restart(self, history: Sequence[Mapping[str, float]]) -> None:
        """Replace the contents by the records of a checkpoint: later ones will be made again."""
        write_atomic(self._path, "".join(json.dumps(record) + "\n" for record in history))

    def append(self, record: Mapping[str, float]) -> None:
        """Append a record."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def rollout_metrics(rollouts: Rollouts, failures: Failures | None = None) -> dict[str, float]:
    """Return statistics of the episodes of an update, before selection.

    Of all episodes: `failed` (number of those that ended with an error) and `success` (fraction; failed ones are
    unsolved). Of the others: `return` (undiscounted, without penalties), `group_return_std` (mean over groups),
    `silent_groups` (fraction of groups whose returns are all equal), `truncated` (fraction of episodes), `turns`
    per episode, `penalty` per episode, `group_penalty_std` (as `group_return_std`, of the penalties alone),
    `penalty_groups` (fraction of groups whose returns are all equal and whose penalties are not), and `episodes`;
    a turn that episodes share counts in each of them. Of the distinct turns: `valid_turns` (fraction of those in
    the required format with only legal actions), and `reply_tokens` per turn.

    Args:
        rollouts: Complete episodes.
        failures: Failures among all sampled episodes, of which a sampler may have returned a part; None if there
            are none.
    """
    failed = 0 if failures is None else failures.failed
    complete = 1.0 if failures is None else 1.0 - failed / max(failures.episodes, 1)
    returns = rollouts.returns(penalties=False)
    statistics = group_statistics(returns, rollouts.group, rollouts.groups)
    paths = rollouts.paths
    penalties = sum_by_group(rollouts.turn_penalty[paths.turn], paths.episode, rollouts.episodes)
    penalty_std = group_statistics(penalties, rollouts.group, rollouts.groups).std
    episodes = max(rollouts.episodes, 1)
    return {
        "failed": float(failed),
        "success": float(rollouts.success.mean()) * complete,
        "return": float(returns.mean()),
        "group_return_std": float(statistics.std.mean()),
        "silent_groups": float(np.mean(statistics.std == 0)),
        "valid_turns": float(1.0 - rollouts.turn_invalid.mean()) if rollouts.turns else 0.0,
        "truncated": float(rollouts.truncated.mean()),
        "turns": len(paths.turn) / episodes,
        "reply_tokens": rollouts.actions / max(rollouts.turns, 1),
        "penalty": float(penalties.sum() / episodes),
        "group_penalty_std": float(penalty_std.mean()),
        "penalty_groups": float(np.mean((statistics.std == 0) & (penalty_std > 0))),
        "episodes": float(rollouts.episodes),
    }
