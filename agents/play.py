"""The rollout loop: agents act, environments step, episodes are recorded."""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym

from ..envs.core import TextEnv
from ..envs.errors import ConfigurationError
from ..envs.registry import text_env
from .base import Agent, Seat
from .contracts import act
from .episode import Episode
from .execution import (
    begin,
    call_agent,
    check_limits,
    execute,
    expired,
    is_over,
    new_seat,
    release_agent,
    trial_seed,
)
from .forks import Keep, Origin
from .waiting import WaitingSteps


class Job(NamedTuple):
    """One episode to play.

    Attributes:
        task: Id of the task; None draws one from `seed`.
        seed: Seed of the episode.
        origin: Place in a played episode from which this one continues, in the same task; None begins anew.
    """

    task: str | None
    seed: int
    origin: Origin | None = None


class TimeLimits(NamedTuple):
    """Wall time in seconds that an episode and a step of its environment may take; see `play`.

    Attributes:
        episode: `time_limit`; None for no limit.
        step: `step_time_limit`; None for no limit.
    """

    episode: float | None = None
    step: float | None = None


NO_LIMITS = TimeLimits()
"""No limit of any time."""


def play(
    agent: Agent,
    envs: Iterable[gym.Env[str, str]],
    jobs: Iterable[Job],
    *,
    max_turns: int | None = None,
    time_limit: float | None = None,
    step_time_limit: float | None = None,
    keep: Collection[Keep] = (),
) -> Iterator[Episode]:
    """Play `jobs` on `envs`, one episode per environment at a time, and yield episodes as they end.

    An episode depends neither on the number of concurrent episodes nor on their order.

    Environments whose attribute `waits` is True (see `TextEnv`; it may be set on any environment) are opened and
    stepped in a thread each, all at once, and the agent goes on with the episodes whose steps have ended. Their
    other methods are called in the thread of the caller, but never during a step. All other environments are
    stepped in the thread of the caller, one after the other.

    Args:
        agent: The agent.
        envs: Interchangeable environments of one id, as `gym.make(id)` makes them; wrappers would have no effect,
            and are refused.
        jobs: The episodes to play; each is taken when an environment becomes free. A deque may be appended to
            while its episodes are played; it ends when it is empty and no episode is in progress.
        max_turns: Replies after which an episode is truncated; None for the environment's own limit only.
        time_limit: Wall time of an episode in seconds, from its reset to its end, after which it is aborted with
            an error; None for no limit. Everything counts: the environment, the agent, and the wait for replies of
            an engine that the episode shares with others. A step of the environment that exceeds the limit is
            interrupted where the platform can (see `expires_after`), and one of an environment that waits is
            abandoned with its thread; an agent is not interrupted, and its late reply is dropped.
        step_time_limit: Wall time of one step, or one reset, of the environment in seconds, with the same
            consequences; None for no limit. An environment that raised, was interrupted or was abandoned is not
            used again: the next episode gets a new one, made from the same arguments.
        keep: Further data to record of every turn, none of which is stored in files. "states": the environment's
            `state_key()` before and after it, and its effects; "forks": the state before it, for `Origin`;
            "choices": the admissible actions before it; "limits": the turns and actions that the limits allow
            before and after it; "snapshots": the environment's snapshot before it.

    Yields:
        Finished episodes. If the environment failed or a time limit expired, `error` has the reason and `turns`
        has the turns until then.

    Raises:
        Stop: The agent failed or cannot continue, or an environment raised it; episodes in progress are discarded.
        CannotFork: Forks or snapshots are to be kept of an environment that has neither snapshots nor
            `deterministic = True`, or the origin of a job has no fork.
        ConfigurationError: An argument cannot be used.
    """
    if not isinstance(agent, Agent):
        raise ConfigurationError(f"the agent must be an Agent, such as one of make_agent, not {agent!r:.80}.")
    if isinstance(envs, gym.Env):
        raise ConfigurationError(f"envs must be a list of environments, not {envs}; put it into one.")
    check_limits(max_turns, time_limit, step_time_limit, keep)
    take = _taker(jobs)
    free: list[TextEnv[Any]] = [text_env(env) for env in envs]
    free.reverse()  # so that the first is taken first
    seats: list[Seat] = []  # of the episodes whose turn is the agent's
    with WaitingSteps(agent) as steps:
        while True:
            while free and (taken := take()) is not None:
                job = _as_job(taken)
                seat = new_seat(
                    agent,
                    free.pop(),
                    *job,
                    max_turns=max_turns,
                    time_limit=time_limit,
                    step_time_limit=step_time_limit,
                )
                if seat.waits:
                    steps.begin(seat, *job, keep)
                    continue
                begin(agent, seat, *job, keep)
                if seat.episode.error is None:
                    seats.append(seat)
                else:
                    release_agent(agent, seat)
                    free.append(seat.env)
                    yield seat.episode
            if steps.in_progress:
                is_any_finished = False
                for seat in steps.finished(wait=not seats):
                    is_any_finished = True
                    if not is_over(seat.episode):
                        seats.append(seat)
                    elif (trial := _next_trial(agent, seat)) is not None:
                        steps.begin(seat, *trial, keep)
                    else:
                        release_agent(agent, seat)
                        free.append(seat.env)
                        yield seat.episode
                if is_any_finished:
                    continue
            if not seats:
                return
            now = time.perf_counter()
            for seat in seats:
                seat.waiting_since = seat.waiting_since or now
            replies = steps.act(seats) if steps.in_progress else call_agent(agent, act, agent, seats)
            now = time.perf_counter()
            remaining = []
            for seat, reply in zip(seats, replies, strict=True):
                if now >= seat.deadline:
                    seat.episode.error = expired(seat)
                elif reply is not None:
                    agent_seconds = now - seat.waiting_since
                    seat.waiting_since = 0.0
                    if seat.waits and reply.error is None:
                        steps.execute(seat, reply, agent_seconds, keep)
                        continue
                    execute(agent, seat, reply, agent_seconds, keep)
                if not is_over(seat.episode) or _retry(agent, seat, keep):
                    remaining.append(seat)
                else:
                    release_agent(agent, seat)
                    free.append(seat.env)
                    yield seat.episode
            seats = remaining


