"""The one loop that everything uses: players act, worlds answer, episodes are kept."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym

from ..envs.core import Info, TextEnv
from ..envs.seeding import stable_seed
from .base import Agent, Reply, Seat
from .episode import Episode, Move, Turn

_STANDARD_INFO = frozenset({"task", "success", "valid", "changed", "admissible_actions"})


class Job(NamedTuple):
    """One episode to play: `task` None lets `seed` draw it."""

    task: str | None
    seed: int


def play(
    agent: Agent,
    envs: Sequence[gym.Env[str, str]],
    jobs: Iterable[Job],
    *,
    max_turns: int | None = None,
) -> Iterator[Episode]:
    """Play `jobs` on `envs`, as many at once as there are environments, and yield episodes as they end.

    What an episode is does not depend on how many are played beside it or in which order.

    Args:
        agent: the player.
        envs: interchangeable environments of one world (`gym.make(id)`, wrapped or not).
        jobs: what to play; taken one by one as environments fall free.
        max_turns: replies after which an episode is truncated; None for the world's own limit only.

    Yields:
        Finished episodes. One whose world or player raised carries the reason in `error` and the turns so far.
    """
    waiting = iter(jobs)
    free: list[TextEnv[Any]] = [env.unwrapped for env in reversed(envs)]  # type: ignore[misc]
    seats: list[Seat] = []
    while True:
        while free:
            job = next(waiting, None)
            if job is None:
                break
            env = free.pop()
            seat = _sit(agent, env, job)
            if seat.episode.error is not None:
                free.append(env)
                yield seat.episode
            else:
                seats.append(seat)
        if not seats:
            return
        start = time.perf_counter()
        try:
            replies = agent.act(seats)
        except Exception as error:
            for seat in seats:
                seat.episode.error = _reason("the player", error)
            replies = [None] * len(seats)
        spent = (time.perf_counter() - start) / len(seats)
        staying = []
        for seat, reply in zip(seats, replies, strict=True):
            if reply is not None:
                _carry_out(seat, reply, spent, max_turns)
            episode = seat.episode
            if episode.terminated or episode.truncated or episode.error is not None:
                agent.end(seat)
                free.append(seat.env)
                yield episode
            else:
                staying.append(seat)
        seats = staying


def _sit(agent: Agent, env: TextEnv[Any], job: Job) -> Seat:
    world = env.spec.id if env.spec is not None else type(env).__name__
    episode = Episode(world=world, task=job.task or "", seed=job.seed, agent=agent.name)
    rng = random.Random(stable_seed("player", job.seed, job.task))
    seat = Seat(env, "", {}, episode, rng)
    try:
        options = None if job.task is None else {"task": job.task}
        seat.observation, seat.info = env.reset(seed=job.seed, options=options)
        episode.task = env.task
        _look(seat)
        agent.begin(seat)
    except Exception as error:
        episode.error = _reason("opening the task", error)
    return seat


def _carry_out(seat: Seat, reply: Reply, agent_seconds: float, max_turns: int | None) -> None:
    episode = seat.episode
    text = "\n".join(reply.actions) if reply.text is None else reply.text
    turn = Turn(seat.observation, text, reply.thought, agent_seconds=round(agent_seconds, 6))
    turn.token_ids, turn.logprobs, turn.loss_mask = reply.token_ids, reply.logprobs, reply.loss_mask
    episode.turns.append(turn)
    start = time.perf_counter()
    try:
        for action in reply.actions:
            observation, reward, terminated, truncated, info = seat.env.step(action)
            turn.moves.append(Move(action, float(reward), info["valid"], info["changed"]))
            seat.observation, seat.info = observation, info
            if terminated or truncated:
                episode.terminated, episode.truncated = terminated, truncated
                break
    except Exception as error:
        episode.error = _reason("the world", error)
    turn.world_seconds = round(time.perf_counter() - start, 6)
    over_limit = max_turns is not None and len(episode.turns) >= max_turns
    if not episode.terminated and (reply.quit is not None or over_limit):
        episode.truncated = True
        if reply.quit is not None:
            seat.info = {**seat.info, "quit": reply.quit}
    _look(seat)


def _look(seat: Seat) -> None:
    seat.episode.final_observation = seat.observation
    seat.episode.success = bool(seat.info["success"])
    seat.episode.details = _details(seat.info)


def _details(info: Info) -> dict[str, Any]:
    return {
        key: value
        for key, value in info.items()
        if key not in _STANDARD_INFO and isinstance(value, (str, int, float, bool, type(None)))
    }


def _reason(where: str, error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return f"{where} failed: {type(error).__name__}: {text}"
