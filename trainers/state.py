"""State of a run: counters, which are part of every checkpoint, and the phase in progress, which displays read."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

T = TypeVar("T")


@dataclass
class TrainerState:
    """Counters of a training run.

    Attributes:
        update: Updates made.
        batch: Generation batches rolled out.
        task: Tasks drawn.
        rollbacks: Rollbacks to an earlier checkpoint. The other counters never go back: undone updates were
            sampled all the same, and their tasks and seeds are not used twice.
        tokens: Tokens generated.
        uninformative: Consecutive updates without any advantage, which took no step.
    """

    update: int = 0
    batch: int = 0
    task: int = 0
    rollbacks: int = 0
    tokens: int = 0
    uninformative: int = 0


class Phase(NamedTuple):
    """Part of an update, such as rolling out, and its progress.

    Attributes:
        name: Description, such as "rolling out".
        unit: Unit of `done` and `total`, in the plural; empty if the phase is not countable.
        done: Units done.
        total: Units in total; 0 if unknown.
        started: Start, in seconds of `time.monotonic`.
        expected: Seconds that the phase took the last time; None the first time.
    """

    name: str
    unit: str
    done: int
    total: int
    started: float
    expected: float | None

    def seconds_left(self, now: float) -> float | None:
        """Return an estimate of the remaining time in seconds; None as long as there is no basis for one.

        Args:
            now: Current time, in seconds of `time.monotonic`.
        """
        elapsed = now - self.started
        # Most episodes of a batch end together, so the last duration predicts better than the fraction done.
        if self.expected is not None and self.expected > elapsed:
            return self.expected - elapsed
        if 0 < self.done < self.total:
            return elapsed * (self.total - self.done) / self.done
        return None


class Activity:
    """Phase in progress of a run. The run writes it; a display may read it at any time, from another thread.

    Attributes:
        place: Position in the run, such as "update 3 of 200"; empty before the first update.
        phase: Phase in progress; None between two phases.
        turns: Turns rolled out in this phase.
        notice: Message about the run's immediate future, such as a requested stop; empty for none.
    """

    def __init__(self) -> None:
        self.place = ""
        self.phase: Phase | None = None
        self.turns = 0
        self.notice = ""
        self._durations: dict[str, float] = {}

    def begin(self, name: str, total: int = 0, unit: str = "") -> None:
        """Begin a phase, and end the one before.

        Args:
            name: Description of the phase, such as "rolling out".
            total: Units of progress in total; 0 if the phase is not countable.
            unit: Unit of progress, in the plural.
        """
        self.end()
        self.turns = 0
        self.phase = Phase(name, unit, 0, total, time.monotonic(), self._durations.get(name))

    def advance(self, count: int = 1, *, total: int | None = None) -> None:
        """Count progress of the phase.

        Args:
            count: Further units done.
            total: New total of the phase; None leaves it as it is.
        """
        if self.phase is not None:
            total = self.phase.total if total is None else total
            self.phase = self.phase._replace(done=self.phase.done + count, total=total)

    def count(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items, and count each as one unit of progress of the phase."""
        for item in items:
            self.advance()
            yield item

    def end(self) -> None:
        """End the phase in progress, if there is one."""
        if self.phase is not None:
            self._durations[self.phase.name] = time.monotonic() - self.phase.started
        self.phase = None
