"""Numbers that change during a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Linear:
    """A straight line from `start` at step 0 to `end` at the last step, level beyond."""

    start: float
    end: float

    def at(self, step: int, total: int) -> float:
        """The value at `step` of a run of `total` steps; the end is reached at step == total."""
        done = min(max(step / total, 0.0), 1.0) if total > 0 else 1.0
        return self.start + (self.end - self.start) * done


def adapted_kl(coef: float, kl: float, *, target: float, horizon: int, episodes: int) -> float:
    """The next coefficient of an adaptive KL controller (Ziegler et al., arXiv:1909.08593, sec. 2.2).

    β ← β · (1 + clip(KL / target - 1, ±0.2) · n / horizon)

    Args:
        coef: β now.
        kl: the divergence measured in this step.
        target: where it should be.
        horizon: over how many episodes β adapts.
        episodes: n, of this step.
    """
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return coef * (1.0 + error * episodes / horizon)
