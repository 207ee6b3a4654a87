"""Metrics of a run in each of several environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..data.rollouts import Rollouts
from .metrics import rollout_metrics

if TYPE_CHECKING:
    from ..sampling.collector import Collection


def env_metrics(collection: Collection, names: Sequence[str]) -> dict[str, float]:
    """Return `rollout_metrics` and `groups_kept` of each environment, named `<metric>/<environment>`.

    An environment without a complete episode in the update has no metrics but `episodes` and `failed`; a run on a
    single environment has none.

    Args:
        collection: Rollouts of the update.
        names: Names of the environments.
    """
    if len(names) == 1:
        return {}
    kept = set(collection.kept)
    found: dict[str, float] = {}
    for env, name in enumerate(names):
        groups = [
            (number, group)
            for number, batch in enumerate(collection.batches)
            for group in np.flatnonzero(batch.group_env == env).tolist()
        ]
        failures = collection.env_failures[env]
        own = {"episodes": 0.0, "failed": float(failures.failed)}
        if groups:
            parts = [
                batch.select(np.flatnonzero(batch.group_env == env))
                for batch in collection.batches
                if (batch.group_env == env).any()
            ]
            own = rollout_metrics(Rollouts.concatenate(parts), failures)
            own["groups_kept"] = sum(group in kept for group in groups) / len(groups)
        found |= {f"{metric}/{name}": value for metric, value in own.items()}
    return found


def env_names(history: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the names of the environments whose metrics a history has; none for a run on a single one."""
    prefixes = ("episodes/", "validation/success/")
    found = (
        name.removeprefix(prefix)
        for record in history
        for prefix in prefixes
        for name in record
        if name.startswith(prefix)
    )
    return list(dict.fromkeys(found))
