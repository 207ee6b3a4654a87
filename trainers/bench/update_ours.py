"""Update benchmark of our learner: `python -m arboretum.trainers.bench.update_ours FOLDER SETTINGS`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..algorithms.credit.group import Group
from ..algorithms.objectives.settings import Objective
from ..algorithms.recipe import Optimization, Recipe
from .workload import (
    EPS,
    LR,
    Stopwatch,
    Workload,
    count_tokens,
    episode_tokens,
    read_episodes,
    save_first_gradient,
)

if TYPE_CHECKING:
    from ..learning.learner import Learner


def make_recipe(updates: int) -> Recipe:
    """Return GRPO as TRL computes it by default: mean over all tokens, no reference policy, one step per batch.

    It is independent of the table of recipes, whose numbers may change.
    """
    return Recipe(
        name="grpo as in TRL",
        about="The computation of both systems in the benchmark.",
        credit=Group(scale="group", eps=EPS),
        objective=Objective(clip_low=0.2, clip_high=0.2, aggregation="token-mean"),
        optimization=Optimization(updates=updates, lr=LR, weight_decay=0.0),
    )


def make_learner(
    folder: Path, recipe: Recipe, device: str | None, precision: str, microbatch_tokens: int | None
) -> Learner:
    """Return a learner for the model that `Workload.write` wrote.

    Args:
        folder: Folder of the workload.
        recipe: Recipe of the updates.
        device, precision, microbatch_tokens: See `HardwareConfig`.
    """
    from ..learning.distributed import make_accelerator, make_optimizer
    from ..learning.learner import Learner
    from ..learning.policy import Policy, load_trainable_model

    accelerator = make_accelerator(device, precision)
    model, _ = load_trainable_model(folder / "model", str(accelerator.device))
    optimizer = make_optimizer(accelerator, Policy(model), recipe.optimization)
    return Learner(recipe, optimizer, None, microbatch_tokens=microbatch_tokens, seed=0)


def run(folder: Path, workload: Workload, same_budget: bool) -> str:
    """Make `updates` + 1 updates from the same episodes, and return the report of the stopwatch.

    The time covers all of `Learner.update`: advantages, layout, forward, backward, clipping, AdamW and metrics.

    Args:
        folder: Folder of the workload.
        workload: Number of updates and of sequences per micro-batch.
        same_budget: Allow a micro-batch as many tokens as TRL's: its sequences times the longest row. False uses
            the default.
    """
    import torch

    from ..data.episodes import from_episodes

    torch.set_num_threads(1)
    episodes, groups = read_episodes(folder)
    budget = None
    if same_budget:
        budget = workload.sequences * max(len(episode_tokens(episode)[0]) for episode in episodes)
    learner = make_learner(folder, make_recipe(workload.updates + 1), "cpu", "float32", budget)
    save_first_gradient(learner.optimizer.torch_optimizer, folder / "ours.pt")
    rollouts = from_episodes(episodes, groups)
    stopwatch = Stopwatch()
    for number in range(workload.updates + 1):
        with stopwatch.update():
            learner.update(rollouts, update=number, temperature=1.0)
    return stopwatch.report(count_tokens(episodes), microbatch_tokens=budget)


if __name__ == "__main__":
    settings = json.loads(sys.argv[2])
    same_budget = settings.pop("same_budget", True)
    print(run(Path(sys.argv[1]), Workload(**settings), same_budget))  # noqa: T201
