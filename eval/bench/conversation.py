"""Benchmark of one episode as a conversation, beside `play` with the same replies."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from ...agents.dialogue import make_dialogue
from ...agents.engines.base import Completion, Engine, Request, Usage
from ...agents.episode_chat import EpisodeChat
from ...agents.language import LanguageAgent
from ...agents.play import Job, play
from ...envs.registry import make_env
from .row import Row, paired

_LIMITS = {"max_turns": 10, "max_actions": None}


def _reply(turn: int) -> str:
    return f"<think>On.</think><answer>{('Up', 'Left', 'Down', 'Right')[turn % 4]}</answer>"


class _Fixed(Engine):
    """Engine whose reply depends on the number of turns alone."""

    def __init__(self) -> None:
        self.name, self.usage = "fixed", Usage()
        self._waiting: list[tuple[str, Completion]] = []

    def submit(self, request: Request) -> None:
        turn = sum(message.role == "assistant" for message in request.messages)
        self._waiting.append((request.conversation, Completion(_reply(turn), "stop")))

    def collect(self) -> list[tuple[str, Completion]]:
        done, self._waiting = self._waiting, []
        return done


def measure(peers: bool = False, episodes: int = 200, rounds: int = 7) -> Iterator[Row]:
    """Yield the CPU time that `EpisodeChat` takes beyond `play`, as a percentage of that of `play`.

    The workload is Sokoban in the dialogue `think`, ten turns an episode, with fixed replies: adapters to other
    libraries play in the first way, evaluation and training in the second.

    Args:
        peers: Unused; there is no original system.
        episodes: Number of episodes of one measurement.
        rounds: Number of measurements of each way.
    """
    del peers
    dialogue = make_dialogue("think", _LIMITS)
    env = make_env("TextSokoban-v0", max_steps=None)
    agent = LanguageAgent("fixed", _Fixed(), dialogue)
    chat = EpisodeChat(env, dialogue)

    def by_play() -> int:
        return sum(len(episode.turns) for episode in play(agent, [env], [Job(None, n) for n in range(episodes)]))

    def by_conversation() -> int:
        turns = 0
        for seed in range(episodes):
            chat.open(seed=seed)
            while not chat.done:
                chat.hear(_reply(len(chat.episode.turns)))
            turns += len(chat.episode.turns)
        return turns

    by_play(), by_conversation()  # warm-up: the first episodes generate their levels
    played, conversed = paired([by_play, by_conversation], rounds)
    share = 100 * (statistics.median(ours / theirs for theirs, ours in zip(played, conversed, strict=True)) - 1)
    yield Row(
        "EpisodeChat over play, ten turns",
        share,
        "%",
        target=5.0,
        higher_is_better=False,
        details=f"play {1e6 * statistics.median(played):.0f} µs/turn",
    )
