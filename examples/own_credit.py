"""A credit rule of one's own: advantages from the ranks of the returns in a group, in the place of their size.

GRPO divides the difference from a group's mean by its standard deviation, so one freak return shrinks the
advantages of all others. Ranks do not change with it. The rule is fifteen lines; everything else of the recipe
stays GRPO's.

    python examples/own_credit.py       # both rules, eight updates each; about a minute on two cores

Needs the extra `lm`. Prints, for both rules, the mean return of each update and the success on held-out levels
before and after training, with 95 % intervals. Eight updates show that a rule works, not which one is better:
for that, compare recipes over seeds with `arboretum study`.

A rule is named by its path, as here, or registered under a name by the package that defines it:

    [project.entry-points."arboretum.plugins"]
    rank = "own_credit:Rank"
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import arboretum
from arboretum.trainers import Advantages, Credit


@dataclass(frozen=True)
class Rank(Credit):
    """Rank of an episode's return in its group, scaled from -1 for the lowest to 1 for the highest."""

    name = "rank"
    needs_groups = True

    def assign(self, rollouts, values=None, in_loss=None):
        returns = rollouts.returns(penalties=True)  # [E], E episodes
        same_group = rollouts.group[:, None] == rollouts.group  # [E, E]
        above = np.sign(returns[:, None] - returns)  # [E, E], 1 where the row is better than the column
        others = np.maximum(same_group.sum(axis=1) - 1, 1)  # [E]
        advantages = (above * same_group).sum(axis=1) / others  # [E]
        return Advantages(advantages[rollouts.copies.episode])  # [M], of every sampled token


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=8, help="updates of each rule")
    parser.add_argument("--out", type=Path, default="runs/own_credit", help="folder of the two runs")
    args = parser.parse_args()

    for rule in ("group", "own_credit:Rank"):  # GRPO's own rule, and ours by its path
        result = arboretum.train(
            "grpo",
            "TextFrozenLake-v0",
            "sapling",
            out=args.out / rule.rpartition(":")[2].lower(),
            env_args={"size": 5, "p_frozen": 0.8, "success_rate": 1.0, "observation_format": "grid"},
            dialogue="no_think",
            settings={
                "credit.name": rule,
                "sampler.prompts": 16,
                "sampler.rollouts": 8,
                "sampler.reply_tokens": 24,
                "optimization.updates": args.updates,
                "optimization.lr": 3e-4,
                "optimization.warmup": 2,
            },
            validation={"every": args.updates, "tasks": 128},
        )
        print(f"{rule}: mean returns", *(f"{record['return']:.2f}" for record in result.metrics[1:]))
        for when, validation in zip(("before", "after"), result.validations, strict=True):
            rate, low, high = (100 * value for value in validation.success)
            print(f"  {when:6} {rate:.0f} % of held-out levels solved ({low:.0f} to {high:.0f})")
