"""The echo-trap monitor: does a policy collapse into a few phrases, before its success shows it?

RAGEN (arXiv:2504.20073, sec. 4.1) describes how multi-turn training goes wrong: returns within a group become
alike and entropy falls *before* the mean return does, and gradient norms spike when there is no way back. Returns
also become alike when a policy solves its tasks, so a loss of variance that better returns explain is no sign.

Everything here is a function of the metrics so far.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal, NamedTuple

from ..envs.checks import at_least, fraction, one_of, positive

Sign = Literal["variance", "entropy", "entropy-jump", "gradient", "silence", "echo-trap"]


class Alarm(NamedTuple):
    """A sign of collapse.

    Attributes:
        update: at which it appeared.
        sign: which.
        evidence: the numbers that it was seen by.
    """

    update: int
    sign: Sign
    evidence: Mapping[str, float]

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} {value:.3g}" for name, value in self.evidence.items())
        return f"update {self.update}: {_WORDS[self.sign]} ({numbers})"


_WORDS: Mapping[str, str] = {
    "variance": "returns within groups become alike, and better returns do not explain it",
    "entropy": "entropy has fallen",
    "entropy-jump": "entropy has jumped",
    "gradient": "the gradient norm spiked",
    "silence": "groups have all but stopped to differ: there is nothing left to learn from",
    "echo-trap": "ECHO TRAP: variance and entropy fall before the mean return does",
}


@dataclass(frozen=True)
class Monitor:
    """What counts as a sign.

    Attributes:
        window: updates that are averaged, and looked back on.
        variance: fraction of its highest windowed mean below which the deviation of returns is a sign.
        entropy: the same for entropy; a jump is a rise above the first window's mean divided by this.
        gradient: a spike is this many times the median of the window before.
        silence: fraction of the first window's deviation below which a whole window is silent (RAGEN-2's rule),
            unless better returns explain it.
        action: what follows a fatal sign: a warning, as after every sign; the end of the run; or a rollback: back
            to the best checkpoint after which a whole window went by without any sign, and on from there with a
            lower learning rate.
        fatal: which signs are fatal.
        lr_factor: what the learning rate is multiplied by at each rollback.
        rollbacks: how many there may be; then a fatal sign ends the run.
    """

    window: int = 10
    variance: float = 0.5
    entropy: float = 0.5
    gradient: float = 5.0
    silence: float = 0.1
    action: Literal["warn", "stop", "rollback"] = "warn"
    fatal: tuple[Sign, ...] = ("echo-trap", "silence")
    lr_factor: float = 0.5
    rollbacks: int = 2

    def __post_init__(self) -> None:
        at_least("monitor.window", self.window, 2)
        at_least("monitor.gradient", self.gradient, 1)
        at_least("monitor.rollbacks", self.rollbacks, 0)
        positive("monitor.lr_factor", self.lr_factor)
        one_of("monitor.action", self.action, ("warn", "stop", "rollback"))
        for sign in self.fatal:
            one_of("monitor.fatal", sign, tuple(_WORDS))
        for name in ("variance", "entropy", "silence", "lr_factor"):
            fraction(f"monitor.{name}", getattr(self, name))

    def alarms(self, history: Sequence[Mapping[str, float]]) -> list[Alarm]:
        """The signs that the newest update shows and the one before it did not.

        Args:
            history: metrics of every update so far: `update`, `return`, `group_return_std`, `entropy`,
                `grad_norm`; a metric that an update lacks is passed over.
        """
        if not history:
            return []
        now, before = self.signs(history), self.signs(history[:-1])
        update = int(history[-1]["update"])
        return [Alarm(update, sign, evidence) for sign, evidence in now.items() if sign not in before]

    def all_alarms(self, history: Sequence[Mapping[str, float]]) -> list[Alarm]:
        """The alarms of a whole run, in their order.

        Args:
            history: of all updates, those that a rollback undid included.
        """
        found = []
        for place, record in enumerate(history):
            found += self.alarms([*line(history[:place]), record])
        return found

    def is_fatal(self, alarms: Sequence[Alarm]) -> bool:
        """Whether something should follow these."""
        return self.action != "warn" and any(alarm.sign in self.fatal for alarm in alarms)

    def signs(self, history: Sequence[Mapping[str, float]]) -> dict[Sign, dict[str, float]]:
        """What the newest update shows, with the evidence; `history` as for `alarms`."""
        found: dict[Sign, dict[str, float]] = {}
        stds, returns = (
            _windows(history, "group_return_std", self.window),
            _windows(history, "return", self.window),
        )
        if len(stds) > 1 and len(stds) == len(returns):
            peak = max(range(len(stds)), key=stds.__getitem__)
            gain = returns[-1] - returns[peak]
            # A quarter of a deviation better would explain that episodes of a group are more alike.
            if stds[-1] < self.variance * stds[peak] and gain <= 0.25 * stds[peak]:
                found["variance"] = {
                    "deviation": stds[-1],
                    "at its highest": stds[peak],
                    "mean return": returns[-1],
                    "then": returns[peak],
                }
        entropies = _windows(history, "entropy", self.window)
        if len(entropies) > 1:
            if entropies[-1] < self.entropy * max(entropies):
                found["entropy"] = {"entropy": entropies[-1], "at its highest": max(entropies)}
            if entropies[-1] > entropies[0] / max(self.entropy, 1e-9):
                found["entropy-jump"] = {"entropy": entropies[-1], "at first": entropies[0]}
        norms = [float(record["grad_norm"]) for record in history if "grad_norm" in record]
        if history and "grad_norm" in history[-1] and len(norms) > self.window:
            usual = median(norms[-self.window - 1 : -1])
            if not math.isfinite(norms[-1]) or norms[-1] > self.gradient * usual > 0:
                found["gradient"] = {"norm": norms[-1], "median before": usual}
        raw = [float(record["group_return_std"]) for record in history if "group_return_std" in record]
        if len(raw) >= 2 * self.window:
            first, highest = fmean(raw[: self.window]), max(raw[-self.window :])
            solved = len(stds) == len(returns) and returns[-1] - returns[0] > 0.25 * first
            if highest < self.silence * first and not solved:
                found["silence"] = {"highest deviation": highest, "at first": first}
        # Before the mean falls: afterwards it is no warning any more.
        if "variance" in found and "entropy" in found:
            kept = found["variance"]["mean return"] >= found["variance"]["then"] - 0.25 * max(stds)
            if kept:
                found["echo-trap"] = {**found["variance"], **found["entropy"]}
        return found


ROLLED_BACK = "rolled_back_to"
"""The metric of an update after which the policy went back: the updates before the checkpoint that it went to."""


def line(history: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """The updates that led to the policy as it is: without the look before the first, and what rollbacks undid."""
    kept: list[Mapping[str, float]] = []
    for record in history:
        if record["update"]:
            kept.append(record)
        if ROLLED_BACK in record:
            kept = [one for one in kept if one["update"] <= record[ROLLED_BACK]]
    return kept


def _windows(history: Sequence[Mapping[str, float]], name: str, width: int) -> list[float]:
    """Means of `width` records in a row, one for each place where so many are there."""
    import numpy as np  # not when the command starts

    values = [float(record[name]) for record in history if name in record]
    if len(values) < width:
        return []
    means: list[float] = np.lib.stride_tricks.sliding_window_view(np.array(values), width).mean(axis=1).tolist()
    return means