def _taker(jobs: Iterable[Job]) -> Callable[[], Job | None]:
    """Return a function that returns the next job, or None while there is none; a deque may have more later."""
    if isinstance(jobs, deque):
        return lambda: jobs.popleft() if jobs else None
    pending = iter(jobs)
    return lambda: next(pending, None)


def _as_job(job: Sequence[Any]) -> Job:
    """Return a job, which may be a plain tuple, with a seed of Python's own integers."""
    try:
        task, seed, origin = Job(*job)
        return Job(task, operator.index(seed), origin)
    except TypeError:
        raise ConfigurationError(f"a job must be a Job(task, seed), not {job!r:.80}.") from None


def _retry(agent: Agent, seat: Seat, keep: Collection[Keep]) -> bool:
    """Start another trial of the task if the agent requests one; return True if it started."""
    trial = _next_trial(agent, seat)
    if trial is None:
        return False
    begin(agent, seat, *trial, keep)
    return seat.episode.error is None


def _next_trial(agent: Agent, seat: Seat) -> Job | None:
    """Give a seat the episode of another trial of its task, with a new seed, if the agent requests one.

    Returns:
        The trial, which has not begun; None if the last episode is final.
    """
    last = seat.episode
    if last.error is not None or not call_agent(agent, agent.again, seat):
        return None
    release_agent(agent, seat)
    trials = [*last.trials, last]
    last.trials = []
    seat.episode = Episode(last.env, last.task, last.seed, last.agent, trials=trials)
    return Job(last.task, trial_seed(last.seed, len(trials)))
