"""Schedules and controllers: numbers that change during a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear schedule.

    Attributes:
        start: Value at step 0 and before.
        end: Value at the last step and beyond.
    """

    start: float
    end: float

    def at(self, step: int, total: int) -> float:
        """Return the value at a step.

        Args:
            step: Step of the run, from 0.
            total: Number of steps in the run; the end is reached at step == total.
        """
        done = min(max(step / total, 0.0), 1.0) if total > 0 else 1.0
        return self.start + (self.end - self.start) * done


def adapt_kl_coef(coef: float, kl: float, *, target: float, horizon: int, episodes: int) -> float:
    """Return the next coefficient of an adaptive KL controller (Ziegler et al., arXiv:1909.08593, sec. 2.2).

    β ← β · (1 + clip(KL / target - 1, ±0.2) · n / horizon)

    Args:
        coef: Current β.
        kl: Divergence measured in this update.
        target: Desired divergence.
        horizon: Time constant of the controller, in episodes.
        episodes: Number n of episodes in this update.
    """
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return coef * (1.0 + error * episodes / horizon)
