"""Interface between an agent and the loop that runs its episodes."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..envs.core import Info, TextEnv
from .episode import Episode, Limits
from .forks import Fork


@dataclass(slots=True)
class Seat:
    """State of one episode in progress, as passed to its agent.

    Attributes:
        env: The environment. Language agents use only `observation` and `env.instructions`; the expert also calls
            the environment's solver.
        observation: The current observation.
        info: The current `info`.
        episode: The episode recorded so far.
        rng: Random generator of this episode, seeded from it, so that actions do not depend on the other episodes
            in progress.
        memory: State that the agent keeps between turns.
        waiting_since: `time.perf_counter()` when the current turn was first passed to the agent; 0 before that.
        time_limit: Wall time of the episode in seconds; infinite without a limit.
        deadline: `time.perf_counter()` at which the time limit expires.
        step_time_limit: Wall time of a step of the environment in seconds; infinite without a limit.
        step_deadline: `time.perf_counter()` at which the limit of the step in progress expires.
        fork: State before the current turn; None unless `play` keeps forks.
        max_turns: Replies after which `play` truncates the episode; None for no limit.
        waits: True if `play` steps the environment in a thread; see `TextEnv.waits`.
        actions_left: Valid actions that the agent's own limits allow in the current turn; None for no limit.
        is_prepared: True from the agent's `begin` or `resume` to its `end`.
    """

    env: TextEnv[Any]
    observation: str
    info: Info
    episode: Episode
    rng: random.Random
    memory: Any = None
    waiting_since: float = 0.0
    time_limit: float = math.inf
    deadline: float = math.inf
    step_time_limit: float = math.inf
    step_deadline: float = math.inf
    fork: Fork | None = None
    max_turns: int | None = None
    waits: bool = False
    actions_left: int | None = None
    is_prepared: bool = False


class Stop(RuntimeError):
    """An error that ends the whole run, such as a rejected API key or a spent budget.

    Finished episodes are kept.
    """


@dataclass(frozen=True, slots=True)
class Reply:
    """An agent's answer in one turn.

    Attributes:
        actions: Actions to execute, in order; execution stops when the episode ends.
        text: The raw reply. None uses the actions, one per line.
        thought: The reasoning, if any.
        token_ids, logprobs, loss_mask, cut: See `Turn`.
        well_formed: True if the reply follows the dialogue's format.
        restart: See `Turn`.
        quit: Reason to truncate the episode after these actions; None to continue.
        error: Reason why the environment gave the agent no action, such as a failed solver. The episode is
            aborted, and a resumed run plays it again. An agent that fails itself raises, which ends the run.
        trace: Traceback of that error; None if there is none.
    """

    actions: tuple[str, ...]
    text: str | None = None
    thought: str | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    loss_mask: list[int] | None = None
    well_formed: bool = True
    cut: bool | None = None
    restart: bool | None = None
    quit: str | None = None
    error: str | None = None
    trace: str | None = None


class Agent(ABC):
    """A policy that acts in any number of episodes at once."""

    name: str
    """Name in tables and records."""

    uses_success_labels = False
    """True if the agent acts on the environment's success signal; reports mention it."""

    uses_simulator = False
    """True if the agent tries actions out in copies of the episode before it plays them; reports mention it."""

    one_process = False
    """True if all episodes must run in one process (a model in memory, a person at the keyboard)."""

    at_once: int | None = None
    """Maximum number of concurrent episodes; None for no limit."""

    def begin(self, seat: Seat) -> None:  # noqa: B027 (optional)
        """Prepare for an episode; called after the reset."""

    def save(self, seat: Seat) -> Any:
        """Return the agent's memory of an episode, for `resume`; called before a turn.

        The value is not changed afterwards. An agent without a memory needs neither method.

        Raises:
            Stop: The agent keeps a memory and does not define this method.
        """
        if seat.memory is None:
            return None
        kind = type(self).__name__
        raise Stop(
            f"episodes of agent {self.name} cannot be forked: {kind} keeps a memory between turns; define save()"
            f" and resume() in {kind}."
        )

    def resume(self, seat: Seat, memory: Any) -> None:
        """Prepare for an episode that begins with the turns of another; called instead of `begin`.

        Args:
            seat: The episode, whose turns are those that it shares with the other one.
            memory: Value that `save` returned after these turns of the other episode.
        """
        self.begin(seat)

    @abstractmethod
    def act(self, seats: Sequence[Seat]) -> Sequence[Reply | None]:
        """Return the reply of each seat, in order.

        An agent that serves many seats concurrently may return None for seats whose reply is not ready; these are
        passed again in the next call. It must block rather than return None for every seat, unless `wake` is
        called.
        """

    def wake(self) -> None:  # noqa: B027 (optional)
        """Have an `act` in progress return soon, if need be with None for every seat.

        `play` calls it from other threads when an environment that waits has finished a step, whose episode then
        joins the next `act`. Without this method it joins when `act` returns by itself. A call while no `act` is
        in progress may shorten the next one.
        """

    def limits(self, seat: Seat) -> Limits:
        """Return the turns and actions that the agent's own limits still allow; the loop's are not counted."""
        return Limits(None, None)

    def settle(self, seat: Seat) -> str | None:
        """Process the turn that was just executed, which is the last of `seat.episode.turns`.

        Returns:
            A reason to truncate the episode, or None to continue.
        """
        return None

    def again(self, seat: Seat) -> bool:
        """Return True to attempt the same task again; called after an episode that ended without an error."""
        return False

    def end(self, seat: Seat) -> None:  # noqa: B027 (optional)
        """Release the resources of an episode; called when it has ended for any reason."""
