"""The rollout loop: agents act, environments step, episodes are recorded."""

from __future__ import annotations

import math
import random
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym

from ..envs.core import Info, TextEnv
from ..envs.seeding import stable_seed
from .base import Agent, Reply, Seat, Stop
from .deadline import Expired, expires_after
from .episode import Episode, Limits, Move, Turn
from .forks import CannotFork, Keep, Origin, open_fork, take_fork, take_snapshot

MAX_TRACE = 20_000
"""Maximum length of a stored traceback, in characters, counted from its end."""

_STANDARD_INFO = frozenset({"task", "success", "valid", "changed", "admissible_actions"})

T = TypeVar("T")


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


def play(
    agent: Agent,
    envs: Sequence[gym.Env[str, str]],
    jobs: Iterable[Job],
    *,
    max_turns: int | None = None,
    time_limit: float | None = None,
    keep: Collection[Keep] = (),
) -> Iterator[Episode]:
    """Play `jobs` on `envs`, one episode per environment at a time, and yield episodes as they end.

    An episode depends neither on the number of concurrent episodes nor on their order.

    Args:
        agent: The agent.
        envs: Interchangeable environments of one id (`gym.make(id)`, wrapped or not).
        jobs: The episodes to play; each is taken when an environment becomes free. A deque may be appended to
            while its episodes are played; it ends when it is empty and no episode is in progress.
        max_turns: Replies after which an episode is truncated; None for the environment's own limit only.
        time_limit: Wall time of an episode in seconds, from its reset to its end, after which it is aborted with
            an error; None for no limit. Everything counts: the environment, the agent, and the wait for replies of
            an engine that the episode shares with others. A step of the environment that exceeds the limit is
            interrupted where the platform can (see `expires_after`); an agent is not, and its late reply is
            dropped.
        keep: Further data to record of every turn, none of which is stored in files. "states": the environment's
            `state_key()` before and after it, and its effects; "forks": the state before it, for `Origin`;
            "choices": the admissible actions before it; "limits": the turns and actions that the limits allow
            before and after it; "snapshots": the environment's snapshot before it.

    Yields:
        Finished episodes. If the environment failed or the time limit expired, `error` has the reason and `turns`
        has the turns until then.

    Raises:
        Stop: The agent failed or cannot continue; episodes in progress are discarded.
        CannotFork: Forks or snapshots are to be kept of an environment that has neither snapshots nor
            `deterministic = True`, or the origin of a job has no fork.
    """
    take = _taker(jobs)
    free: list[TextEnv[Any]] = [env.unwrapped for env in reversed(envs)]  # type: ignore[misc]
    seats: list[Seat] = []
    while True:
        while free:
            job = take()
            if job is None:
                break
            env = free.pop()
            seat = _start(agent, env, job, max_turns, time_limit, keep)
            if seat.episode.error is not None:
                free.append(env)
                yield seat.episode
            else:
                seats.append(seat)
        if not seats:
            return
        now = time.perf_counter()
        for seat in seats:
            seat.waiting_since = seat.waiting_since or now
        replies = _ask(agent, agent.act, seats)
        now = time.perf_counter()
        remaining = []
        for seat, reply in zip(seats, replies, strict=True):
            if now >= seat.deadline:
                seat.episode.error = _expired(seat)
            elif reply is not None:
                execute(agent, seat, reply, now - seat.waiting_since, keep)
                seat.waiting_since = 0.0
            episode = seat.episode
            over = episode.terminated or episode.truncated or episode.error is not None
            if not over or _retry(agent, seat, keep):
                remaining.append(seat)
            else:
                _ask(agent, agent.end, seat)
                free.append(seat.env)
                yield seat.episode
        seats = remaining


def _taker(jobs: Iterable[Job]) -> Callable[[], Job | None]:
    """Return a function that returns the next job, or None while there is none; a deque may have more later."""
    if isinstance(jobs, deque):
        return lambda: jobs.popleft() if jobs else None
    pending = iter(jobs)
    return lambda: next(pending, None)


def _ask(agent: Agent, method: Callable[..., T], *arguments: Any) -> T:
    """Call a method of the agent.

    Raises:
        Stop: The method raised. No reply of a broken agent or engine may count as a result of its policy.
    """
    try:
        return method(*arguments)
    except Stop:
        raise
    except Exception as error:
        raise Stop(_reason(f"the agent {agent.name}", error)) from error


