"""One side of the training benchmark: `python -m arboretum.trainers.bench.update_ours FOLDER SETTINGS`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ..recipe import Recipe
from ..recipes import RECIPES
from .workload import EPS, LR, Stopwatch, Workload, keep_gradient, read, tokens_of, whole_row


def recipe_of(updates: int) -> Recipe:
    """GRPO as TRL computes it by default: mean over all tokens, no reference policy, one step a batch."""
    return RECIPES["grpo"].changed(
        {
            "credit.eps": EPS,
            "objective.aggregation": "token-mean",
            "objective.kl.coef": 0.0,
            "optimisation.updates": updates,
            "optimisation.lr": LR,
            "optimisation.weight_decay": 0.0,
            "optimisation.episodes_per_step": None,
        }
    )


def learner_of(folder: Path, recipe: Recipe, device: str | None, precision: str, micro_tokens: int | None) -> Any:
    """A learner of the model in `folder`."""
    from ..descent import make_descent
    from ..learner import Learner
    from ..policy import Policy, load_causal
    from ..processes import make_accelerator

    accelerator = make_accelerator(device, precision)
    causal, _ = load_causal(folder / "model", str(accelerator.device))
    descent = make_descent(accelerator, Policy(causal), recipe.optimisation)
    return Learner(recipe, descent, None, micro_tokens=micro_tokens, seed=0)


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

    from ..rollouts import from_episodes

    torch.set_num_threads(1)
    episodes, groups = read(folder)
    budget = None
    if same_budget:
        budget = workload.sequences * max(len(whole_row(episode)[0]) for episode in episodes)
    learner = learner_of(folder, recipe_of(workload.updates + 1), "cpu", "float32", budget)
    keep_gradient(learner.descent.optimizer.optimizer, folder / "ours.pt")
    rollouts = from_episodes(episodes, groups)
    watch = Stopwatch()
    for number in range(workload.updates + 1):
        with watch.update():
            learner.update(rollouts, update=number, temperature=1.0)
    return watch.report(tokens_of(episodes), micro_tokens=budget)


if __name__ == "__main__":
    settings = json.loads(sys.argv[2])
    same = settings.pop("same_budget", True)
    print(run(Path(sys.argv[1]), Workload(**settings), same))  # noqa: T201
