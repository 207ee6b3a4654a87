"""Order of tasks in a training run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...envs.seeding import stable_seed
from ...envs.tasks import GeneratedTasks
from ..data.segments import IntArray


def draw_tasks(tasks: Sequence[str], first: int, count: int, seed: int, limit: int | None = None) -> list[str]:
    """Return the tasks at positions `first` … `first + count - 1` of a run's endless sequence of tasks.

    An endless split is traversed from an offset that the seed determines, so no task repeats. A finite split is
    shuffled anew in every epoch, so each task occurs once per epoch.

    Args:
        tasks: Tasks of the split.
        first: Tasks drawn before.
        count: Tasks to draw.
        seed: Seed of the run.
        limit: Draw from the first so many tasks of the split only.
    """
    size = min(len(tasks), limit or len(tasks))
    if isinstance(tasks, GeneratedTasks) and limit is None:
        offset = stable_seed("tasks", seed) % size
        return [tasks[(offset + place) % size] for place in range(first, first + count)]
    drawn = []
    orders: dict[int, IntArray] = {}
    for place in range(first, first + count):
        epoch, position = divmod(place, size)
        if epoch not in orders:
            orders[epoch] = np.random.default_rng(stable_seed("epoch", seed, epoch)).permutation(size)
        drawn.append(tasks[int(orders[epoch][position])])
    return drawn
