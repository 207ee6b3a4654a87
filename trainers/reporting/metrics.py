"""What a training run notes: where it stands, and what each update was like."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..data.rollouts import Rollouts
from ..data.segments import group_statistics
from ..monitor import Alarm


@dataclass
class Record:
    """One update, or the look before the first.

    Attributes:
        metrics: by name; what the names mean is told by `measured`, `Learner.update` and `loss.metrics`.
        alarms: what the monitor saw for the first time.
        notes: what else a person should read.
    """

    metrics: dict[str, float]
    alarms: list[Alarm] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Position:
    """Where a run stands.

    Attributes:
        update: updates made.
        batch: generation batches played.
        task: tasks drawn.
        rollbacks: how often the policy went back to an earlier checkpoint. The other numbers never do: what is
            undone was played all the same.
    """

    update: int = 0
    batch: int = 0
    task: int = 0
    rollbacks: int = 0


def measured(rollouts: Rollouts) -> dict[str, float]:
    """What the episodes of an update were like, before anything was selected.

    `success`, `return` (undiscounted, without penalties), `group_return_std` (mean over groups), `silent_groups`
    (fraction of groups whose returns are all equal), `valid_turns` (fraction of turns that kept to the format and
    held only actions that the world took), `truncated`, `turns` an episode, `reply_tokens` a turn, `penalty` an
    episode, `episodes`, `tokens` sampled.
    """
    returns = rollouts.returns(penalties=False)
    statistics = group_statistics(returns, rollouts.group, rollouts.groups)
    episodes = max(rollouts.episodes, 1)
    return {
        "success": float(rollouts.success.mean()),
        "return": float(returns.mean()),
        "group_return_std": float(statistics.std.mean()),
        "silent_groups": float(np.mean(statistics.std == 0)),
        "valid_turns": float(1.0 - rollouts.turn_invalid.mean()) if rollouts.turns else 0.0,
        "truncated": float(rollouts.truncated.mean()),
        "turns": rollouts.turns / episodes,
        "reply_tokens": rollouts.actions / max(rollouts.turns, 1),
        "penalty": float(rollouts.turn_penalty.sum() / episodes),
        "episodes": float(rollouts.episodes),
        "sampled_tokens": float(rollouts.actions),
    }


def json_lines(path: Path) -> list[Any]:
    """The records of a file, one a line: none without the file, and a line that is half written is left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
