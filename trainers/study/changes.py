"""First and last updates of the runs of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from ...envs.files import read_jsonl
from ..checkpoints.run_folder import METRICS_FILE
from .definition import Study, Trial

MEASURES = ("success", "return", "group_return_std", "entropy", "reply_tokens")
"""Metrics of an update, of which the table of changes has the first and the last ones."""

Changes = Mapping[str, tuple[float, float]]
"""Means of metrics over the first and over the last updates of a run."""


def read_changes(study: Study, trial: Trial, out: Path) -> Changes:
    """Return the means of `MEASURES` over the first and the last window of a finished run's updates.

    The window is the monitor's. Metrics that the run lacks are left out; a run shorter than two has none.
    """
    window = study.config(trial, out).monitor.window
    history = [one for one in read_jsonl(out / trial.folder / METRICS_FILE, damaged="skip") if one["update"]]
    found = {}
    for name in MEASURES:
        values = [one[name] for one in history if name in one]
        if len(values) >= 2 * window:
            found[name] = (fmean(values[:window]), fmean(values[-window:]))
    return found


def mean_changes(runs: Sequence[Changes]) -> Changes:
    """Return the means over runs of the metrics that all of them have; empty without runs."""
    names = [name for name in runs[0] if all(name in run for run in runs)] if runs else []
    return {name: (fmean(run[name][0] for run in runs), fmean(run[name][1] for run in runs)) for name in names}
