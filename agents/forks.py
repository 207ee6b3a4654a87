"""Forks: the state of an episode before a turn, from which further episodes continue.

`play(…, keep={"forks"})` attaches a `Fork` to every turn. A job with an `Origin` begins with the first turns of a
played episode and continues from the fork before the next one: with the environment's state restored, the agent's
memory resumed, and nothing computed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..envs.core import Info, TextEnv
from ..envs.errors import ConfigurationError
from ..envs.snapshots import Snapshot
from .recorded_start import reset_as_recorded

if TYPE_CHECKING:
    from .base import Seat
    from .episode import Episode

Keep = Literal["states", "forks", "choices", "limits", "snapshots"]
"""What `play` records of every turn in addition: state keys and effects, forks, the admissible actions, the
remainder of the limits, or snapshots of the environment."""


class CannotFork(ConfigurationError):
    """An episode cannot be forked; the reason is the environment's or the agent's class, or the caller's order."""


@dataclass(frozen=True, slots=True, eq=False)
class Fork:
    """State of an episode before a turn.

    Attributes:
        snapshot: State of the environment; None if it has no snapshots and its actions are replayed instead.
        observation: Observation before the turn.
        info: `info` before the turn.
        memory: Memory of the agent, as `Agent.save` returns it.
    """

    snapshot: Snapshot | None
    observation: str
    info: Info
    memory: Any


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Place in a played episode from which another one continues.

    Attributes:
        episode: The played episode, with forks (`play(…, keep={"forks"})`).
        turns: Number of its turns that the new episode begins with.
        redraw: Draw the random events of the environment anew, from the seed of the job. False repeats those of
            the played episode as long as the actions are the same.
    """

    episode: Episode
    turns: int
    redraw: bool = True

    @property
    def fork(self) -> Fork:
        """The state before turn `turns`.

        Raises:
            CannotFork: The episode has no such turn, or has no fork before it.
        """
        turns = self.episode.turns
        if not 0 <= self.turns < len(turns):
            raise CannotFork(
                f"an episode of {len(turns)} turns cannot be forked before turn {self.turns + 1}; fork it before"
                " one of its turns."
            )
        fork = turns[self.turns].fork
        if fork is None:
            raise CannotFork(
                f"turn {self.turns + 1} of the episode of task {self.episode.task!r} has no fork; play it with"
                ' keep={"forks"}.'
            )
        return fork

    def begin(self, agent: str, seed: int) -> Episode:
        """Return the beginning of a new episode: the shared turns, the same objects, and their exchanges."""
        from .episode import Episode

        origin = self.episode
        return Episode(
            origin.env,
            origin.task,
            seed,
            agent,
            details={"reused_turns": self.turns},
            trials=[*origin.trials],
            turns=origin.turns[: self.turns],
            exchanges=[exchange for exchange in origin.exchanges if exchange.turn < self.turns],
        )


def take_fork(seat: Seat, memory: Any) -> Fork:
    """Return the fork before the next turn of a seat.

    Args:
        seat: The episode.
        memory: Memory of its agent, as `Agent.save` returns it.

    Raises:
        CannotFork: The environment has neither snapshots nor `deterministic = True`.
    """
    return Fork(take_snapshot(seat.env), seat.observation, seat.info, memory)


def take_snapshot(env: TextEnv[Any]) -> Snapshot | None:
    """Return the environment's snapshot; None if it has none, but is deterministic, so that a replay will do.

    Raises:
        CannotFork: It has neither.
    """
    snapshot = getattr(env, "snapshot", None)
    if snapshot is not None:
        try:
            taken: Snapshot = snapshot()
            return taken
        except NotImplementedError:
            pass
    if getattr(env, "deterministic", False):
        return None
    name = env.spec.id if env.spec is not None else type(env).__name__
    raise CannotFork(
        f"{name} cannot be forked: it has no snapshot(); define snapshot() and restore() in {type(env).__name__},"
        " or set `deterministic = True` there if the task and the actions determine the whole episode."
    )


def open_fork(seat: Seat, origin: Origin, seed: int) -> None:
    """Bring a seat's environment, observation and info into the state of an origin.

    Args:
        seat: The new episode.
        origin: Where it begins.
        seed: Seed of its random events.

    Raises:
        RuntimeError: A replay gave another observation than recorded.
    """
    fork = origin.fork
    if fork.snapshot is None:
        replay(seat.env, origin.episode, origin.turns)
    else:
        seat.env.restore(fork.snapshot, seed if origin.redraw else None)
    seat.observation, seat.info = fork.observation, dict(fork.info)


def replay(env: TextEnv[Any], episode: Episode, turns: int) -> None:
    """Reset an environment and execute the actions of the first turns of an episode.

    Raises:
        RuntimeError: An observation differs from the recorded one.
    """
    observation, _ = reset_as_recorded(env, episode.task, episode.seed, episode.chance_seed)
    for number, turn in enumerate(episode.turns[: turns + 1], 1):
        if observation != turn.observation:
            raise RuntimeError(
                f"replaying the recorded actions gave another observation before turn {number}, although"
                f" {type(env).__name__} declares `deterministic = True`"
            )
        for move in turn.moves if number <= turns else ():
            observation, *_ = env.step(move.action)
