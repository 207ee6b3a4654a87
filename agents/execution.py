"""Execution of one episode: its beginning, and its turns one at a time.

`play` runs many episodes with these functions and `EpisodeChat` one, so that both record the same.
"""

from __future__ import annotations

import math
import random
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar, get_args

from ..envs.checks import integer_at_least, positive
from ..envs.core import Info, TextEnv
from ..envs.errors import unknown_name
from ..envs.plain import plain_info
from ..envs.seeding import stable_seed
from ..envs.user_code import USER_ERRORS, describe_failure
from .base import Agent, Reply, Seat, Stop
from .contracts import check_opened, check_step
from .deadline import Expired, expires_after
from .episode import SPENT, Episode, Limits, Move, Turn
from .forks import CannotFork, Keep, Origin, open_fork, take_fork, take_snapshot
from .replacement import discard, discard_failed, renew

MAX_TRACE = 20_000
"""Maximum length of a stored traceback, in characters, counted from its end."""

_LARGE = 1e300
"""Size of a reward from which on a return may be no finite number."""
_STANDARD_INFO = frozenset({"task", "success", "valid", "changed", "admissible_actions"})

T = TypeVar("T")


def check_limits(
    max_turns: int | None, time_limit: float | None, step_time_limit: float | None, keep: Collection[Keep]
) -> None:
    """Check the arguments of `play` of these names.

    Raises:
        ConfigurationError: A limit is no number above 0, or there is no such further data to record.
    """
    integer_at_least("max_turns", max_turns, 1)
    for name, seconds in (("time_limit", time_limit), ("step_time_limit", step_time_limit)):
        if seconds is not None:
            positive(name, seconds)
    kinds = get_args(Keep)
    for kind in (keep,) if isinstance(keep, str) else keep:
        if kind not in kinds or isinstance(keep, str):
            raise unknown_name("kind of data in `keep`", kind, kinds)


def start_episode(
    agent: Agent,
    env: TextEnv[Any],
    task: str | None,
    seed: int,
    origin: Origin | None = None,
    *,
    max_turns: int | None = None,
    time_limit: float | None = None,
    keep: Collection[Keep] = (),
) -> Seat:
    """Open a task, or the fork from which an episode continues, and prepare the agent.

    The arguments are those of `play` and of its jobs. If the environment failed, the episode's `error` is set.

    Raises:
        Stop: The agent failed.
        CannotFork: See `play`.
    """
    seat = new_seat(agent, env, task, seed, origin, max_turns=max_turns, time_limit=time_limit)
    begin(agent, seat, task, seed, origin, keep)
    return seat


def new_seat(
    agent: Agent,
    env: TextEnv[Any],
    task: str | None,
    seed: int,
    origin: Origin | None = None,
    *,
    max_turns: int | None = None,
    time_limit: float | None = None,
    step_time_limit: float | None = None,
) -> Seat:
    """Return the seat of an episode that has not begun; the arguments are those of `play` and of its jobs.

    Raises:
        CannotFork: The origin is of another task.
    """
    if origin is None:
        env_id = env.spec.id if env.spec is not None else type(env).__name__
        episode = Episode(env=env_id, task=task or "", seed=seed, agent=agent.name)
    else:
        if task not in (None, origin.episode.task):
            raise CannotFork(
                f"a job of task {task!r} cannot continue an episode of task {origin.episode.task!r}; give"
                " both the same task."
            )
        episode = origin.begin(agent.name, seed)
    # The string "player" is part of the seed: changing it would change every recorded result.
    seat = Seat(env, "", {}, episode, random.Random(stable_seed("player", seed, task)))
    seat.max_turns = max_turns
    seat.waits = getattr(env, "waits", False)  # an environment of another package may not say
    if step_time_limit is not None:
        seat.step_time_limit = step_time_limit
    if time_limit is not None:
        seat.time_limit, seat.deadline = time_limit, time.perf_counter() + time_limit
    return seat


def begin(
    agent: Agent, seat: Seat, task: str | None, seed: int, origin: Origin | None, keep: Collection[Keep]
) -> None:
    """Open the task of a seat, or the fork from which it continues, and prepare the agent."""
    open_task(seat, task, seed, origin)
    prepare_agent(agent, seat, origin, keep)


