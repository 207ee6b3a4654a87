"""One-line descriptions of what a run is doing, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ..state import Activity

_RECENT = 10
"""Records whose mean duration predicts that of the following ones."""


def describe_phase(activity: Activity) -> str:
    """Return the place and the phase in progress, such as "update 3 of 200: rolling out 12 of 64 episodes"."""
    phase = activity.phase
    if phase is None:
        return activity.place
    counted = f" {phase.done:,} of {phase.total:,} {phase.unit}" if phase.total else ""
    turns = f", {activity.turns:,} turns" if activity.turns else ""
    return f"{activity.place}{': ' if activity.place else ''}{phase.name}{counted}{turns}"


def describe_time(activity: Activity) -> str:
    """Return the time since the phase began, and an estimate of the time that it still takes."""
    phase, now = activity.phase, time.monotonic()
    if phase is None:
        return ""
    left = phase.seconds_left(now)
    elapsed = format_duration(now - phase.started)
    return elapsed if left is None else f"{elapsed}, about {format_duration(left)} left"


def run_seconds_left(records: Sequence[Mapping[str, float]], total: int) -> float | None:
    """Return an estimate of the run's remaining time in seconds, from its latest updates; None without any.

    Args:
        records: Metrics of the updates so far; the seconds of their phases are named "seconds/…".
        total: Updates in total.
    """
    timed = [
        record for record in records if record["update"] and any(name.startswith("seconds/") for name in record)
    ]
    recent = timed[-_RECENT:]
    if not recent:
        return None
    seconds = sum(value for record in recent for name, value in record.items() if name.startswith("seconds/"))
    return seconds / len(recent) * max(total - recent[-1]["update"], 0)


def format_duration(seconds: float) -> str:
    """Return a duration in a unit that suits its size, such as "8 s", "12 min" or "3 h 20 min"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
