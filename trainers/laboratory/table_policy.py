"""Softmax policy over a table: a logit for every state and action."""

from __future__ import annotations

import numpy as np

from ..data.segments import FloatArray, IntArray

MAX_CHANGE = 10.0
"""Largest change of a logit in one update of fixed divergence."""


def action_probabilities(logits: FloatArray) -> FloatArray:
    """Return π(a | s) of every row, [N, A]; 0 for logits of minus infinity."""
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: FloatArray = exponentials / exponentials.sum(axis=1, keepdims=True)
    return probabilities


def log_probabilities(logits: FloatArray) -> FloatArray:
    """Return log π(a | s) of every row, [N, A]."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_policy: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log_policy


def policy_gradient(policy: FloatArray, rows: IntArray, actions: IntArray, weights: FloatArray) -> FloatArray:
    """Return the gradient of Σ weight · log π(action | row) with respect to the logits, [N, A].

    Args:
        policy: π, [N, A].
        rows: Row of each token, [M].
        actions: Action of each token, [M].
        weights: Weight of each token, [M].
    """
    count, width = policy.shape
    sums = np.bincount(rows * width + actions, weights=weights, minlength=count * width).reshape(count, width)
    gradient: FloatArray = sums - policy * sums.sum(axis=1, keepdims=True)
    return gradient


def step_of_divergence(logits: FloatArray, direction: FloatArray, visits: FloatArray, target: float) -> FloatArray:
    """Return logits + α · direction with α > 0 such that the mean divergence over visits is the target.

    α is bounded such that no logit changes by more than `MAX_CHANGE`. Only rows in the direction are computed.

    Args:
        logits: Logits before the step, [N, A].
        direction: Direction of the step, [N, A]; the zero direction leaves the logits unchanged.
        visits: Expected visits of each row under the policy before the step, [N].
        target: Mean divergence, in nats.
    """
    moved = np.flatnonzero(np.abs(direction).max(axis=1) > 0)
    if not len(moved):
        return logits
    before, along, weights = logits[moved], direction[moved], visits[moved] / visits.sum()
    policy = action_probabilities(before)
    offset = (policy * along).sum(axis=1)

    def divergence(alpha: float) -> float:
        # KL(π ‖ π′) = log Σ π exp(α d) - α Σ π d, with the largest exponent taken out of the sum.
        scaled = alpha * along
        top = scaled.max(axis=1)
        return float(
            weights @ (np.log((policy * np.exp(scaled - top[:, None])).sum(axis=1)) + top - alpha * offset)
        )

    high = MAX_CHANGE / float(np.abs(along).max())
    alpha = high
    if divergence(high) > target:
        low = 0.0
        # The divergence is quadratic in α at first, so the first guess is near.
        curvature = float(weights @ ((policy * along**2).sum(axis=1) - offset**2)) / 2
        alpha = min(high, np.sqrt(target / curvature)) if curvature > 0 else high / 2
        for _ in range(60):
            value = divergence(alpha)
            if abs(value - target) < 1e-6 * target:
                break
            low, high = (alpha, high) if value < target else (low, alpha)
            guess = alpha * np.sqrt(target / value) if value > 0 else high
            alpha = guess if low < guess < high else (low + high) / 2
    stepped = logits.copy()
    stepped[moved] = before + alpha * along
    return stepped
