"""Loss over the tokens of an optimizer step: inputs, tokens without a gradient, and the share of a micro-batch.

Preference pairs have a loss of their own, in `pairs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..algorithms.objectives.aggregate import token_weights
from ..algorithms.objectives.loss import Sums, policy_loss
from ..algorithms.objectives.tokens import Tokens
from ..algorithms.objectives.value import value_losses
from ..algorithms.recipe import Recipe
from ..data.microbatches import MicroBatch
from ..data.rollouts import Rollouts
from ..data.segments import BoolArray, FloatArray
from .preparation import Prepared, StepPlan


def step_inputs(
    recipe: Recipe, prepared: Prepared, arrays: Mapping[str, FloatArray], plan: StepPlan, *, is_first: bool
) -> dict[str, FloatArray]:
    """Return the arrays [M] that the loss of an optimizer step reads, by name: those of the update, and weights.

    Args:
        recipe: Algorithm.
        prepared: Update.
        arrays: Result of its `loss_inputs`.
        plan: The optimizer step.
        is_first: True for the first step of the update.
    """
    objective, rollouts = recipe.objective, prepared.rollouts
    keep, multiplicity = plan.tokens, prepared.credit.multiplicity
    weights = token_weights(
        objective.aggregation,
        rollouts.copies.episode,
        prompts=rollouts.group[rollouts.copies.episode],
        norm_length=objective.norm_length,
        count=plan.episodes if objective.aggregation == "dr-grpo" else None,
        keep=keep,
        multiplicity=multiplicity,
    )
    # The critic's loss is a mean over tokens.
    value_weights = token_weights("token-mean", rollouts.copies.episode, keep=keep, multiplicity=multiplicity)
    inputs = {**arrays, "weights": weights, "value_weights": value_weights}
    if is_first and "old_logp" in inputs and "sampler_logp" not in inputs:
        # The policy is still the one that sampled, so the mismatch of the two can be measured here.
        inputs["sampler_logp"] = inputs.pop("old_logp")
    return inputs


def zero_gradient_tokens(recipe: Recipe, rollouts: Rollouts, arrays: Mapping[str, FloatArray]) -> BoolArray:
    """Return the mask of copies in rows whose gradient is zero, [M].

    These are rows without advantage, if nothing but advantages is in the loss. Scored without a backward pass,
    for metrics only.

    Args:
        recipe: Algorithm.
        rollouts: Episodes of the update.
        arrays: Result of `Prepared.loss_inputs`.
    """
    if recipe.needs_entropy or recipe.critic is not None or "ref_logp" in arrays or recipe.objective.token_terms:
        return np.zeros(len(arrays["advantages"]), dtype=bool)
    rows = rollouts.copies.row
    nonzero = np.bincount(rows, arrays["advantages"] != 0, minlength=len(rollouts.rows)) > 0
    return ~nonzero[rows]


def token_loss(
    recipe: Recipe,
    kl_coef: float,
    inputs: Mapping[str, FloatArray],
    micro: MicroBatch,
    scores: Sequence[Tensor],
) -> tuple[Tensor, Sums]:
    """Return the share of a micro-batch in the loss of its optimizer step, and sums over its tokens.

    Args:
        recipe: Algorithm.
        kl_coef: Current coefficient β of the KL term.
        inputs: Result of `step_inputs`.
        micro: Micro-batch.
        scores: Result of `Policy.forward`.

    Returns:
        Loss, a scalar with gradient, and sums for `reduce_metrics`.
    """
    device = scores[0].device
    source = torch.as_tensor(micro.copy_source, device=device)
    logp, entropy, values = (score[source] if len(score) else score for score in scores)
    on_device = {
        name: torch.as_tensor(array[micro.copies], dtype=torch.float32, device=device)
        for name, array in inputs.items()
    }
    tokens = Tokens(
        logp=logp,
        advantages=on_device["advantages"],
        weights=on_device["weights"],
        rows=torch.as_tensor(micro.rows, device=device),
        turns=torch.as_tensor(micro.turns, device=device),
        old_logp=on_device.get("old_logp"),
        ref_logp=on_device.get("ref_logp"),
        sampler_logp=on_device.get("sampler_logp"),
        entropy=entropy,
    )
    loss, sums = policy_loss(recipe.objective, tokens, kl_coef)
    critic = recipe.critic
    if critic is not None:
        errors = value_losses(values, on_device["value_targets"], on_device.get("old_values"), critic.clip)
        loss = loss + critic.coef * (errors * on_device["value_weights"]).sum()
        sums["value_loss"] = float(errors.detach().sum())
        sums["value"] = float(values.detach().sum())
    return loss, sums
