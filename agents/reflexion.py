"""Reflexion (Shinn et al., 2023, arXiv:2303.11366): try, look back on the failure, try again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .base import Reply, Seat
from .engines.base import Completion, Message
from .language import LanguageAgent, Talk

LOOK_BACK = (
    "You tried a task in the world described below and did not solve it. Read the record of the attempt, say what"
    " went wrong, and write a short plan for the next attempt that avoids it. Answer with the plan only, in a few"
    " sentences."
)
MEMORY = 3
"""How many of the latest reflections are shown (the paper's setting, and T-STAR's)."""


@dataclass(slots=True)
class Trial(Talk):
    """A conversation that knows the reflections on earlier trials.

    Attributes:
        reflections: what was noted after each failed trial, the oldest first.
        record: the last failed trial as text, while the reflection on it is still to be written.
    """

    reflections: list[str] = field(default_factory=list)
    record: str | None = None


class Reflexion(LanguageAgent):
    """Plays a task up to `trials` times, with the reflections on its failures in mind.

    It learns from the world whether a trial succeeded, so its results use success labels, which reports say. The
    episode that counts is the last trial; the earlier ones are kept in its `trials`, and `details` tells the
    number of the trial and the latest reflection.

    Args:
        trials: attempts at most, the first one included.
        settings: see `LanguageAgent`.
    """

    uses_success_labels = True

    def __init__(self, *args: Any, trials: int = 4, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.trials = trials

    def begin(self, seat: Seat) -> None:
        before = seat.memory
        super().begin(seat)
        talk: Talk = seat.memory
        trial = seat.memory = Trial(talk.name, talk.messages)
        if isinstance(before, Trial):
            trial.reflections, trial.record = before.reflections, before.record
        seat.episode.details["trial"] = len(seat.episode.trials) + 1

    def again(self, seat: Seat) -> bool:
        episode = seat.episode
        if episode.success or len(episode.trials) + 1 >= self.trials:
            return False
        seat.memory.record = _record(seat)
        return True

    def ask(self, seat: Seat, text: str | None = None) -> Reply | None:
        trial: Trial = seat.memory
        if trial.record is None:
            return super().ask(seat, text)
        self.aside(seat, LOOK_BACK, trial.record, "reflection")
        return None

    def hear(self, seat: Seat, completion: Completion) -> Reply | None:
        trial: Trial = seat.memory
        if trial.record is None or completion.finish == "error":
            return super().hear(seat, completion)
        trial.record = None
        trial.reflections.append(completion.text.strip())
        recent = trial.reflections[-MEMORY:]
        first = len(trial.reflections) - len(recent) + 1
        notes = [f"After attempt {k}: {text}" for k, text in enumerate(recent, first)]
        told = f"{trial.messages[0].content}\n\nWhat you noted about earlier attempts at this task:\n" + "\n".join(
            notes
        )
        trial.messages[0] = Message("system", told)
        seat.episode.details["reflection"] = trial.reflections[-1]
        return self.ask(seat)


def _record(seat: Seat) -> str:
    """The failed attempt as text."""
    episode = seat.episode
    lines = [seat.env.instructions, ""]
    for turn in episode.turns:
        lines += [turn.observation, *(f"> {move.action}" for move in turn.moves)]
    lines += [episode.final_observation, "", "The task was not solved."]
    return "\n".join(lines)
