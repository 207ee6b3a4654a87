"""How noisy are the policy gradients of several credit rules, on the same episodes and before any training?

    python examples/gradient_noise.py                                # a lake; about seven minutes
    python examples/gradient_noise.py --study trees --env ALFWorld --batches 24
    python examples/gradient_noise.py --study my_study.yaml --env Mine --rules rloo,grpo,own_rule

Needs the extra `lm`. Samples batches of episodes with a study's warm start, and computes the gradient of each
batch under each rule. Products of gradients of different batches, whose noise is independent, give the squared
length of the mean gradient and the noise around it without bias. Prints a table with a row for each rule:

* signal: squared length of the mean gradient over the noise of one batch, multiplied by 100. An optimizer that
  normalizes its steps, as Adam does, makes progress by this ratio, whatever the scale of the advantages is.
* against RLOO: the ratio of the two signals, with a 95 % interval over batches (bootstrap).
* direction: cosine of the mean gradient with that of RLOO, which is an unbiased estimate of the gradient of the
  return, up to the weights of turns. It is an estimate too, and with few batches may exceed 1.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from arboretum.trainers.algorithms.recipes import get_recipe
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.learning.optimizer import Step
from arboretum.trainers.sampling.policy_probe import LearnerProbe
from arboretum.trainers.study.definition import Study, Trial
from arboretum.trainers.study.parsing import load_study
from arboretum.trainers.trainer import Trainer

UNBIASED = "rloo"


def gradients(trainer: Trainer, rules: list[str], batches: int) -> Iterator[list[torch.Tensor]]:
    """Yield the flat gradient of each rule for one batch after the other; the weights stay as they are."""
    learner, optimizer = trainer.learner, trainer.optimizer
    found: list[torch.Tensor] = []

    def keep_gradient() -> Step:
        parts = [weight.grad for weight in optimizer.policy.parameters() if weight.grad is not None]
        found.append(torch.cat([part.flatten() for part in parts]))
        optimizer.torch_optimizer.zero_grad()
        return Step(0.0, 0.0, False)

    optimizer.step = keep_gradient
    recipe, size = learner.recipe, sum(p.numel() for p in optimizer.policy.parameters() if p.requires_grad)
    for number in range(batches):
        rollouts = recipe.rewards.apply(Rollouts.concatenate(trainer.collector.collect(1.0).batches))
        for rule in rules:
            learner.recipe = replace(recipe, credit=get_recipe(rule).credit)
            before = len(found)
            probe = LearnerProbe(learner, trainer.sampler, 1.0) if learner.recipe.credit.needs_policy else None
            learner.update(rollouts, update=number, temperature=1.0, policy=probe)
            if len(found) == before:  # Equal returns in every group: no step, thus no gradient.
                found.append(torch.zeros(size))
        yield found
        found.clear()


def estimate(products: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the signal of each rule, and the cosine of each mean gradient with the first rule's.

    Args:
        products: Dot products [rules, rules, batches, batches] of gradients.
        chosen: Batches to use; one that is repeated is not independent of its copy.
    """
    part = products[:, :, chosen][:, :, :, chosen]
    different = chosen[:, None] != chosen[None, :]
    means = (part * different).sum((2, 3)) / different.sum()
    rules = np.arange(len(products))
    power = part[rules, rules][:, np.arange(len(chosen)), np.arange(len(chosen))].mean(1)
    squares = means[rules, rules]
    with np.errstate(invalid="ignore", divide="ignore"):
        return squares / (power - squares), means[0] / np.sqrt(squares[0] * squares)


def measure(study: Study, env: str, rules: list[str], batches: int) -> np.ndarray:
    """Return the dot products [rules, rules, batches, batches] of all gradients."""
    with TemporaryDirectory() as folder:
        config = study.config(Trial(env, "grpo", seed=0), Path(folder))
        # One step with all episodes, sampled with what the rules that compare states need.
        step = replace(config.recipe.optimization, passes=1, episodes_per_step=None)
        recipe = replace(config.recipe, optimization=step, credit=get_recipe("grove").credit)
        trainer: Any = Trainer(replace(config, recipe=recipe))
        rows: list[list[torch.Tensor]] = [[] for _ in rules]
        for one in gradients(trainer, rules, batches):
            for row, gradient in zip(rows, one, strict=True):
                row.append(gradient)
        trainer.close()
    stacked = torch.stack([torch.stack(row) for row in rows])
    return np.asarray(torch.einsum("anw,bmw->abnm", stacked, stacked).double())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", default="passes", help="study whose warm start, environment and budgets to use")
    parser.add_argument("--env", default="Lake 6x6", help="environment of the study")
    parser.add_argument("--rules", default="grpo,gigpo,grove", help="recipes whose credit rules to compare")
    parser.add_argument("--batches", type=int, default=48, help="batches of episodes, at least 8")
    args = parser.parse_args()
    study = load_study(args.study)
    if args.env not in study.envs:
        parser.error(f"the study {study.name} has no environment {args.env!r}; it has {', '.join(study.envs)}.")
    if args.batches < 8:
        parser.error("--batches must be at least 8.")

    torch.set_num_threads(1)
    names = [UNBIASED, *(name for name in args.rules.split(",") if name != UNBIASED)]
    table = measure(study, args.env, names, args.batches)
    signals, cosines = estimate(table, np.arange(args.batches))
    if signals[0] <= 0:
        raise SystemExit(
            f"With {args.batches} batches the gradient of {UNBIASED} cannot be told from noise; take more."
        )
    generator = np.random.default_rng(0)
    drawn = [estimate(table, generator.integers(args.batches, size=args.batches))[0] for _ in range(1000)]
    print(f"{args.env}: {args.batches} batches")
    print(f"{'rule':<10}  signal  against RLOO           direction")
    for number, name in enumerate(names):
        ratios = [one[number] / one[0] for one in drawn if one[0] > 0]
        low, high = np.percentile(ratios, [2.5, 97.5])
        ratio = signals[number] / signals[0]
        interval = f"{ratio:5.2f} ({low:5.2f} to {high:5.2f})"
        print(f"{name:<10}  {100 * signals[number]:6.2f}  {interval:<22}  {cosines[number]:9.2f}")


if __name__ == "__main__":
    main()
