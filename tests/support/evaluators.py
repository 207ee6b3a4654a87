"""Episodes that `play` and the evaluators of other projects play with the same server, for comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from arboretum.agents.adapters.rows import metrics, open_tasks
from arboretum.agents.dialogue import Dialogue, make_dialogue
from arboretum.agents.engines.openai import OpenAIEngine
from arboretum.agents.language import LanguageAgent
from arboretum.agents.play import Job, play
from arboretum.envs.core import TextEnv
from support.chat_server import Answer, ChatServer, Messages

FLAKY = """
from arboretum.envs.sokoban.env import Sokoban

class Flaky(Sokoban):
    "Sokoban whose second task cannot be played."
    def _apply(self, action):
        if self.task == self.tasks[1]:
            raise ConnectionError("gone")
        return super()._apply(action)
"""
"""Module of an environment that fails in one task."""

REPLIES = (
    Answer("<think>a</think><answer>Up || Left</answer>"),
    Answer("no format at all"),
    Answer("<think>b</think><answer>Right || Fl", "length"),
    Answer("<think>c</think><answer>Down || Fly"),  # a server omits the stop text
    Answer("<think>d</think><answer>Left</answer>"),
)
"""Replies of a server to the turns of an episode."""


LAKE = {"split": "test", "p_frozen": 0.8, "success_rate": 1.0}
"""Arguments of lakes without slips, which the sapling crosses in a turn or two."""


def scripted(env: str, refused: int, **options: str) -> Callable[[Messages], Answer]:
    """Return a function that replies with `REPLIES`, and refuses the second turn of one task.

    Args:
        env: Id of the environment.
        refused: Number of the task.
        options: Arguments of the environment.
    """
    row = open_tasks(env, refused + 1, make_dialogue("think"), **options)[-1]

    def reply(messages: Messages) -> Answer:
        turn = sum(message["role"] == "user" for message in messages)
        is_refused = messages[1]["content"] == row.messages[1]["content"] and turn == 2
        return Answer(None) if is_refused else REPLIES[turn - 1]

    return reply


def outcome(server: ChatServer, env: TextEnv[Any], dialogue: Dialogue, task: str, seed: int) -> dict[str, float]:
    """Return score and metrics of the episode that `play` plays with a server."""
    engine = OpenAIEngine("m", base_url=server.url)
    try:
        (episode,) = play(LanguageAgent("m", engine, dialogue), [env], [Job(task, seed)])
    finally:
        engine.close()
    assert episode.error is None
    return {"score": episode.total_reward + episode.total_penalty, **metrics(episode)}
