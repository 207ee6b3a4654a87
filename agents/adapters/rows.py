"""Parts that all adapters share: rows of a dataset, and the dialogue of a tool that takes one action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ...envs.core import TextEnv
from ...envs.errors import ConfigurationError
from ...envs.registry import make_env
from ...envs.seeding import stable_seed
from ..dialogue import Dialogue, Plain
from ..engines.base import Message
from ..episode_chat import EpisodeChat


@dataclass(frozen=True, kw_only=True)
class ActTool(Plain):
    """Dialogue of a neighbour that calls a tool `act`: the reply is the action that was passed to it."""

    def format_rules(self) -> str:
        return "Call the tool `act` with one action at a time, and read its result before the next call."


class Row(NamedTuple):
    """One episode to play. Members of a group are copies of one row, so they share task and seed.

    Attributes:
        task: Id of the task.
        seed: Seed of the episode.
        messages: The opening of the episode: the system message and the first user message.
    """

    task: str
    seed: int
    messages: list[dict[str, str]]


def open_episodes(env: str, count: int, dialogue: Dialogue, *, seed: int = 0, **kwargs: Any) -> list[Row]:
    """Return the openings of episodes with different seeds, whose tasks are drawn from these.

    Args:
        env: Id of the environment.
        count: Number of episodes.
        dialogue: Dialogue that renders the messages.
        seed: Seed of the draw.
        kwargs: Arguments of the environment.

    Raises:
        ConfigurationError: The environment or an argument is unknown, or a task cannot be opened.
    """
    chat = EpisodeChat(make_env(env, **kwargs), dialogue)
    rows = []
    for number in range(count):
        messages = open_episode(chat, None, stable_seed("row", number, seed) >> 33)
        rows.append(Row(chat.episode.task, chat.episode.seed, as_dicts(messages)))
    return rows


def open_episode(chat: EpisodeChat, task: str | None, seed: int) -> list[Message]:
    """Open a task.

    Raises:
        ConfigurationError: It cannot be opened.
    """
    messages = chat.open(task, seed)
    if chat.episode.error is not None:
        raise ConfigurationError(chat.episode.error)
    return messages


def append_only_chat(env: TextEnv[Any], dialogue: Dialogue, *, sends_tools: bool = False) -> EpisodeChat:
    """Return the conversation of a neighbour that keeps every message.

    Args:
        env: The environment.
        dialogue: Dialogue that renders the messages.
        sends_tools: True if the schemas of functions reach the model.

    Raises:
        ConfigurationError: The dialogue truncates the history, or calls functions that the model does not see.
    """
    if dialogue.tools and not sends_tools:
        raise ConfigurationError(
            f"this trainer sends no function schemas; choose a dialogue other than {dialogue.name}"
        )
    if dialogue.history != "full":
        raise ConfigurationError(f'this trainer keeps all messages; set history="full", not {dialogue.history!r}')
    return EpisodeChat(env, dialogue)


def as_dicts(messages: list[Message]) -> list[dict[str, str]]:
    """Return messages as dictionaries with `role` and `content`."""
    return [{"role": message.role, "content": message.content} for message in messages]
