"""The policy's whole loss on some tokens of an optimizer batch (surrogate, KL, entropy), and what to log of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .kl import kl_estimate
from .mismatch import sampler_weights
from .ratio import importance_ratios, log_ratios
from .settings import Objective
from .surrogate import clipped_surrogate


@dataclass(frozen=True, slots=True)
class Tokens:
    """The sampled tokens of one micro-batch, each attribute of shape [n].

    Attributes:
        logp: log π under the policy being trained; carries the gradient.
        advantages: A.
        weights: of `token_weights` over the whole optimizer batch, cut to these tokens.
        rows: sequence of each token, small integers.
        turns: turn of each token, small integers; for the turn ratio.
        old_logp: log π before the update; None on the first and only step, where it equals `logp`.
        ref_logp: log π_ref; needed for a KL term in the loss.
        sampler_logp: log-probability in the distribution that the engine drew from, as it reported it.
        entropy: of the policy at the token.
    """

    logp: Tensor
    advantages: Tensor
    weights: Tensor
    rows: Tensor
    turns: Tensor | None = None
    old_logp: Tensor | None = None
    ref_logp: Tensor | None = None
    sampler_logp: Tensor | None = None
    entropy: Tensor | None = None


Sums = dict[str, float]
"""Metrics of a micro-batch: sums over its tokens (their number is "tokens"), and largest values ("…_max")."""


def policy_loss(objective: Objective, tokens: Tokens, kl_coef: float | None = None) -> tuple[Tensor, Sums]:
    """The loss of some tokens; summed over the micro-batches of an optimizer batch it is the loss of the batch.

    Args:
        objective: the settings.
        tokens: whole sequences.
        kl_coef: β of the KL term now, if a controller moves it.

    Returns:
        The loss, a scalar with gradient, and sums for `metrics`.
    """
    logp = tokens.logp
    old_logp = logp.detach() if tokens.old_logp is None else tokens.old_logp
    ratios = importance_ratios(logp, old_logp, objective.ratio, rows=tokens.rows, turns=tokens.turns)
    surrogate = clipped_surrogate(
        ratios,
        tokens.advantages,
        clip_low=objective.clip_low,
        clip_high=objective.clip_high,
        dual_clip=objective.dual_clip,
        ratio_cap=objective.ratio_cap,
    )
    losses = surrogate.losses
    seen: dict[str, Tensor] = {
        "clip_upper": surrogate.upper,
        "clip_lower": surrogate.lower,
        "clip_dual": surrogate.dual,
        "ratio": ratios,
    }
    if tokens.sampler_logp is not None:
        correction = sampler_weights(old_logp, tokens.sampler_logp, objective.mismatch, tokens.rows)
        losses = losses * correction
        seen["mismatch_kl"] = kl_estimate(tokens.sampler_logp, old_logp, "k3")
        seen["mismatch_abs"] = (tokens.sampler_logp - old_logp).abs()
        seen["mismatch_ratio"] = torch.exp(log_ratios(old_logp, tokens.sampler_logp))
        seen["mismatch_weight"] = correction
    coef = objective.kl.coef if kl_coef is None else kl_coef
    if objective.kl.coef and objective.kl.placement == "loss":
        assert tokens.ref_logp is not None, "a KL term in the loss needs the reference policy's log-probabilities"
        kl = kl_estimate(
            logp, tokens.ref_logp, objective.kl.estimator, straight_through=objective.kl.straight_through
        )
        seen["kl"] = kl
        if objective.kl.bias_correction:
            kl = kl * torch.exp(log_ratios(logp, old_logp))
        losses = losses + coef * kl
    if tokens.entropy is not None:
        seen["entropy"] = tokens.entropy
    if objective.entropy_coef:
        assert tokens.entropy is not None, "an entropy bonus needs entropies"
        losses = losses - objective.entropy_coef * tokens.entropy
    for term in objective.terms:
        seen[term.name] = added = term.losses(tokens)
        losses = losses + added
    with torch.no_grad():
        change = log_ratios(logp, old_logp)
        seen["approx_kl"] = torch.exp(change) - 1.0 - change
    return (losses * tokens.weights).sum(), _sums(seen, tokens.weights != 0)


def _sums(seen: dict[str, Tensor], counted: Tensor) -> Sums:
    """Sums and largest values over the tokens in the loss, fetched from the device at once."""
    kept = {name: value.detach()[counted].double() for name, value in seen.items()}
    numbers = {name: value.sum() for name, value in kept.items()}
    numbers["tokens"] = counted.sum().double()
    for name in ("ratio", "mismatch_abs", "mismatch_ratio"):
        if name in kept and kept[name].numel():
            numbers[f"{name}_max"] = kept[name].max()
    return dict(zip(numbers, torch.stack(list(numbers.values())).tolist(), strict=True))


def metrics(parts: Iterable[Sums]) -> dict[str, float]:
    """Means over the tokens of several micro-batches (of all ranks), and largest values.

    What only some micro-batches measured is a mean over theirs.

    Keys: `clip_upper`, `clip_lower`, `clip_dual` (fractions of tokens whose gradient was clipped away), `ratio`,
    `ratio_max`, `approx_kl` (old policy to new, k3), `kl` (to the reference), `entropy`, `tokens`; and of the
    sampler's distribution against the trainer's before the update `mismatch_kl` (k3), `mismatch_abs` (mean
    difference of log-probabilities), `mismatch_abs_max`, `mismatch_ratio` (trainer over sampler, 1 where they
    agree), `mismatch_ratio_max`, `mismatch_weight` (what the loss was multiplied by).
    """
    sum_by_group: Sums = {}
    tokens: Sums = {}
    for part in parts:
        for name, value in part.items():
            tokens[name] = tokens.get(name, 0.0) + part.get("tokens", 0.0)
            if name.endswith("_max"):
                sum_by_group[name] = max(sum_by_group.get(name, value), value)
            else:
                sum_by_group[name] = sum_by_group.get(name, 0.0) + value
    return {
        name: value if name == "tokens" or name.endswith("_max") else value / max(tokens[name], 1.0)
        for name, value in sum_by_group.items()
    }
