"""One episode in the terminal, played by a person or by an agent on display."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from rich.console import Console

from ..envs.errors import ConfigurationError
from ..envs.registry import make_env
from ..envs.terminal import literal
from .base import Agent, Reply, Seat
from .human import HumanAgent
from .keyboard import Quit
from .play import Job, play
from .registry import LANGUAGE_AGENTS, make_agent
from .screen import Screen, board, status, verdict

PACE = 0.5
"""Seconds between the moves that an agent makes in a terminal, unless another pace is given."""


class DisplayedAgent(Agent):
    """Wrapper that shows every move of another agent, in place in a terminal.

    Args:
        inner: The agent that acts.
        console: Console for output.
        pace: Seconds between moves.
    """

    one_process = True

    def __init__(self, inner: Agent, console: Console, pace: float) -> None:
        self.name = inner.name
        self._inner = inner
        self._screen = Screen(console)
        self._pace = pace

    def begin(self, seat: Seat) -> None:
        self._inner.begin(seat)

    def act(self, seats: Sequence[Seat]) -> Sequence[Reply | None]:
        replies = self._inner.act(seats)
        for seat, reply in zip(seats, replies, strict=True):
            lines = [status(seat)] if self._screen.console.is_terminal else []
            if reply is not None:
                lines.append(literal("> " + " ".join(reply.actions), "bold"))
            self._screen.show(board(seat.env, seat.observation), *lines)
        time.sleep(self._pace)
        return replies

    def wake(self) -> None:
        self._inner.wake()

    def settle(self, seat: Seat) -> str | None:
        return self._inner.settle(seat)

    def again(self, seat: Seat) -> bool:
        return self._inner.again(seat)

    def end(self, seat: Seat) -> None:
        self._inner.end(seat)
        self._screen.show(board(seat.env, seat.observation), verdict(seat))


def play_in_terminal(
    env_id: str,
    agent: str,
    *,
    task: str | None,
    seed: int | None,
    options: Mapping[str, Any],
    console: Console,
    pace: float | None = None,
) -> int:
    """Play one episode in the terminal.

    Args:
        env_id: Id of the environment.
        agent: Name of the agent.
        task: Id of the task; None draws one from the seed.
        seed: Seed of the episode, not negative; None draws one.
        options: Settings of the environment.
        console: Console for output.
        pace: Seconds between the moves of an agent other than `human`; None is `PACE` in a terminal, else 0.

    Returns:
        Exit status: 0 if the episode ended or the person quit, 1 if the episode was aborted by an error.

    Raises:
        ConfigurationError: The environment, an option, the task or the agent is unknown, a number is negative, or
            a server that the environment needs does not answer.
    """
    if seed is not None and seed < 0:
        raise ConfigurationError(f"seed must not be negative, but is {seed}.")
    if pace is None:
        pace = PACE if console.is_terminal else 0.0
    elif not 0 <= pace < float("inf"):
        raise ConfigurationError(f"--pace must be a number of seconds, not negative, but is {pace:g}.")
    if agent in LANGUAGE_AGENTS:
        raise ConfigurationError(
            f"agent {agent!r} needs a model, which `arboretum play` does not load; run `arboretum eval {env_id}"
            f" --agent {agent} --model MODEL`, and step through its episodes with `arboretum view runs`."
        )
    env = make_env(env_id, **options)
    env.check_server()
    if task is not None:
        env.reset(seed=0, options={"task": task})  # raises on an unknown task instead of recording an error
    chosen = HumanAgent(console) if agent == "human" else DisplayedAgent(make_agent(agent), console, pace)
    seed = secrets.randbits(31) if seed is None else seed
    try:
        (episode,) = play(chosen, [env], [Job(task, seed)])
    except Quit:
        console.print("You left the game.")
        return 0
    if episode.error is not None:
        console.print(literal(episode.error, "red"))
        return 1
    texts = {name: one if isinstance(one, str) else json.dumps(one, default=str) for name, one in options.items()}
    given = "".join(f" --env-arg {quote(f'{name}={text}')}" for name, text in texts.items())
    again = f"Task {episode.task}; play it again with --task {quote(episode.task)} --seed {seed}{given}"
    console.print(literal(again), soft_wrap=True)
    return 0
