"""Episodes as conversations: the messages that a model received and answered, or those that its record implies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...agents.engines.base import Message
from ...agents.episode import Episode
from ...agents.exchange import TURN


def segments(episode: Episode, instructions: str = "") -> list[list[Message]]:
    """Return the conversations of an episode, in order, each ending with a reply.

    A dialogue that sends the whole history has one conversation. One that shortens the history has a new one
    wherever a request does not continue the one before it.

    Args:
        episode: The episode.
        instructions: System message for agents without a model, whose conversation is made from observations and
            replies; empty for none.
    """
    found: list[list[Message]] = []
    for exchange in episode.exchanges:
        if exchange.purpose != TURN or exchange.answer is None:
            continue
        messages = [*exchange.messages, Message("assistant", exchange.answer)]
        if found and found[-1] == messages[: len(found[-1])]:
            found[-1] = messages
        else:
            found.append(messages)
    return found or [[*_system(instructions), *turn_messages(episode)]]


def conversation(episode: Episode, instructions: str = "") -> list[Message]:
    """Return an episode as one conversation.

    It is that of the model if this received the whole history; else the first system message, and the observation
    and the reply of every turn.

    Args:
        episode: The episode.
        instructions: See `segments`.
    """
    found = segments(episode, instructions)
    if len(found) == 1:
        return found[0]
    return [*(message for message in found[0] if message.role == "system"), *turn_messages(episode)]


def plain(messages: list[Message]) -> list[dict[str, str]]:
    """Return messages as mappings with `role` and `content`."""
    return [{"role": message.role, "content": clean(message.content)} for message in messages]


def clean(value: Any) -> Any:
    """Return a text, or a value with texts, in which lone surrogates, which UTF-8 does not have, are replaced."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {clean(key): clean(one) for key, one in value.items()}
    if isinstance(value, list):
        return [clean(one) for one in value]
    return value


def _system(instructions: str) -> list[Message]:
    return [Message("system", instructions)] if instructions else []


def turn_messages(episode: Episode) -> Iterator[Message]:
    """Yield the observation and the reply of each turn."""
    for turn in episode.turns:
        yield Message("user", turn.observation)
        yield Message("assistant", turn.reply)
