"""Further outcomes of the actions of an update, without the policy: random events of environments drawn anew."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, NamedTuple

from ...agents.base import Stop
from ...agents.deadline import Expired, expires_after
from ...agents.episode import Episode
from ...agents.replacement import discard, discard_failed, renewed
from ...envs.core import TextEnv
from ...envs.seeding import stable_seed
from ...envs.snapshots import Snapshot
from ...envs.user_code import USER_ERRORS, describe_error
from ..data.episodes import DrawKey
from ..data.rollouts import Redraw


class Target(NamedTuple):
    """Actions in a state, to be executed again.

    Attributes:
        key: Group, state and actions.
        snapshot: State of the environment before the actions.
        actions: The actions.
        seed: Seed of the random events.
        left: Actions that the limits allow in this state; None if there is no limit, or it was not recorded.
    """

    key: DrawKey
    snapshot: Snapshot
    actions: tuple[str, ...]
    seed: int
    left: int | None = None


class Draws(NamedTuple):
    """Outcomes of a target.

    Attributes:
        outcomes: Outcomes, without those that a limit of steps cut.
        errors: Errors of the environment, each in the place of an outcome.
    """

    outcomes: tuple[Redraw, ...]
    errors: tuple[str, ...] = ()


def redraw_targets(episodes: Sequence[Episode], groups: Sequence[Hashable]) -> list[Target]:
    """Return each combination of state and actions of each group once, in the order of the first turns with it.

    The snapshot is that of the earliest turn of an episode, where the step limit of the environment leaves most
    room. Turns without a snapshot or a state key are left out.

    Args:
        episodes: Episodes played with `keep={"states", "snapshots"}`.
        groups: Group of each episode.
    """
    found: dict[DrawKey, tuple[int, Target]] = {}
    for episode, group in zip(episodes, groups, strict=True):
        for number, turn in enumerate(episode.turns):
            if turn.snapshot is None or turn.state_key is None or not turn.actions:
                continue
            key = (group, turn.state_key, turn.actions)
            known = found.get(key)
            if known is None or number < known[0]:
                seed = stable_seed("redraw", episode.seed, number)
                left = None if turn.limits is None else turn.limits.actions
                found[key] = (number, Target(key, turn.snapshot, turn.actions, seed, left))
    return [target for _, target in found.values()]


def redraw_all(
    envs: Sequence[TextEnv[Any]], targets: Sequence[Target], count: int, step_timeout: float | None = None
) -> list[Draws]:
    """Return the outcomes of each target; see `Redrawer.draw`.

    Args:
        envs: Interchangeable environments. If they wait, all are used concurrently; otherwise the first one.
        targets: Actions in states.
        count: Number of outcomes of each.
        step_timeout: See `Redrawer`.
    """
    if not envs[0].waits:
        redrawer = Redrawer(envs[0], step_timeout)
        return [redrawer.draw(target, count) for target in targets]
    free: SimpleQueue[Redrawer] = SimpleQueue()
    for env in envs:
        free.put(Redrawer(env, step_timeout))

    def redraw(target: Target) -> Draws:
        redrawer = free.get()
        try:
            return redrawer.draw(target, count)
        finally:
            free.put(redrawer)

    with ThreadPoolExecutor(len(envs)) as threads:
        return list(threads.map(redraw, targets))


class Redrawer:
    """Environment in which outcomes are drawn anew; it is replaced after a step that raised or took too long.

    Args:
        env: Environment, whose current episode is lost.
        step_timeout: Wall time of one step in seconds; None for no limit. Environments that enforce a limit of
            their own need none here.
    """

    def __init__(self, env: TextEnv[Any], step_timeout: float | None = None) -> None:
        self._env = env
        self._limit = math.inf
        if step_timeout is not None and not getattr(env, "times_steps", False):
            self._limit = step_timeout

    def draw(self, target: Target, count: int) -> Draws:
        """Return outcomes of a target, each with random events of its own.

        Args:
            target: Actions in a state.
            count: Number of outcomes.

        Raises:
            Stop: No process is left that steps the environment.
        """
        outcomes: list[Redraw] = []
        errors: list[str] = []
        for number in range(count):
            try:
                outcome = self._draw_one(target, stable_seed("draw", target.seed, number) >> 11)
            except Stop:
                raise
            except Expired:
                errors.append("the time limit of a step expired")
                if self._limit != math.inf:
                    discard(self._env)
            except USER_ERRORS as error:
                errors.append(describe_error(error))
                discard_failed(self._env)
            else:
                outcomes += [] if outcome is None else [outcome]
        return Draws(tuple(outcomes), tuple(errors))

    def _draw_one(self, target: Target, seed: int) -> Redraw | None:
        """Return one outcome of a target; None if the step limit of the environment cut it."""
        self._env = renewed(self._env)
        total, executed, valid, terminated, truncated = 0.0, 0, 0, False, False
        self._env.restore(target.snapshot, seed)
        for action in target.actions:
            with expires_after(time.perf_counter() + self._limit):
                _, reward, terminated, truncated, info = self._env.step(action)
            total, executed, valid = total + float(reward), executed + 1, valid + bool(info["valid"])
            if terminated or truncated:
                break
        if not terminated and executed < len(target.actions):
            return None
        state = None if terminated else self._env.state_key()
        return Redraw(total, state, executed, self._spent(target, executed, valid))

    def _spent(self, target: Target, executed: int, valid: int) -> int:
        """Return what executed actions take from the actions that the limits of agent and environment allow."""
        if valid == executed or not self._env.counts_refused:
            return valid
        # The environment counts all of them, the agent those that are valid; the smaller remainder is the limit.
        room = self._env.steps_left()
        left = math.inf if target.left is None else target.left
        before, after = min(left, room + executed), min(left - valid, room)
        return executed if math.isinf(before) else int(before - after)