def open_task(seat: Seat, task: str | None, seed: int, origin: Origin | None) -> None:
    """Open the task of a seat, or the fork from which it continues; this is the environment's part of `begin`.

    Raises:
        CannotFork: The origin has no fork.
    """
    episode = seat.episode
    try:
        renew(seat)
        with expires_after(begin_step(seat)):
            if origin is None:
                options = None if task is None else {"task": task}
                seat.observation, seat.info = seat.env.reset(seed=seed, options=options)
                check_opened(seat.env, seat.observation, seat.info)
                episode.task = seat.env.task
            else:
                open_fork(seat, origin, seed)
            _record_state(seat)
    except (CannotFork, Stop):
        raise
    except Expired as error:
        discard(seat.env)
        _break_off(episode, expired(seat), error)
    except USER_ERRORS as error:
        discard_failed(seat.env)
        opening = "opening the task" if origin is None else "opening the fork"
        _break_off(episode, describe_failure(opening, error), error)


def prepare_agent(agent: Agent, seat: Seat, origin: Origin | None, keep: Collection[Keep]) -> None:
    """Prepare the agent for an episode that was opened; this is the agent's part of `begin`."""
    if seat.episode.error is not None:
        return
    if origin is None:
        call_agent(agent, agent.begin, seat)
    else:
        call_agent(agent, agent.resume, seat, origin.fork.memory)
    seat.is_prepared = True
    _keep_fork(agent, seat, keep)


def release_agent(agent: Agent, seat: Seat) -> None:
    """Have the agent end an episode for which it was prepared, once."""
    if seat.is_prepared:
        seat.is_prepared = False
        call_agent(agent, agent.end, seat)


def trial_seed(seed: int, trials: int) -> int:
    """Return the seed with which an episode's environment is reset.

    Args:
        seed: Seed of the episode.
        trials: Number of earlier trials of the task.
    """
    return stable_seed("trial", trials, seed) >> 33 if trials else seed


def execute(agent: Agent, seat: Seat, reply: Reply, agent_seconds: float, keep: Collection[Keep]) -> None:
    """Execute a reply's actions in the environment and append the turn to the episode.

    Args:
        agent: The agent, whose `settle` is called.
        seat: The episode.
        reply: The agent's reply.
        agent_seconds: Wall time of the reply, in seconds.
        keep: See `play`.
    """
    turn = add_turn(agent, seat, reply, agent_seconds, keep)
    if turn is not None:
        perform(seat, turn, keep)
        settle(agent, seat, reply, keep)


def add_turn(agent: Agent, seat: Seat, reply: Reply, agent_seconds: float, keep: Collection[Keep]) -> Turn | None:
    """Append the turn of a reply to the episode, without its moves.

    Returns:
        The turn; None if the reply is an error, which ends the episode.
    """
    episode = seat.episode
    if reply.error is not None:
        episode.error, episode.trace = reply.error, reply.trace
        return None
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
    own = call_agent(agent, agent.limits, seat)
    seat.actions_left = own.actions
    if "limits" in keep:
        turn.limits = _limits(own, seat)
    episode.turns.append(turn)
    return turn


def perform(seat: Seat, turn: Turn, keep: Collection[Keep]) -> None:
    """Execute the actions of the last turn in the environment; this is the environment's part of `execute`."""
    episode = seat.episode
    start = time.perf_counter()
    try:
        with expires_after(seat.deadline):
            if "snapshots" in keep:
                turn.snapshot = take_snapshot(seat.env)
            _execute_actions(seat, turn, turn.actions or (), keep)
            _record_state(seat)
    except (CannotFork, Stop):
        raise
    except Expired as error:
        discard(seat.env)
        _break_off(episode, expired(seat), error)
    except USER_ERRORS as error:
        discard_failed(seat.env)
        _break_off(episode, describe_failure("the environment", error), error)
    turn.env_seconds = round(time.perf_counter() - start, 6)


def settle(agent: Agent, seat: Seat, reply: Reply, keep: Collection[Keep]) -> None:
    """Apply the agent's and the loop's limits after a turn; this is the agent's part of `execute`."""
    episode = seat.episode
    if episode.error is not None:
        return
    ending = reply.quit or call_agent(agent, agent.settle, seat)
    if "limits" in keep:
        episode.turns[-1].limits_after = _limits(call_agent(agent, agent.limits, seat), seat)
    if seat.max_turns is not None and len(episode.turns) >= seat.max_turns:
        ending = ending or f"the {seat.max_turns} turns {SPENT}"
    if episode.terminated or episode.truncated:
        return
    if ending is not None:
        episode.truncated = True
        episode.details["ended"] = ending
    else:
        _keep_fork(agent, seat, keep)


