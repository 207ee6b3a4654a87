"""Reflexion (Shinn et al., 2023, arXiv:2303.11366): retry a failed task with reflections on the failures."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .base import Reply, Seat
from .checks import check_counts
from .engines.base import Completion, Message, Sampling
from .language import ChatState, LanguageAgent

REFLECTION_PROMPT = (
    "You tried a task in the world described below and did not solve it. Read the record of the attempt, say what"
    " went wrong, and write a short plan for the next attempt that avoids it. Answer with the plan only, in a few"
    " sentences."
)
MAX_REFLECTIONS = 3
"""Number of latest reflections in the prompt (the setting of the paper and of T-STAR)."""


@dataclass(slots=True, kw_only=True)
class TrialState(ChatState):
    """The conversation of one trial, with the reflections on earlier trials.

    Attributes:
        reflections: The reflection on each failed trial, oldest first.
        transcript: The last failed trial as text, until the reflection on it has been sampled; else None.
    """

    reflections: list[str] = field(default_factory=list)
    transcript: str | None = None

    def copy(self) -> TrialState:
        return replace(self, usage=replace(self.usage), reflections=[*self.reflections])


class Reflexion(LanguageAgent):
    """Agent that attempts a task up to `trials` times, with reflections on its failures in the prompt.

    It retries depending on the environment's success signal, so its results use success labels, which reports
    mention. The recorded episode is the last trial; its `trials` are the earlier ones, and its `details` have the
    number of the trial and the latest reflection.

    Args:
        trials: Maximum number of attempts, the first one included.
        settings: See `LanguageAgent`.
    """

    uses_success_labels = True

    def __init__(self, *args: Any, trials: int = 4, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.check(self.sampling, trials=trials)
        self.trials = trials

    @classmethod
    def check(cls, sampling: Sampling, **settings: Any) -> None:
        check_counts(settings, trials=1)

    def begin(self, seat: Seat) -> None:
        previous = seat.memory
        super().begin(seat)
        chat: ChatState = seat.memory
        trial = seat.memory = TrialState(chat.messages, name=chat.name)
        if isinstance(previous, TrialState):
            trial.reflections, trial.transcript = previous.reflections, previous.transcript
            trial.usage = previous.usage  # usage accumulates over the trials of a task
        seat.episode.details["trial"] = len(seat.episode.trials) + 1

    def again(self, seat: Seat) -> bool:
        episode = seat.episode
        if episode.success or len(episode.trials) + 1 >= self.trials:
            return False
        seat.memory.transcript = _transcript(seat)
        return True

    def ask(self, seat: Seat, text: str | None = None) -> Reply | None:
        trial: TrialState = seat.memory
        if trial.transcript is None:
            return super().ask(seat, text)
        self.ask_separately(seat, REFLECTION_PROMPT, trial.transcript, "reflection")
        return None

    def receive(self, seat: Seat, completion: Completion) -> Reply | None:
        trial: TrialState = seat.memory
        if trial.transcript is None or completion.finish in ("error", "rejected"):
            return super().receive(seat, completion)
        trial.transcript = None
        trial.reflections.append(completion.text.strip())
        recent = trial.reflections[-MAX_REFLECTIONS:]
        first = len(trial.reflections) - len(recent) + 1
        notes = [f"After attempt {k}: {text}" for k, text in enumerate(recent, first)]
        heading = f"{trial.messages[0].content}\n\nWhat you noted about earlier attempts at this task:\n"
        trial.messages = [Message("system", heading + "\n".join(notes)), *trial.messages[1:]]
        seat.episode.details["reflection"] = trial.reflections[-1]
        return self.ask(seat)


def _transcript(seat: Seat) -> str:
    """Return the failed trial as text."""
    episode = seat.episode
    lines = [seat.env.instructions, ""]
    for turn in episode.turns:
        lines += [turn.observation, *(f"> {move.action}" for move in turn.moves)]
    lines += [episode.final_observation, "", "The task was not solved."]
    return "\n".join(lines)
