"""Reflexion (Shinn et al., 2023, arXiv:2303.11366): try, look back on the failure, try again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .base import Reply, Seat
from .engines.base import Completion, Message, Request
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
        before = seat.memory if isinstance(seat.memory, Trial) else None
        super().begin(seat)
        talk: Talk = seat.memory
        trial = Trial(talk.name, talk.system)
        seat.memory = trial
        if before is not None:
            trial.reflections = before.reflections
            trial.record = before.record
        seat.episode.details["trial"] = len(seat.episode.trials) + 1

    def again(self, seat: Seat) -> bool:
        episode = seat.episode
        if episode.success or len(episode.trials) + 1 >= self.trials:
            return False
        seat.memory.record = _record(seat)
        return True

    def ask(self, seat: Seat) -> Reply | None:
        trial: Trial = seat.memory
        if trial.record is None:
            return super().ask(seat)
        messages = (Message("system", LOOK_BACK), Message("user", trial.record))
        self.engine.submit(
            Request(
                conversation=trial.name,
                messages=messages,
                prompt_ids=self.chat.opening(messages) if self.chat is not None else None,
                sampling=replace(self.sampling, stop=()),
                seed=seat.rng.getrandbits(31),
            )
        )
        trial.waiting = True
        return None

    def hear(self, seat: Seat, completion: Completion) -> Reply | None:
        trial: Trial = seat.memory
        if trial.record is None or completion.finish == "error":
            return super().hear(seat, completion)
        trial.waiting = False
        trial.record = None
        self.engine.release(trial.name)
        trial.name += "'"  # the trial itself is another conversation
        trial.reflections.append(completion.text.strip())
        recent = trial.reflections[-MEMORY:]
        first = len(trial.reflections) - len(recent) + 1
        notes = [f"After attempt {k}: {text}" for k, text in enumerate(recent, first)]
        trial.system += "\n\nWhat you noted about earlier attempts at this task:\n" + "\n".join(notes)
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