def _start(
    agent: Agent,
    env: TextEnv[Any],
    job: Job,
    max_turns: int | None,
    time_limit: float | None,
    keep: Collection[Keep],
) -> Seat:
    if job.origin is None:
        env_id = env.spec.id if env.spec is not None else type(env).__name__
        episode = Episode(env=env_id, task=job.task or "", seed=job.seed, agent=agent.name)
    else:
        if job.task not in (None, job.origin.episode.task):
            raise CannotFork(
                f"a job of task {job.task!r} cannot continue an episode of task {job.origin.episode.task!r}; give"
                " both the same task."
            )
        episode = job.origin.begin(agent.name, job.seed)
    # The string "player" is part of the seed: changing it would change every recorded result.
    seat = Seat(env, "", {}, episode, random.Random(stable_seed("player", job.seed, job.task)))
    seat.max_turns = max_turns
    if time_limit is not None:
        seat.time_limit, seat.deadline = time_limit, time.perf_counter() + time_limit
    _begin(agent, seat, job, keep)
    return seat


def trial_seed(seed: int, trials: int) -> int:
    """Return the seed with which an episode's environment is reset.

    Args:
        seed: Seed of the episode.
        trials: Number of earlier trials of the task.
    """
    return stable_seed("trial", trials, seed) >> 33 if trials else seed


def _retry(agent: Agent, seat: Seat, keep: Collection[Keep]) -> bool:
    """Start another trial of the task, with a new seed, if the agent requests one; return True if it started."""
    last = seat.episode
    if last.error is not None or not _ask(agent, agent.again, seat):
        return False
    _ask(agent, agent.end, seat)
    trials = [*last.trials, last]
    last.trials = []
    seat.episode = Episode(last.env, last.task, last.seed, last.agent, trials=trials)
    _begin(agent, seat, Job(last.task, trial_seed(last.seed, len(trials))), keep)
    return seat.episode.error is None


def _begin(agent: Agent, seat: Seat, job: Job, keep: Collection[Keep]) -> None:
    """Open the task of a job, or the fork from which it continues, and prepare the agent."""
    episode, origin = seat.episode, job.origin
    memory = None if origin is None else origin.fork.memory
    try:
        with expires_after(seat.deadline):
            if origin is None:
                options = None if job.task is None else {"task": job.task}
                seat.observation, seat.info = seat.env.reset(seed=job.seed, options=options)
                episode.task = seat.env.task
            else:
                open_fork(seat, origin, job.seed)
            _record_state(seat)
    except Expired as error:
        _break_off(episode, _expired(seat), error)
    except Exception as error:
        _break_off(episode, _reason("opening the task" if origin is None else "opening the fork", error), error)
    if episode.error is not None:
        return
    if origin is None:
        _ask(agent, agent.begin, seat)
    else:
        _ask(agent, agent.resume, seat, memory)
    _keep_fork(agent, seat, keep)


def _keep_fork(agent: Agent, seat: Seat, keep: Collection[Keep]) -> None:
    """Record the state before the next turn, if forks are kept."""
    if "forks" not in keep:
        return
    memory = _ask(agent, agent.save, seat)
    try:
        with expires_after(seat.deadline):
            seat.fork = take_fork(seat, memory)
    except CannotFork:
        raise
    except Expired as error:
        _break_off(seat.episode, _expired(seat), error)
    except Exception as error:
        _break_off(seat.episode, _reason("the environment", error), error)


