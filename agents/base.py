"""The interface between a player and the loop that plays it."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..envs.core import Info, TextEnv
from .episode import Episode


@dataclass(slots=True)
class Seat:
    """One episode in progress, as its player sees it.

    Attributes:
        env: the world itself. Language agents look at `observation` and `env.instructions` only; the expert may
            look further.
        observation: the current text.
        info: the current `info`.
        episode: the record so far.
        rng: the player's own generator, seeded by the episode: replies do not depend on who plays beside it.
        memory: whatever the player keeps between turns.
        asked: when the current turn was first put to the player (`time.perf_counter`); 0 before.
    """

    env: TextEnv[Any]
    observation: str
    info: Info
    episode: Episode
    rng: random.Random
    memory: Any = None
    asked: float = 0.0


class Stop(RuntimeError):
    """A player cannot go on: its budget is spent, its key is refused. Ends the run, and loses nothing finished."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A player's answer in one turn.

    Attributes:
        actions: what to do, in order; execution stops when the episode ends.
        text: the raw reply (default: the actions, one a line).
        thought: its reasoning, if any.
        token_ids, logprobs, loss_mask: see `Turn`.
        well_formed: whether the reply kept to the dialogue's format.
        restart: see `Turn`.
        quit: ends the episode after these actions as truncated, for the reason given.
        error: why there is no reply; the episode breaks off and a resumed run plays it again.
    """

    actions: tuple[str, ...]
    text: str | None = None
    thought: str | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    loss_mask: list[int] | None = None
    well_formed: bool = True
    restart: bool | None = None
    quit: str | None = None
    error: str | None = None


class Agent(ABC):
    """A player of any number of episodes at once."""

    name: str
    """How tables and records call it."""

    uses_success_labels = False
    """Whether the player learns from the world if it succeeded, and acts on it; reports say so."""

    one_process = False
    """Whether all episodes must be played in one process (a model in memory, a person at the keyboard)."""

    at_once: int | None = None
    """The most episodes it can play at the same time; None for any number."""

    def begin(self, seat: Seat) -> None:  # noqa: B027 (optional)
        """Called when an episode starts."""

    @abstractmethod
    def act(self, seats: Sequence[Seat]) -> Sequence[Reply | None]:
        """Reply to each seat, in order.

        A player that works on many seats at once may return None for those whose reply is not ready yet, and is
        asked for them again; it waits itself, rather than return None for all of them time after time.
        """

    def settle(self, seat: Seat) -> str | None:
        """Called when a turn was carried out and is the last of `seat.episode.turns`.

        Returns:
            A reason to end the episode as truncated, or None to go on.
        """
        return None

    def again(self, seat: Seat) -> bool:
        """Called when an episode has ended without an error: whether to try the same task once more."""
        return False

    def end(self, seat: Seat) -> None:  # noqa: B027 (optional)
        """Called when an episode has ended, for whatever reason."""
