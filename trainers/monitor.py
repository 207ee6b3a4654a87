"""Monitor of training: detects the collapse of a policy before its success rate shows it, and drowned rewards.

RAGEN (arXiv:2504.20073, sec. 4.1) describes the collapse of multi-turn training: the variance of returns within
groups and the entropy fall *before* the mean return does, and gradient norms spike when the policy cannot recover.
Both also fall when a policy learns to solve its tasks, so a fall that better returns explain is not a sign.

Where the penalties for malformed replies and refused actions differ more between a group's episodes than their
returns do, the policy learns to avoid penalties before it learns its task. In long episodes that is soon the case:
a penalty of 0.1 is small, but not times a dozen.

Everything here is a function of the metrics up to now.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal, NamedTuple

from ..envs.checks import at_least, fraction, integer_at_least, one_of, positive

Sign = Literal["variance", "entropy", "entropy-jump", "gradient", "silence", "penalty", "echo-trap"]


class Alarm(NamedTuple):
    """First occurrence of a sign of collapse.

    Attributes:
        update: Update at which the sign appeared.
        sign: Kind of sign.
        evidence: Measurements that triggered it, by name.
    """

    update: int
    sign: Sign
    evidence: Mapping[str, float]

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} {value:.3g}" for name, value in self.evidence.items())
        return f"update {self.update}: {_DESCRIPTIONS[self.sign]} ({numbers})"


_DESCRIPTIONS: Mapping[str, str] = {
    "variance": "the variance of returns within groups has fallen, and better returns do not explain it",
    "entropy": "entropy has fallen, and better returns do not explain it",
    "entropy-jump": "entropy has jumped",
    "gradient": "the gradient norm has spiked",
    "silence": "returns hardly differ within groups any more, so there is almost no advantage to train on",
    "penalty": "penalties differ more within groups than returns do, so training is mostly about penalties; "
    "a smaller sampler.format_penalty leaves more to the task",
    "echo-trap": "ECHO TRAP: variance and entropy have fallen before the mean return",
}


@dataclass(frozen=True)
class Monitor:
    """Signs of collapse, and the response to them.

    Attributes:
        window: Width of the moving averages, in updates.
        variance: Sign "variance": the moving average of the return's standard deviation within groups is below
            this fraction of its peak.
        entropy: Sign "entropy": the moving average of entropy is below this fraction of its peak, and better
            returns do not explain it. Sign "entropy-jump": it is above the first window's mean divided by this.
        gradient: Sign "gradient": the gradient norm is above this multiple of the preceding window's median.
        silence: Sign "silence": a whole window's standard deviations are below this fraction of the first window's
            mean (RAGEN-2's rule), unless better returns explain it.
        penalty: Sign "penalty": the moving average of the standard deviation of penalties within groups is above
            this multiple of that of returns, which the recipe's `rewards.scale` scales.
        action: Response to a fatal sign. "warn" prints a warning, as for every sign; "stop" ends the run;
            "rollback" returns to the best checkpoint that passed its probation, and continues from it with lower
            learning rates. One checkpoint at a time is on probation, for a window of updates; it passes if none
            of the checkpoints until then shows a sign.
        fatal: Signs that trigger the action.
        uninformative: Consecutive updates without any advantage (all episodes of each prompt had equal returns, or
            the selector kept no group) after which the run stops; 0 for no limit. Such updates take no step.
        failed: Fraction of the episodes of an update or a validation above which the run stops because they ended
            with an error of the environment. Below, such episodes count as unsolved, and are not trained on. The
            same fraction holds for redrawn outcomes; those with an error are left out.
        lr_factor: Factor on the learning rates at each rollback.
        rollbacks: Maximum number of rollbacks; after them a fatal sign ends the run.
    """

    window: int = 10
    variance: float = 0.5
    entropy: float = 0.5
    gradient: float = 5.0
    silence: float = 0.1
    penalty: float = 1.0
    action: Literal["warn", "stop", "rollback"] = "warn"
    fatal: tuple[Sign, ...] = ("echo-trap", "silence")
    uninformative: int = 10
    failed: float = 0.2
    lr_factor: float = 0.5
    rollbacks: int = 2

    def check(self) -> None:
        """Raise `ConfigurationError` for a value out of range."""
        integer_at_least("--monitor.window", self.window, 2)
        at_least("--monitor.gradient", self.gradient, 1)
        integer_at_least("--monitor.rollbacks", self.rollbacks, 0)
        integer_at_least("--monitor.uninformative", self.uninformative, 0)
        positive("--monitor.lr-factor", self.lr_factor)
        positive("--monitor.penalty", self.penalty)
        one_of("--monitor.action", self.action, ("warn", "stop", "rollback"))
        for sign in self.fatal:
            one_of("--monitor.fatal", sign, tuple(_DESCRIPTIONS))
        for name in ("variance", "entropy", "silence", "failed", "lr_factor"):
            fraction(f"--monitor.{name}", getattr(self, name))

    def alarms(self, history: Sequence[Mapping[str, float]]) -> list[Alarm]:
        """Return an alarm for every sign of the newest update that the update before it did not have.

        Args:
            history: Metrics of every update so far: `update`, `return`, `group_return_std`, `group_penalty_std`,
                `entropy` and `grad_norm`. Updates that lack a metric are skipped for it. `reward_scale` is the
                recipe's `rewards.scale`, 1 where it is absent.
        """
        if not history:
            return []
        now, before = self.signs(history), self.signs(history[:-1])
        update = int(history[-1]["update"])
        return [Alarm(update, sign, evidence) for sign, evidence in now.items() if sign not in before]

    def all_alarms(self, history: Sequence[Mapping[str, float]]) -> list[Alarm]:
        """Return the alarms of a whole run, in order.

        Args:
            history: Metrics of all updates, including those that a rollback undid.
        """
        alarms = []
        for place, record in enumerate(history):
            alarms += self.alarms([*current_lineage(history[:place]), record])
        return alarms

    def is_fatal(self, alarms: Sequence[Alarm]) -> bool:
        """Return True if the alarms call for the monitor's action."""
        return self.action != "warn" and any(alarm.sign in self.fatal for alarm in alarms)

    def is_sound(self, history: Sequence[Mapping[str, float]]) -> bool:
        """Return True if the newest update has no sign of collapse; `history` is as for `alarms`."""
        return not self.signs(history).keys() - ({"penalty"} - set(self.fatal))

    def signs(self, history: Sequence[Mapping[str, float]]) -> dict[Sign, dict[str, float]]:
        """Return the signs of the newest update with their evidence; `history` is as for `alarms`."""
        found: dict[Sign, dict[str, float]] = {}
        stds, returns = (
            moving_averages(history, "group_return_std", self.window),
            moving_averages(history, "return", self.window),
        )
        if len(stds) > 1 and len(stds) == len(returns):
            peak = max(range(len(stds)), key=stds.__getitem__)
            gain = returns[-1] - returns[peak]
            # A gain of a quarter of a standard deviation would explain the lower variance.
            if stds[-1] < self.variance * stds[peak] and gain <= 0.25 * stds[peak]:
                found["variance"] = {
                    "deviation": stds[-1],
                    "peak": stds[peak],
                    "mean return": returns[-1],
                    "at the peak": returns[peak],
                }
        entropies = moving_averages(history, "entropy", self.window)
        if len(entropies) > 1:
            peak = max(range(len(entropies)), key=entropies.__getitem__)
            if entropies[-1] < self.entropy * entropies[peak] and not self._is_explained(history, peak):
                found["entropy"] = {"entropy": entropies[-1], "peak": entropies[peak]}
            if entropies[-1] > entropies[0] / max(self.entropy, 1e-9):
                found["entropy-jump"] = {"entropy": entropies[-1], "first window": entropies[0]}
        norms = [float(record["grad_norm"]) for record in history if "grad_norm" in record]
        if history and "grad_norm" in history[-1] and len(norms) > self.window:
            usual = median(norms[-self.window - 1 : -1])
            if not math.isfinite(norms[-1]) or norms[-1] > self.gradient * usual > 0:
                found["gradient"] = {"norm": norms[-1], "median": usual}
        raw = [float(record["group_return_std"]) for record in history if "group_return_std" in record]
        if len(raw) >= 2 * self.window:
            first, highest = fmean(raw[: self.window]), max(raw[-self.window :])
            solved = len(stds) == len(returns) and returns[-1] - returns[0] > 0.25 * first
            if highest < self.silence * first and not solved:
                found["silence"] = {"largest deviation": highest, "first window": first}
        penalties = moving_averages(history, "group_penalty_std", self.window)
        scale = float(history[-1].get("reward_scale", 1.0)) if history else 1.0
        if penalties and len(penalties) == len(stds) and penalties[-1] > self.penalty * scale * stds[-1]:
            found["penalty"] = {"deviation": penalties[-1], "of returns": scale * stds[-1]}
        # A warning only as long as the mean return has not fallen.
        if "variance" in found and "entropy" in found:
            kept = found["variance"]["mean return"] >= found["variance"]["at the peak"] - 0.25 * max(stds)
            if kept:
                found["echo-trap"] = {**found["variance"], **found["entropy"]}
        return found

    def _is_explained(self, history: Sequence[Mapping[str, float]], peak: int) -> bool:
        """Return True if better returns explain that entropy has fallen.

        Args:
            history: See `alarms`.
            peak: Window of the highest entropy, among the updates that have one.
        """
        measured = [record for record in history if "entropy" in record]
        returns = moving_averages(measured, "return", self.window)
        stds = moving_averages(measured, "group_return_std", self.window)
        if not len(returns) == len(stds) > peak:
            return False
        return returns[-1] - returns[peak] > 0.25 * stds[peak]


ROLLED_BACK = "rolled_back_to"
"""Metric of an update that a rollback followed: the updates before the checkpoint that was loaded."""


def current_lineage(history: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """Return the updates that produced the current policy: without the initial validation and undone updates."""
    kept: list[Mapping[str, float]] = []
    for record in history:
        if record["update"]:
            kept.append(record)
        if ROLLED_BACK in record:
            kept = [one for one in kept if one["update"] <= record[ROLLED_BACK]]
    return kept


def moving_averages(history: Sequence[Mapping[str, float]], name: str, width: int) -> list[float]:
    """Return the moving average of a metric over `width` of the records that have it; empty if there are fewer."""
    import numpy as np  # lazily: the command line imports this module for its options

    values = [float(record[name]) for record in history if name in record]
    if len(values) < width:
        return []
    means: list[float] = np.lib.stride_tricks.sliding_window_view(np.array(values), width).mean(axis=1).tolist()
    return means
