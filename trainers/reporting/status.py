"""One-line descriptions of what a run is doing, and how long it will take."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from ..state import Activity, Phase

_RECENT = 10
"""Records whose mean duration predicts that of the following ones."""


def describe_phase(activity: Activity, phase: Phase | None) -> str:
    """Return the place and the phase in progress, such as "update 3 of 200: rolling out 12 of 64 episodes".

    Args:
        activity: Activity of the run.
        phase: Its phase, read once for all descriptions, since the run may end it at any time.
    """
    if phase is None:
        return activity.place
    counted = f" {phase.done:,} of {phase.total:,} {phase.unit}" if phase.total else ""
    turns = f", {activity.turns:,} turns" if activity.turns else ""
    return f"{activity.place}{': ' if activity.place else ''}{phase.name}{counted}{turns}"


def describe_time(phase: Phase | None) -> str:
    """Return the time since a phase began, and an estimate of the time that it still takes."""
    now = time.monotonic()
    if phase is None:
        return ""
    left = phase.seconds_left(now)
    elapsed = format_duration(now - phase.started)
    return elapsed if left is None else f"{elapsed}, about {format_duration(left)} left"


def run_seconds_left(
    records: Sequence[Mapping[str, float]], total: int, max_tokens: int | None = None
) -> float | None:
    """Return an estimate of the run's remaining time in seconds, from its latest updates; None without any.

    Args:
        records: Metrics of the updates so far; the seconds of their phases are named "seconds/…".
        total: Updates in total.
        max_tokens: Generated tokens after which the run ends before `total`; None without such a limit.
    """
    timed = [
        record for record in records if record["update"] and any(name.startswith("seconds/") for name in record)
    ]
    recent = timed[-_RECENT:]
    if not recent:
        return None
    updates_left = max(total - recent[-1]["update"], 0)
    if max_tokens is not None:
        spent = sum(record.get("sampled_tokens", 0.0) for record in timed)
        rate = sum(record.get("sampled_tokens", 0.0) for record in recent) / len(recent)
        updates_left = min(updates_left, max(math.ceil((max_tokens - spent) / max(rate, 1.0)), 0))
    seconds = sum(value for record in recent for name, value in record.items() if name.startswith("seconds/"))
    return seconds / len(recent) * updates_left


def format_duration(seconds: float) -> str:
    """Return a duration in a unit that suits its size, such as "8 s", "12 min" or "3 h 20 min"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
