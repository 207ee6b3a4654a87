"""Replay of stored episodes in their environments.

A stored episode has observations and actions, but no states. Its task and seed determine all random events, so
the same actions lead through the same states again; where an observation differs from the stored one (other data,
another version), the replay ends and says so.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from ...agents.episode import Episode, Move
from ...agents.recorded_start import reset_as_recorded
from ...envs.core import TextEnv
from ...envs.errors import ConfigurationError
from ...envs.snapshots import Snapshot
from ...envs.user_code import describe_failure
from ..suite import Entry

T = TypeVar("T")


class Decision(NamedTuple):
    """One action of an episode, or a turn without any.

    Attributes:
        turn: Index of the turn.
        place: Index of the action within the turn.
        move: The action and its outcome; None for a turn without actions.
    """

    turn: int
    place: int
    move: Move | None


@dataclass
class Replay:
    """States of an episode. Position p is the state before decision p; the last position is the end.

    Attributes:
        decisions: Actions of the episode, and turns without any.
        observations: Observation at each position, as stored where it is, otherwise as the environment repeats it.
        snapshots: State at each position, as far as it could be repeated.
        fault: Reason why the positions after the last snapshot have none; None if all have.
    """

    decisions: list[Decision]
    observations: list[str]
    snapshots: list[Snapshot] = field(default_factory=list)
    fault: str | None = None

    @property
    def end(self) -> int:
        """The last position."""
        return len(self.decisions)

    def snapshot(self, position: int) -> Snapshot | None:
        """Return the state at a position; None if it could not be repeated."""
        return self.snapshots[position] if position < len(self.snapshots) else None


def list_decisions(episode: Episode) -> list[Decision]:
    """Return the actions of an episode in order, with turns without actions in their places."""
    found = []
    for number, turn in enumerate(episode.turns):
        found += [Decision(number, place, move) for place, move in enumerate(turn.moves)]
        if not turn.moves:
            found.append(Decision(number, 0, None))
    return found


def stored_replay(episode: Episode, fault: str | None = None) -> Replay:
    """Return the positions of an episode without states."""
    decisions = list_decisions(episode)
    shown = [episode.turns[decision.turn].observation if decision.place == 0 else "" for decision in decisions]
    return Replay(decisions, [*shown, episode.final_observation], fault=fault)


def check_snapshots(env: TextEnv[Any]) -> None:
    """Raise `ConfigurationError` if an environment has no snapshots."""
    if getattr(env, "snapshot", None) is None:
        raise ConfigurationError(
            f"{type(env).__name__} has no snapshots, so the viewer can neither go to its states nor play it."
        )


def replay_episode(env: TextEnv[Any], episode: Episode, seed: int) -> Replay:
    """Repeat an episode.

    Args:
        env: Environment of its entry; it is left in the last state.
        episode: The episode.
        seed: Seed of the trial, see `agents.execution.trial_seed`.

    Raises:
        ConfigurationError: The environment has no snapshots.
    """
    check_snapshots(env)
    replay = stored_replay(episode)
    try:
        observation, info = reset_as_recorded(env, episode.task, seed, episode.chance_seed)
        for position, (turn, place, move) in enumerate(replay.decisions):
            if place == 0 and observation != episode.turns[turn].observation:
                replay.fault = _differs(position)
                return replay
            replay.observations[position] = observation
            replay.snapshots.append(env.snapshot())
            if move is not None:
                observation, _, _, _, info = env.step(move.action)
                if info["valid"] != move.valid or info["changed"] != move.changed:
                    replay.fault = _differs(position + 1)
                    return replay
        if episode.error is None and observation != episode.final_observation:
            replay.fault = _differs(replay.end)
            return replay
        replay.snapshots.append(env.snapshot())
    except Exception as error:  # Environments may come from plug-ins.
        replay.fault = describe_failure("the environment", error)
    return replay


def _differs(position: int) -> str:
    return (
        f"from step {position + 1} on the environment answers differently than it did in the run; its data or its"
        " version is another one"
    )


class LeastRecent(Generic[T]):
    """Mapping of bounded size that drops what was used least recently. Threads may share it.

    Args:
        size: Maximum number of values.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key, made on first use; threads may make one at the same time."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            value = self._values.setdefault(key, value)
            self._values.move_to_end(key)
            while len(self._values) > self._size:
                self._values.popitem(last=False)
        return value


class Bench:
    """Environments of entries, each for one thread at a time.

    Args:
        size: Maximum number of environments.
    """

    def __init__(self, size: int = 12) -> None:
        self._envs: LeastRecent[tuple[TextEnv[Any], threading.Lock]] = LeastRecent(size)

    @contextmanager
    def env(self, entry: Entry, *, is_slow: bool = False) -> Iterator[TextEnv[Any]]:
        """Context with the environment of an entry, in any state.

        Args:
            entry: The entry.
            is_slow: Use another environment than quick requests, which need not wait then.

        Raises:
            ConfigurationError: It cannot be made, for example because data is missing.
        """
        env, lock = self._envs.get((repr(entry), is_slow), lambda: (entry.make(), threading.Lock()))
        with lock:
            yield env
