"""Snapshots of episodes: capture an episode, check a snapshot, and continue from it."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .errors import ConfigurationError
from .seeding import stable_seed

_SOURCE = "restore a value that snapshot() returned"
_MAX_RNG_STATE = (1 << 64) - 1


class Snapshot(NamedTuple):
    """Complete state of an episode: a small, immutable, picklable value. See `TextEnv.snapshot` and `restore`.

    Attributes:
        task: Name of the open task.
        identity: Class, configuration and reward mode of the environment.
        level: Digest of the open level, which tells two levels of the same name apart.
        state: State of the environment.
        steps: Number of steps taken.
        max_steps: Step limit, or None.
        rng_state: 64-bit state of the episode's random generator.
        terminated: True if the episode ended by the environment's own rules.
        truncated: True if the step limit ended the episode.
        success: True if the task is solved.
    """

    task: str
    identity: str
    level: str
    state: Any
    steps: int
    max_steps: int | None
    rng_state: int
    terminated: bool
    truncated: bool
    success: bool


class SnapshotRules:
    """Base of environments whose episodes can be captured and continued."""

    if TYPE_CHECKING:  # Members of `TextEnv`.
        max_steps: int | None
        _digest: str | None
        _first_state: Any
        _identity: str
        _issued: Snapshot | None
        _replaced_limit: tuple[int | None, int | None] | None
        _rng_state: int
        _state: Any
        _steps: int
        _success: bool
        _task: str | None
        _terminated: bool
        _truncated: bool

        @property
        def task(self) -> str: ...
        def _has_task(self, task: str) -> bool: ...
        def _open(self, task: str) -> Any: ...
        def _open_class(self) -> None: ...

    def _level_content(self) -> object:
        """Return what the open level consists of, as a value whose `repr` is the same in every process.

        A snapshot contains its digest, so that it is not restored over another level of the same name. None if
        the task's name and the configuration determine the level.
        """
        return None

    def _is_possible(self, snapshot: Snapshot) -> bool:
        """Return True if an episode of the open level can have the state and the flags of a snapshot.

        The other fields have been checked, and the snapshot belongs to the open level. A state of any other kind
        may cause a TypeError, ValueError, LookupError or AttributeError.
        """
        return True

    def snapshot(self) -> Snapshot:
        """Return the episode as a small immutable value, its random generator and step count included.

        Gymnasium's `np_random`, which draws the task of the *next* unseeded reset, is not part of the episode.
        """
        self._issued = Snapshot(
            self.task,  # raises before the first reset
            self._identity,
            self._digest or self._digest_level(),
            self._state,
            self._steps,
            self.max_steps,
            self._rng_state,
            self._terminated,
            self._truncated,
            self._success,
        )
        return self._issued

    def restore(self, snapshot: Snapshot, seed: int | None = None) -> None:
        """Continue from a snapshot of this environment, or of an equally configured one in any process.

        Args:
            snapshot: Value that `snapshot` returned.
            seed: None continues identically, random events included. A non-negative integer draws the random
                events after the snapshot anew: the same for the same snapshot and seed, independent otherwise.

        Raises:
            ConfigurationError: The snapshot belongs to another environment, configuration or level, its task is
                unknown, or a field has a value that no episode has. The current episode is unchanged.
        """
        if snapshot is not self._issued or snapshot.task != self._task:  # The last one made here needs no check.
            check_fields(snapshot, self._identity)
        rng_state = snapshot.rng_state if seed is None else branch_rng(snapshot.rng_state, seed)
        if snapshot.task != self._task:
            self._change_level(snapshot)
        elif snapshot is not self._issued:
            self._check_level(snapshot)
        if snapshot.max_steps != self.max_steps:
            own = self.max_steps if self._replaced_limit is None else self._replaced_limit[0]
            self._replaced_limit = own, snapshot.max_steps
        _, _, _, self._state, self._steps, self.max_steps, _, terminated, truncated, success = snapshot
        self._rng_state = rng_state
        self._terminated = terminated
        self._truncated = truncated
        self._success = success

    def _check_level(self, snapshot: Snapshot) -> None:
        """Raise a ConfigurationError if the snapshot does not belong to the open level."""
        if snapshot.level != (self._digest or self._digest_level()):
            raise other_level(snapshot.task)
        try:
            possible = self._is_possible(snapshot) and (snapshot.steps or snapshot.state == self._first_state)
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
            possible = False
        if not possible:
            raise foreign_state(snapshot.task)

    def _change_level(self, snapshot: Snapshot) -> None:
        """Open the level of a snapshot, or raise a ConfigurationError and keep the current level open."""
        task = snapshot.task
        if not self._has_task(task):
            raise other_tasks(task)
        current, max_steps = self._task, self.max_steps
        self._task = self._digest = None
        if current is None:
            self._open_class()
        try:
            self._first_state = self._open(task)
            self._task = task
            self._check_level(snapshot)
        except BaseException:
            self._task = self._digest = None
            if current is not None:
                self._first_state = self._open(current)
                self._task, self.max_steps = current, max_steps
            raise

    def _digest_level(self) -> str:
        content = self._level_content()
        self._digest = _task_digest(self.task) if content is None else level_digest((self._task, content))
        return self._digest


def check_fields(snapshot: object, identity: str) -> None:
    """Check a snapshot's owner, and the kind and range of every field but the state.

    Args:
        snapshot: Value to check.
        identity: Identity of the environment that is to continue from it.

    Raises:
        ConfigurationError: The snapshot belongs to another environment or configuration, or a field is wrong.
    """
    if type(snapshot) is not Snapshot:
        raise ConfigurationError(f"a snapshot is expected, not a {type(snapshot).__name__}; {_SOURCE}.")
    task, owner, level, _, steps, max_steps, rng_state, terminated, truncated, success = snapshot
    if type(owner) is not str:
        raise _wrong_field("identity", owner)
    if owner != identity:
        raise ConfigurationError(
            f"the snapshot belongs to {owner[:500]}, not to {identity}; restore it in an environment with"
            " the same configuration."
        )
    if type(task) is not str:
        raise _wrong_field("task", task)
    if type(level) is not str:
        raise _wrong_field("level", level)
    if type(steps) is not int or steps < 0:
        raise _wrong_field("steps", steps)
    if max_steps is None:
        limited = False
    elif type(max_steps) is int and max_steps >= 1 and steps <= max_steps:
        limited = steps == max_steps
    else:
        raise _wrong_field("max_steps", max_steps)
    if type(rng_state) is not int or not 0 <= rng_state <= _MAX_RNG_STATE:
        raise _wrong_field("rng_state", rng_state)
    if type(terminated) is not bool or (terminated and not steps):
        raise _wrong_field("terminated", terminated)
    if type(truncated) is not bool or truncated != (limited and not terminated):
        raise _wrong_field("truncated", truncated)
    if type(success) is not bool:
        raise _wrong_field("success", success)


def _wrong_field(name: str, value: object) -> ConfigurationError:
    simple = value is None or type(value) in (bool, int, float, str)
    shown = f"{value!r:.80}" if simple else f"a {type(value).__name__}"
    return ConfigurationError(f"the snapshot's {name} cannot be {shown} in this episode; {_SOURCE}.")


def other_tasks(task: str) -> ConfigurationError:
    """Return the error for a snapshot whose task the environment does not have."""
    return ConfigurationError(
        f"the snapshot's task {task[:80]!r} is not in this environment's `tasks`; restore it in an environment"
        " with the same data and split."
    )


def other_level(task: str) -> ConfigurationError:
    """Return the error for a snapshot of another level with the same name."""
    return ConfigurationError(
        f"the snapshot belongs to another level named {task[:80]!r} than this environment's data contain; restore"
        " it in an environment with the same data."
    )


def foreign_state(task: str) -> ConfigurationError:
    """Return the error for a snapshot whose state or flags are impossible in its level."""
    return ConfigurationError(f"the snapshot's state is not one of the level {task[:80]!r}; {_SOURCE}.")


def level_digest(content: object) -> str:
    """Return the digest of a level.

    Args:
        content: What the level consists of, as a value whose `repr` is the same in every process.
    """
    return blake2b(repr(content).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


@lru_cache(maxsize=4096)
def _task_digest(task: str) -> str:
    """Return the digest of a level that its name determines."""
    return level_digest((task, None))


def branch_rng(rng_state: int, seed: int) -> int:
    """Return the state of the random generator of a branch.

    Args:
        rng_state: State at the snapshot. Equal seeds at different snapshots therefore give independent branches.
        seed: Seed of the branch.

    Raises:
        ConfigurationError: The seed is not a non-negative integer.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ConfigurationError(f"the seed of a branch must be a non-negative integer or None, not {seed!r:.80}.")
    return stable_seed("branch", rng_state, int(seed))
