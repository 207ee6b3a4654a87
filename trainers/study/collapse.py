"""Collapse of a study's runs: when success fell, and when the monitor saw it coming."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...envs.files import read_jsonl
from ..checkpoints.run_folder import METRICS_FILE
from ..monitor import Alarm, Monitor, moving_averages
from .definition import Study, Trial

FALLEN = 0.5
"""A run has collapsed when the moving average of its success is below this fraction of its peak until the end."""
WARNINGS = ("echo-trap", "silence", "variance", "entropy")
"""Signs of the monitor that announce a collapse; "entropy-jump" and "gradient" are spikes."""


@dataclass(frozen=True)
class RunCollapse:
    """Success of one run: its peak, a lasting fall from it, and the alarms before.

    Attributes:
        updates: Updates of the run.
        peak: Highest moving average of the success of training episodes.
        last: Last moving average.
        fell: First update from which on the moving average stays below `FALLEN` of the peak; None if the run did
            not collapse.
        warning: First alarm with one of `WARNINGS`; None without one.
        trap: First alarm with the sign "echo-trap"; None without one.
    """

    updates: int
    peak: float
    last: float
    fell: int | None
    warning: Alarm | None
    trap: Alarm | None

    def to_dict(self) -> dict[str, object]:
        """Return the run's collapse as plain data, alarms as the update and the sign."""
        data: dict[str, object] = {
            "updates": self.updates,
            "peak": self.peak,
            "last": self.last,
            "fell": self.fell,
        }
        for name, alarm in (("warning", self.warning), ("trap", self.trap)):
            data[name] = None if alarm is None else {"update": alarm.update, "sign": alarm.sign}
        return data


def find_collapse(history: Sequence[Mapping[str, float]], monitor: Monitor) -> RunCollapse | None:
    """Return what happened to the success of a run; None for a run shorter than the monitor's window.

    Args:
        history: Its metrics, update by update.
        monitor: Settings of the monitor, whose window is the width of the moving average.
    """
    measured = [record for record in history if record["update"] and "success" in record]
    means = moving_averages(measured, "success", monitor.window)
    if not means:
        return None
    peak = max(means)
    first_fallen = max(place for place, mean in enumerate(means) if mean >= FALLEN * peak) + 1
    fell = None
    if peak > 0 and first_fallen < len(means):
        fell = int(measured[first_fallen + monitor.window - 1]["update"])
    alarms = monitor.all_alarms(history)
    return RunCollapse(
        int(measured[-1]["update"]),
        peak,
        means[-1],
        fell,
        next((alarm for alarm in alarms if alarm.sign in WARNINGS), None),
        next((alarm for alarm in alarms if alarm.sign == "echo-trap"), None),
    )


def read_collapse(study: Study, trial: Trial, out: Path) -> RunCollapse | None:
    """Return what happened to the success of a finished run; None for a run shorter than the monitor's window.

    Args:
        study: Study.
        trial: One of its trials.
        out: Folder of the study.
    """
    history = read_jsonl(out / trial.folder / METRICS_FILE, damaged="skip")
    return find_collapse(history, study.config(trial, out).monitor)
