"""Recorded episodes: how they are played, replayed from (task, seed, actions), and compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ...envs.core import TextEnv
from ...envs.plain import plain_info

MAX_ACTIONS = 500
"""Maximum number of actions of an episode, for environments without a step limit."""

Choose = Callable[[TextEnv[Any]], str]
"""Function that returns the next action in an environment whose episode is in progress."""


class Step(NamedTuple):
    """Everything that a reset or a step returned.

    Attributes:
        observation: The observation.
        reward: The reward; 0.0 after a reset.
        terminated: True if the environment's rules ended the episode.
        truncated: True if the step limit ended the episode.
        info: The entries of `info`, sorted by name.
        key: `state_key()` afterwards.
    """

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: tuple[tuple[str, Any], ...]
    key: Hashable


class Recording(NamedTuple):
    """An episode and all that its environment returned.

    Attributes:
        task: Name of the task.
        seed: Seed of the reset.
        actions: Actions, in order.
        steps: What the reset and each of the actions returned; one entry more than `actions`.
        has_chance: True if the environment drew random numbers.
    """

    task: str
    seed: int
    actions: tuple[str, ...]
    steps: tuple[Step, ...]
    has_chance: bool


def reset(env: TextEnv[Any], task: str, seed: int) -> Step:
    """Open a task, and return what the reset returned."""
    observation, info = env.reset(seed=seed, options={"task": task})
    return Step(observation, 0.0, False, False, tuple(sorted(plain_info(info).items())), env.state_key())


def take(env: TextEnv[Any], action: str) -> Step:
    """Take one action, and return what the step returned."""
    observation, reward, terminated, truncated, info = env.step(action)
    return Step(
        observation, reward, terminated, truncated, tuple(sorted(plain_info(info).items())), env.state_key()
    )


def record(env: TextEnv[Any], task: str, seed: int, choose: Choose) -> Recording:
    """Play an episode to its end, or for `MAX_ACTIONS` actions.

    Args:
        env: The environment; it is reset.
        task: Name of the task.
        seed: Seed of the reset.
        choose: Function that chooses the actions.
    """
    steps = [reset(env, task, seed)]
    rng_state = env.rng_state
    actions: list[str] = []
    while not (steps[-1].terminated or steps[-1].truncated) and len(actions) < MAX_ACTIONS:
        actions.append(choose(env))
        steps.append(take(env, actions[-1]))
    return Recording(task, seed, tuple(actions), tuple(steps), env.rng_state != rng_state)


def replay(env: TextEnv[Any], task: str, seed: int, actions: Iterable[str]) -> Iterator[Step]:
    """Yield what the environment returns for the reset and for each of the actions, one at a time."""
    yield reset(env, task, seed)
    for action in actions:
        yield take(env, action)


def difference(recording: Recording, steps: Sequence[Step], start: int = 0) -> str | None:
    """Return the first difference of a replay from its recording in words; None if they are equal.

    Args:
        recording: The recording.
        steps: Steps of the replay.
        start: Number of the recorded step that corresponds to the first of `steps`.
    """
    for number, (ours, theirs) in enumerate(zip(recording.steps[start:], steps, strict=True), start):
        for name, one, other in zip(Step._fields, ours, theirs, strict=True):
            if one != other:
                part = "state" if name == "key" else name
                return f"task {recording.task}, seed {recording.seed}: the {part} after {number} actions differs"
    return None


def digests(steps: Iterable[Step]) -> list[str]:
    """Return a digest of everything that each step returned, as hexadecimal digits.

    State keys are left out: they may contain sets, whose order differs between processes.
    """
    return [hashlib.sha256(repr(step[:-1]).encode("utf-8", "surrogatepass")).hexdigest()[:16] for step in steps]
