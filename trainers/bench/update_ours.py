"""One side of the training benchmark: `python -m arboretum.trainers.bench.update_ours FOLDER SETTINGS`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ..algorithms.credit.group import Group
from ..algorithms.objectives.settings import Objective
from ..algorithms.recipe import Optimization, Recipe
from .workload import EPS, LR, Stopwatch, Workload, keep_gradient, read, tokens_of, whole_row


def recipe_of(updates: int) -> Recipe:
    """GRPO as TRL computes it by default: mean over all tokens, no reference policy, one step a batch.

    Written out instead of taken from the table of recipes, whose numbers may change.
    """
    return Recipe(
        name="grpo as in TRL",
        about="What both sides of the benchmark compute.",
        credit=Group(scale="group", eps=EPS),
        objective=Objective(clip_low=0.2, clip_high=0.2, aggregation="token-mean"),
        optimization=Optimization(updates=updates, lr=LR, weight_decay=0.0),
    )


def learner_of(
    folder: Path, recipe: Recipe, device: str | None, precision: str, microbatch_tokens: int | None
) -> Any:
    """A learner of the model in `folder`."""
    from ..learning.distributed import make_accelerator, make_optimizer
    from ..learning.learner import Learner
    from ..learning.policy import Policy, load_trainable_model

    accelerator = make_accelerator(device, precision)
    model, _ = load_trainable_model(folder / "model", str(accelerator.device))
    optimizer = make_optimizer(accelerator, Policy(model), recipe.optimization)
    return Learner(recipe, optimizer, None, microbatch_tokens=microbatch_tokens, seed=0)


def run(folder: Path, workload: Workload, same_budget: bool) -> str:
    """Learn from the episodes `updates` + 1 times; what is timed is `Learner.update` as a whole.

    That is advantages, layout, forward, backward, clipping, AdamW and the metrics.

    Args:
        folder: of `Workload.write`.
        workload: how often.
        same_budget: let a micro-batch hold as much as TRL's may, its sequences times the longest row; else what
            is usual.
    """
    import torch

    from ..data.rollouts import from_episodes

    torch.set_num_threads(1)
    episodes, groups = read(folder)
    budget = None
    if same_budget:
        budget = workload.sequences * max(len(whole_row(episode)[0]) for episode in episodes)
    learner = learner_of(folder, recipe_of(workload.updates + 1), "cpu", "float32", budget)
    keep_gradient(learner.optimizer.torch_optimizer, folder / "ours.pt")
    rollouts = from_episodes(episodes, groups)
    watch = Stopwatch()
    for number in range(workload.updates + 1):
        with watch.update():
            learner.update(rollouts, update=number, temperature=1.0)
    return watch.report(tokens_of(episodes), microbatch_tokens=budget)


if __name__ == "__main__":
    settings = json.loads(sys.argv[2])
    same = settings.pop("same_budget", True)
    print(run(Path(sys.argv[1]), Workload(**settings), same))  # noqa: T201
