"""Policy loss of the tokens of a micro-batch (surrogate, KL, entropy, further terms), and its metrics."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .kl import kl_estimate
from .mismatch import sampler_weights
from .ratio import importance_ratios, log_ratios
from .settings import Objective
from .surrogate import clipped_surrogate
from .term import token_losses
from .tokens import Tokens

Sums = dict[str, float]
"""Metrics of a micro-batch: sums over its tokens in the loss (their number is "tokens"), and maxima ("…_max")."""


def policy_loss(objective: Objective, tokens: Tokens, kl_coef: float | None = None) -> tuple[Tensor, Sums]:
    """Return the share of a micro-batch in the loss of its optimizer batch.

    The loss of an optimizer batch is the sum over its micro-batches:

        L = Σ_t w_t · (c_t · l_t + β · KL_t - α · H_t + Σ terms_t)

    with the clipped surrogate l, the mismatch weight c (`sampler_weights`) and the entropy H.

    Args:
        objective: Settings of the loss.
        tokens: Sampled tokens of complete sequences.
        kl_coef: Current β if a controller adapts it; None uses `objective.kl.coef`.

    Returns:
        Loss, a scalar with gradient, and sums for `reduce_metrics`.
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
    measured: dict[str, Tensor] = {
        "clip_upper": surrogate.upper,
        "clip_lower": surrogate.lower,
        "clip_dual": surrogate.dual,
        "ratio": ratios,
    }
    if tokens.sampler_logp is not None:
        correction = sampler_weights(old_logp, tokens.sampler_logp, objective.mismatch, tokens.rows)
        losses = losses * correction
        measured["mismatch_kl"] = kl_estimate(tokens.sampler_logp, old_logp, "k3")
        measured["mismatch_abs"] = (tokens.sampler_logp - old_logp).abs()
        measured["mismatch_ratio"] = torch.exp(log_ratios(old_logp, tokens.sampler_logp))
        measured["mismatch_weight"] = correction
    surrogate_loss = (losses * tokens.weights).sum()
    coef = objective.kl.coef if kl_coef is None else kl_coef
    if objective.kl.coef and objective.kl.placement == "loss":
        assert tokens.ref_logp is not None, "a KL term in the loss needs Tokens.ref_logp"
        kl = kl_estimate(
            logp, tokens.ref_logp, objective.kl.estimator, straight_through=objective.kl.straight_through
        )
        measured["kl"] = kl
        if objective.kl.bias_correction:
            kl = kl * torch.exp(log_ratios(logp, old_logp))
        losses = losses + coef * kl
    if tokens.entropy is not None:
        measured["entropy"] = tokens.entropy
    if objective.entropy_coef:
        assert tokens.entropy is not None, "an entropy bonus needs Tokens.entropy"
        losses = losses - objective.entropy_coef * tokens.entropy
    for term in objective.token_terms:
        added = token_losses(term, tokens)
        name = f"term/{term.name}"
        measured[name] = measured[name] + added if name in measured else added
        losses = losses + added
    with torch.no_grad():
        change = log_ratios(logp, old_logp)
        measured["approx_kl"] = torch.exp(change) - 1.0 - change
    sums = _sum_metrics(measured, tokens.weights != 0, surrogate_loss)
    return (losses * tokens.weights).sum(), sums


def _sum_metrics(measured: dict[str, Tensor], in_loss: Tensor, surrogate_loss: Tensor) -> Sums:
    """Return sums and maxima over the tokens in the loss, with a single transfer from the device."""
    kept = {name: value.detach()[in_loss].double() for name, value in measured.items()}
    numbers = {name: value.sum() for name, value in kept.items()}
    numbers["tokens"] = in_loss.sum().double()
    numbers["policy_loss"] = surrogate_loss.detach().double()
    for name in ("ratio", "mismatch_abs", "mismatch_ratio"):
        if name in kept and kept[name].numel():
            numbers[f"{name}_max"] = kept[name].max()
    return dict(zip(numbers, torch.stack(list(numbers.values())).tolist(), strict=True))


def reduce_metrics(parts: Iterable[Sums]) -> dict[str, float]:
    """Return means over the tokens of several micro-batches (of all ranks), and maxima.

    The mean of a metric that only some micro-batches have is taken over their tokens.

    Args:
        parts: Sums of each micro-batch.

    Returns:
        `clip_upper`, `clip_lower`, `clip_dual` (fractions of tokens whose gradient is clipped), `ratio`,
        `ratio_max`, `approx_kl` (old policy to new, k3), `kl` (to the reference), `entropy`, `term/<name>`
        of every further term, `tokens`, and `policy_loss`: the surrogate's part of the loss, summed over the
        optimizer steps. If the sampler's log-probabilities are known, also `mismatch_kl`
        (sampler to trainer before the update, k3), `mismatch_abs` (mean absolute difference of
        log-probabilities), `mismatch_abs_max`, `mismatch_ratio` (trainer over sampler; 1 if they agree),
        `mismatch_ratio_max` and `mismatch_weight` (factor on the surrogate).
    """
    totals: Sums = {}
    tokens: Sums = {}
    for part in parts:
        for name, value in part.items():
            tokens[name] = tokens.get(name, 0.0) + part.get("tokens", 0.0)
            if name.endswith("_max"):
                totals[name] = max(totals.get(name, value), value)
            else:
                totals[name] = totals.get(name, 0.0) + value
    return {
        name: value
        if name in ("tokens", "policy_loss") or name.endswith("_max")
        else value / max(tokens[name], 1.0)
        for name, value in totals.items()
    }