def execute(agent: Agent, seat: Seat, reply: Reply, agent_seconds: float, keep: Collection[Keep]) -> None:
    """Execute a reply's actions in the environment and append the turn to the episode.

    Args:
        agent: The agent, whose `settle` is called.
        seat: The episode.
        reply: The agent's reply.
        agent_seconds: Wall time of the reply, in seconds.
        keep: See `play`.
    """
    episode = seat.episode
    if reply.error is not None:
        episode.error, episode.trace = reply.error, reply.trace
        return
    text = "\n".join(reply.actions) if reply.text is None else reply.text
    turn = Turn(
        seat.observation,
        text,
        reply.thought,
        well_formed=reply.well_formed,
        agent_seconds=round(agent_seconds, 6),
        token_ids=reply.token_ids,
        logprobs=reply.logprobs,
        loss_mask=reply.loss_mask,
        cut=reply.cut,
        restart=reply.restart,
        actions=reply.actions,
        fork=seat.fork,
    )
    if "limits" in keep:
        turn.limits = _limits(agent, seat)
    episode.turns.append(turn)
    start = time.perf_counter()
    try:
        with expires_after(seat.deadline):
            if "snapshots" in keep:
                turn.snapshot = take_snapshot(seat.env)
            _execute_actions(seat, turn, reply.actions, keep)
            _record_state(seat)
    except CannotFork:
        raise
    except Expired as error:
        _break_off(episode, _expired(seat), error)
    except Exception as error:
        _break_off(episode, _reason("the environment", error), error)
    turn.env_seconds = round(time.perf_counter() - start, 6)
    if episode.error is not None:
        return
    reason = reply.quit or _ask(agent, agent.settle, seat)
    if "limits" in keep:
        turn.limits_after = _limits(agent, seat)
    if seat.max_turns is not None and len(episode.turns) >= seat.max_turns:
        reason = reason or f"the {seat.max_turns} turns are spent"
    if episode.terminated or episode.truncated:
        return
    if reason is not None:
        episode.truncated = True
        episode.details["ended"] = reason
    else:
        _keep_fork(agent, seat, keep)


def _execute_actions(seat: Seat, turn: Turn, actions: Sequence[str], keep: Collection[Keep]) -> None:
    """Execute the actions of a turn until the episode ends, and record what is kept of the states."""
    env, episode = seat.env, seat.episode
    if "choices" in keep:
        turn.choices = env.admissible_actions()
    if "states" not in keep:
        for action in actions:
            _step(seat, turn, action)
            if episode.terminated or episode.truncated:
                return
        return
    key = turn.state_key = env.state_key()
    effects = []
    for action in actions:
        _step(seat, turn, action)
        if env.counts_as_effect(action, key, seat.info):
            effects.append(action)
        key = env.state_key()
        if episode.terminated or episode.truncated:
            break
    turn.effects = tuple(effects)
    if not episode.terminated:
        turn.next_state_key = key


def _step(seat: Seat, turn: Turn, action: str) -> None:
    """Execute one action.

    Raises:
        ValueError: The environment returned a reward that is not a finite number.
    """
    observation, reward, terminated, truncated, info = seat.env.step(action)
    reward = float(reward)
    if not math.isfinite(reward):
        raise ValueError(f"the reward of the action {action[:80]!r} is {reward}, not a finite number")
    turn.moves.append(Move(action, reward, info["valid"], info["changed"]))
    seat.observation, seat.info = observation, info
    seat.episode.terminated, seat.episode.truncated = terminated, truncated


def _limits(agent: Agent, seat: Seat) -> Limits:
    """Return what the limits of the agent, of this loop and of the environment still allow."""
    own = _ask(agent, agent.limits, seat)
    turns = None if seat.max_turns is None else seat.max_turns - len(seat.episode.turns)
    steps = seat.env.steps_left()
    return Limits(
        min((number for number in (own.turns, turns) if number is not None), default=None),
        min(
            (number for number in (own.actions, None if math.isinf(steps) else int(steps)) if number is not None),
            default=None,
        ),
    )


def _record_state(seat: Seat) -> None:
    seat.episode.final_observation = seat.observation
    seat.episode.success = bool(seat.info["success"])
    seat.episode.details |= _details(seat.info)


def _details(info: Info) -> dict[str, Any]:
    """Return the plain values of `info` beyond the standard keys; infinities become text, which JSON has.

    Raises:
        ValueError: A value is NaN.
    """
    for key, value in info.items():
        if isinstance(value, float) and math.isnan(value):
            raise ValueError(f"`{key}` in its info is not a number")
    return {
        key: str(value) if isinstance(value, float) and math.isinf(value) else value
        for key, value in info.items()
        if key not in _STANDARD_INFO and isinstance(value, (str, int, float, bool, type(None)))
    }


def _expired(seat: Seat) -> str:
    return f"the time limit of {seat.time_limit:g} s per episode expired"


def _break_off(episode: Episode, reason: str, error: BaseException) -> None:
    """Record the reason for which an episode broke off, with the traceback of the error."""
    episode.error = reason
    episode.trace = "".join(traceback.format_exception(error))[-MAX_TRACE:]


def _reason(where: str, error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return f"{where} failed: {type(error).__name__}: {text}"