def _execute_actions(seat: Seat, turn: Turn, actions: Sequence[str], keep: Collection[Keep]) -> None:
    """Execute the actions of a turn until the episode ends, and record what is kept of the states.

    Actions beyond the agent's limit on valid ones are removed from the turn. Those after the end of the episode
    count as valid, so that equal replies keep equal actions wherever chance ends their episodes.
    """
    env, episode = seat.env, seat.episode
    if "choices" in keep:
        turn.choices = env.admissible_actions()
    records = "states" in keep
    key = turn.state_key = env.state_key() if records else None
    effects = []
    left = seat.actions_left
    for action in actions:
        _step(seat, turn, action)
        if records:
            if env.counts_as_effect(action, key, seat.info):
                effects.append(action)
            key = env.state_key()
        if left is not None:
            left -= turn.moves[-1].valid
        if episode.terminated or episode.truncated or (left is not None and left <= 0):
            break
    if left is not None:
        turn.actions = tuple(actions[: len(turn.moves) + max(left, 0)])
    if records:
        turn.effects = tuple(effects)
        if not episode.terminated:
            turn.next_state_key = key


def _step(seat: Seat, turn: Turn, action: str) -> None:
    """Execute one action.

    Raises:
        TypeError: The environment returned something else than its interface says.
        ValueError: The reward is not finite.
    """
    if seat.step_time_limit == math.inf:
        observation, reward, terminated, truncated, info = seat.env.step(action)
    else:
        with expires_after(begin_step(seat)):
            observation, reward, terminated, truncated, info = seat.env.step(action)
    check_step(seat.env, observation, reward, info)
    reward = float(reward)
    if not math.isfinite(reward):
        raise ValueError(f"the reward of the action {action[:80]!r} is {reward}, not a finite number")
    turn.moves.append(Move(action, reward, bool(info["valid"]), bool(info["changed"])))
    if abs(reward) > _LARGE and not math.isfinite(seat.episode.total_reward):
        raise ValueError(f"the return is no finite number after the reward {reward} of the action {action[:80]!r}")
    seat.observation, seat.info = observation, info
    seat.episode.terminated, seat.episode.truncated = bool(terminated), bool(truncated)


def begin_step(seat: Seat) -> float:
    """Begin the time limit of a step, and return the deadline of this step."""
    if seat.step_time_limit == math.inf or getattr(seat.env, "times_steps", False):
        seat.step_deadline = math.inf
        return seat.deadline
    seat.step_deadline = time.perf_counter() + seat.step_time_limit
    return min(seat.deadline, seat.step_deadline)


def _limits(own: Limits, seat: Seat) -> Limits:
    """Return what the limits of the agent, those of this loop and of the environment still allow together.

    Args:
        own: What the agent's limits allow.
        seat: The episode.
    """
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
    plain = plain_info(info)
    for key, value in plain.items():
        if isinstance(value, float) and math.isnan(value):
            raise ValueError(f"`{key}` in its info is not a number")
    return {
        key: str(value) if isinstance(value, float) and math.isinf(value) else value
        for key, value in plain.items()
        if key not in _STANDARD_INFO and isinstance(value, (str, int, float, bool, type(None)))
    }


def is_over(episode: Episode) -> bool:
    """Return True if an episode has ended, for any reason."""
    return episode.terminated or episode.truncated or episode.error is not None


def expired(seat: Seat) -> str:
    """Return the error of an episode of which a time limit has expired."""
    if time.perf_counter() >= seat.deadline:
        return f"the time limit of {seat.time_limit:g} s per episode expired"
    return f"the time limit of {seat.step_time_limit:g} s per step of the environment expired"


def _break_off(episode: Episode, reason: str, error: BaseException) -> None:
    """Record the reason for which an episode broke off, with the traceback of the error."""
    episode.error = reason
    episode.trace = "".join(traceback.format_exception(error))[-MAX_TRACE:]


def _keep_fork(agent: Agent, seat: Seat, keep: Collection[Keep]) -> None:
    """Record the state before the next turn, if forks are kept."""
    if "forks" not in keep:
        return
    memory = call_agent(agent, agent.save, seat)
    try:
        with expires_after(seat.deadline):
            seat.fork = take_fork(seat, memory)
    except (CannotFork, Stop):
        raise
    except Expired as error:
        discard(seat.env)
        _break_off(seat.episode, expired(seat), error)
    except USER_ERRORS as error:
        discard_failed(seat.env)
        _break_off(seat.episode, describe_failure("the environment", error), error)


def call_agent(agent: Agent, method: Callable[..., T], *arguments: Any) -> T:
    """Call a method of the agent.

    Raises:
        Stop: The method raised. No reply of a broken agent or engine may count as a result of its policy.
    """
    try:
        return method(*arguments)
    except Stop:
        raise
    except USER_ERRORS as error:
        raise Stop(describe_failure(f"the agent {agent.name}", error)) from error
