"""Parts that all adapters share: rows of a dataset, and the dialogue of a tool that takes one action."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...envs.core import TextEnv
from ...envs.errors import ConfigurationError
from ...envs.registry import make_env
from ...envs.seeding import stable_seed
from ...envs.tasks import distinct_tasks
from ..dialogue import Dialogue, Plain, make_dialogue
from ..engines.base import Message
from ..engines.openai import cut_at_stop, missing_closing_tag
from ..episode import Episode
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


def open_tasks(env: str, count: int, dialogue: Dialogue, *, seed: int = 0, **kwargs: Any) -> list[Row]:
    """Return the openings of an environment's first distinct tasks, each with the seed of `arboretum eval`.

    Args:
        env: Id of the environment.
        count: Number of tasks; fewer rows are returned if there are not so many.
        dialogue: Dialogue that renders the messages.
        seed: Base seed, the option `--seed` of `arboretum eval`.
        kwargs: Arguments of the environment.

    Raises:
        ConfigurationError: The environment or an argument is unknown, or a task cannot be opened.
    """
    chat = append_only_chat(make_env(env, **kwargs), dialogue)
    data = chat.env.generated_data
    entry = env if data is None else f"{data}: {env}"
    rows = []
    for task in distinct_tasks(chat.env, count):
        messages = open_episode(chat, task, stable_seed(seed, entry, task, 0) >> 33)
        rows.append(Row(task, chat.episode.seed, as_dicts(messages)))
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


def make_chat(
    env: str,
    dialogue: str,
    env_options: Mapping[str, Any] | None = None,
    dialogue_options: Mapping[str, Any] | None = None,
) -> EpisodeChat:
    """Return the conversation of a neighbour that names environment and dialogue, and keeps every message.

    Args:
        env: Id of the environment.
        dialogue: Name of a dialogue with the history "full".
        env_options: Arguments of the environment.
        dialogue_options: Settings of the dialogue.

    Raises:
        ConfigurationError: A name or an option is unknown, or the dialogue truncates the history.
    """
    return append_only_chat(make_env(env, **env_options or {}), make_dialogue(dialogue, dialogue_options))


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
            f"this adapter sends no function schemas; choose a dialogue other than {dialogue.name}"
        )
    if dialogue.history != "full":
        raise ConfigurationError(f'this adapter keeps all messages; set history="full", not {dialogue.history!r}')
    return EpisodeChat(env, dialogue)


def as_dicts(messages: list[Message]) -> list[dict[str, str]]:
    """Return messages as dictionaries with `role` and `content`."""
    return [{"role": message.role, "content": message.content} for message in messages]


def end_reply(text: str, dialogue: Dialogue, *, cut: bool = False) -> str:
    """Return a reply up to the dialogue's first stop text, which a server may have omitted or not known.

    Args:
        text: The reply as the server returned it.
        dialogue: The dialogue.
        cut: True if a limit of tokens ended the reply, so that no stop text is missing.
    """
    reply, _ = cut_at_stop(text, dialogue.stop)
    return reply if cut else reply + missing_closing_tag(reply, dialogue.stop)


def tokens_to_stop(ids: list[int], tokenizer: Any, dialogue: Dialogue) -> list[int]:
    """Return the tokens of a reply without those of a text that follows the dialogue's first stop text.

    A token that ends the turn is kept.

    Args:
        ids: Tokens of a server that knows no stop texts.
        tokenizer: Tokenizer of the model.
        dialogue: The dialogue.
    """

    def has_stop(count: int) -> bool:
        return cut_at_stop(tokenizer.decode(ids[:count], skip_special_tokens=False), dialogue.stop)[1]

    end = bisect_left(range(len(ids) + 1), True, key=has_stop)
    return ids[:end] if tokenizer.decode(ids[end:], skip_special_tokens=True).strip() else ids


def metrics(episode: Episode) -> dict[str, float]:
    """Return figures of an episode, of which neighbours report means."""
    return {
        "success": float(episode.success),
        "turns": float(len(episode.turns)),
        "invalid_actions": float(episode.invalid),
    }
