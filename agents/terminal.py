"""One episode in the terminal, played by a person or by an agent on display."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from ..envs.errors import ConfigurationError
from ..envs.registry import make_env
from .base import Agent, Reply, Seat
from .human import HumanAgent, Quit, board
from .play import Job, play
from .registry import make_agent


class DisplayedAgent(Agent):
    """Wrapper that prints every move of another agent.

    Args:
        inner: The agent that acts.
        console: Console for output.
        pause: Pause between moves, in seconds.
    """

    one_process = True

    def __init__(self, inner: Agent, console: Console, pause: float) -> None:
        self.name = inner.name
        self._inner = inner
        self.console = console
        self.pause = pause

    def begin(self, seat: Seat) -> None:
        self._inner.begin(seat)

    def act(self, seats: Sequence[Seat]) -> Sequence[Reply | None]:
        replies = self._inner.act(seats)
        for seat, reply in zip(seats, replies, strict=True):
            self.console.print(board(seat.env, seat.observation))
            if reply is not None:
                self.console.print("> " + " ".join(reply.actions), style="bold", markup=False)
        time.sleep(self.pause)
        return replies

    def end(self, seat: Seat) -> None:
        self._inner.end(seat)
        self.console.print(board(seat.env, seat.observation))
        verdict = "solved" if seat.episode.success else "not solved"
        self.console.print(f"{verdict} in {seat.episode.steps} moves; return {seat.episode.total_reward:.2f}")


def play_in_terminal(
    env_id: str,
    agent: str,
    *,
    task: str | None,
    seed: int | None,
    options: Mapping[str, Any],
    console: Console,
    pause: float = 0.0,
) -> int:
    """Play one episode in the terminal.

    Args:
        env_id: Id of the environment.
        agent: Name of the agent.
        task: Id of the task; None draws one from the seed.
        seed: Seed of the episode, not negative; None draws one.
        options: Settings of the environment.
        console: Console for output.
        pause: Pause between the moves of an agent other than `human`, in seconds.

    Returns:
        Exit status: 0 if the episode ended or the person quit, 1 if the episode was aborted by an error.

    Raises:
        ConfigurationError: The environment, an option, the task or the agent is unknown, or the seed is negative.
    """
    if seed is not None and seed < 0:
        raise ConfigurationError(f"seed must not be negative, but is {seed}.")
    env = make_env(env_id, **options)
    if task is not None:
        env.reset(seed=0, options={"task": task})  # raises on an unknown task instead of recording an error
    chosen = HumanAgent(console) if agent == "human" else DisplayedAgent(make_agent(agent), console, pause)
    seed = secrets.randbits(31) if seed is None else seed
    try:
        (episode,) = play(chosen, [env], [Job(task, seed)])
    except Quit:
        console.print("Left.")
        return 0
    if episode.error is not None:
        console.print(episode.error, style="red", markup=False)
        return 1
    console.print(f"Task {episode.task}; play it again with --task {episode.task} --seed {seed}", soft_wrap=True)
    return 0
