"""Preparation of an update: everything that is computed from the rollouts before the first optimizer step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...envs.seeding import stable_seed
from ..algorithms.credit.base import Advantages
from ..algorithms.objectives.penalties import tokens_in_loss
from ..algorithms.recipe import Recipe
from ..data.microbatches import optimizer_batches
from ..data.rollouts import Rollouts
from ..data.segments import BoolArray, FloatArray


class StepPlan(NamedTuple):
    """One optimizer step of an update.

    Attributes:
        episodes: Number of episodes.
        tokens: Mask of the copies in the loss, [M].
        number: Number of the pass over the rollouts, from 0.
    """

    episodes: int
    tokens: BoolArray
    number: int = 0


@dataclass(frozen=True)
class Prepared:
    """Update whose scores and advantages are known; `Learner.apply` takes its steps.

    Attributes:
        rollouts: Episodes of the update, with the penalties of their tokens (KL in the reward).
        credit: Advantages, and what the credit rule found beside them.
        plans: Optimizer steps, each with a token in the loss.
        old_logprobs: Log-probability of each sampled token before the update, [N]; None if the update has a single
            step, where the first forward pass computes it.
        ref_logprobs: Log-probability under the reference policy, [N]; None where nothing reads it.
        values: Critic's value before each sampled token, [N]; None without a critic.
        metrics: Metrics of the preparation, those of the credit rule included.
        update: Number of the update, from 0.
        temperature: Temperature at which the rollouts were sampled.
        scale: Factor on the advantages.
    """

    rollouts: Rollouts
    credit: Advantages
    plans: tuple[StepPlan, ...]
    old_logprobs: FloatArray | None
    ref_logprobs: FloatArray | None
    values: FloatArray | None
    metrics: dict[str, float]
    update: int
    temperature: float
    scale: float

    @property
    def has_signal(self) -> bool:
        """True if a token in the loss of some step has an advantage other than 0."""
        return any((self.credit.advantages[plan.tokens] != 0).any() for plan in self.plans)

    def loss_inputs(self, recipe: Recipe) -> dict[str, FloatArray]:
        """Return the arrays [M] that the loss reads, by name."""
        scores: dict[str, FloatArray | None] = {}
        if self.old_logprobs is not self.rollouts.logprobs:
            scores["sampler_logp"] = self.rollouts.logprobs
        has_terms = any(term.needs_reference for term in recipe.objective.token_terms)
        scores |= {
            "old_logp": self.old_logprobs,
            "ref_logp": self.ref_logprobs if has_terms or not kl_in_reward(recipe) else None,
            "old_values": self.values,
        }
        arrays = {"advantages": self.credit.advantages * self.scale}
        if self.credit.value_targets is not None:
            arrays["value_targets"] = self.credit.value_targets
        copied = self.rollouts.copies.action
        return arrays | {name: array[copied] for name, array in scores.items() if array is not None}

    def explained_variance(self) -> dict[str, float]:
        """Return `explained_variance` of the critic: 1 - Var(targets - values) / Var(targets), before the update.

        1 is a perfect critic, 0 one that is no better than a constant. Without a critic, or without variance of
        the targets, there is none.
        """
        if self.values is None or self.credit.value_targets is None:
            return {}
        in_a_step = np.any([plan.tokens for plan in self.plans], axis=0)
        values = self.values[self.rollouts.copies.action][in_a_step]
        targets = self.credit.value_targets[in_a_step]
        variance = float(np.var(targets)) if len(targets) else 0.0
        return {} if variance == 0 else {"explained_variance": 1.0 - float(np.var(targets - values)) / variance}


def kl_in_reward(recipe: Recipe) -> bool:
    """Return True if the recipe subtracts the KL divergence to the reference policy from the rewards."""
    return recipe.objective.kl.coef > 0 and recipe.objective.kl.placement == "reward"


def plan_steps(rollouts: Rollouts, recipe: Recipe, *, update: int, seed: int) -> list[StepPlan]:
    """Return the optimizer steps of an update, leaving out steps without a token in the loss.

    Args:
        rollouts: Episodes of the update.
        recipe: Algorithm; its passes and its episodes per step divide the update.
        update: Number of the update, from 0.
        seed: Seed of the run.
    """
    in_loss = tokens_in_loss(rollouts, recipe.overlong)
    plans = []
    for number in range(recipe.optimization.passes):
        pass_seed = stable_seed("pass", seed, update, number)
        for episodes in optimizer_batches(rollouts, recipe.optimization.episodes_per_step, seed=pass_seed):
            tokens = in_loss & np.isin(rollouts.copies.episode, episodes)
            plans.append(StepPlan(len(episodes), tokens, number))
    return [plan for plan in plans if plan.tokens.any()]


def leave_out_weightless(
    plans: Iterable[StepPlan], multiplicity: FloatArray | None, *, full_sequences: bool = False
) -> tuple[StepPlan, ...]:
    """Return the plans without the copies of multiplicity 0, and without steps that have no others.

    Args:
        plans: Optimizer steps.
        multiplicity: Multiplicity of each copy, [M]; None for 1.
        full_sequences: Keep these copies, which have no weight in the loss but are part of its sequences.
    """
    if multiplicity is None:
        return tuple(plans)
    weighted = multiplicity > 0
    kept = [plan for plan in plans if (plan.tokens & weighted).any()]
    return tuple(kept if full_sequences else (plan._replace(tokens=plan.tokens & weighted) for plan in kept))
