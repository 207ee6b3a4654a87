"""Requests to a language model with their replies, and their compact form in files.

A request repeats most of the one before it, and its messages mostly quote what the record of the episode holds
already. `pack_exchanges` stores every text once and leaves out what the record implies; `unpack_exchanges`
restores the messages exactly, whichever history the dialogue has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .engines.base import Finish, Message

TURN = "turn"
"""Purpose of the requests of an episode's own conversation."""


@dataclass(slots=True)
class Exchange:
    """One request to a model, and its reply.

    Attributes:
        turn: Index of the turn in which the request was submitted.
        purpose: `TURN` for the conversation of the episode; else the purpose of a separate request, such as
            "reflection".
        messages: The messages as the engine received them.
        prefill: Forced beginning of the reply; empty if there is none.
        reply: The reply without the prefill; None if there is none, because the request was rejected.
        finish: Reason for the end of the reply, see `Completion`; None if there is none.
    """

    turn: int
    purpose: str
    messages: tuple[Message, ...]
    prefill: str = ""
    reply: str | None = None
    finish: Finish | None = None

    @property
    def answer(self) -> str | None:
        """The reply with the prefill, as it stands in the messages of later requests."""
        return None if self.reply is None else self.prefill + self.reply


def pack_exchanges(
    exchanges: Sequence[Exchange], observations: Sequence[str], replies: Sequence[str]
) -> list[dict[str, Any]]:
    """Return exchanges as plain data; repeated texts are left out.

    A request's record has these keys, of which all but `turn` and `add` may be missing:

    * `turn`, `purpose`, `prefill`, `reply`, `finish`: as in `Exchange`. Missing values are `TURN`, the prefill of
      the request before, the reply of the turn, and "stop".
    * `keep`: `[m, n]`: the request begins with the first m and then the last n messages of the request of the same
      purpose before it. Missing, it begins with all of them.
    * `add`: the further messages, as `[role, content]`. The content is a text, a list of texts and of indices of
      turns whose observations stand there, or None for the reply of the request before.

    Args:
        exchanges: Exchanges of an episode, in order.
        observations: Observation before each turn, and the last observation.
        replies: Reply of each turn.
    """
    records = []
    latest: dict[str, Exchange] = {}
    for exchange in exchanges:
        before = latest.get(exchange.purpose)
        latest[exchange.purpose] = exchange
        record: dict[str, Any] = {"turn": exchange.turn}
        if exchange.purpose != TURN:
            record["purpose"] = exchange.purpose
        kept = 0
        if before is not None:
            first, last = _overlap(before.messages, exchange.messages)
            kept = first + last
            if first < len(before.messages):
                record["keep"] = [first, last]
        record["add"] = [
            [role, None]
            if before is not None and role == "assistant" and content == before.answer
            else [role, _quote(content, observations[: exchange.turn + 1])]
            for role, content in exchange.messages[kept:]
        ]
        if exchange.prefill != (before.prefill if before is not None else ""):
            record["prefill"] = exchange.prefill
        if (
            exchange.answer is None
            or exchange.purpose != TURN
            or [*replies[exchange.turn : exchange.turn + 1]] != [exchange.answer]
        ):
            record["reply"] = exchange.reply
        if exchange.finish != "stop":
            record["finish"] = exchange.finish
        records.append(record)
    return records


def unpack_exchanges(
    records: Sequence[Mapping[str, Any]], observations: Sequence[str], replies: Sequence[str]
) -> list[Exchange]:
    """Return the exchanges of records made by `pack_exchanges`, with the same observations and replies."""
    exchanges = []
    latest: dict[str, Exchange] = {}
    for record in records:
        turn, purpose = record["turn"], record.get("purpose", TURN)
        before = latest.get(purpose)
        messages: list[Message] = []
        prefill = record.get("prefill", before.prefill if before is not None else "")
        if before is not None:
            first, last = record.get("keep", (len(before.messages), 0))
            messages += before.messages[:first] + before.messages[len(before.messages) - last :]
        for role, content in record["add"]:
            if content is None:
                assert before is not None and before.answer is not None
                content = before.answer
            elif not isinstance(content, str):
                content = "".join(part if isinstance(part, str) else observations[part] for part in content)
            messages.append(Message(role, content))
        reply = record["reply"] if "reply" in record else replies[turn].removeprefix(prefill)
        finish = record.get("finish", "stop")
        latest[purpose] = Exchange(turn, purpose, tuple(messages), prefill, reply, finish)
        exchanges.append(latest[purpose])
    return exchanges


def _overlap(before: Sequence[Message], after: Sequence[Message]) -> tuple[int, int]:
    """Return m and n such that `after` begins with the first m and then the last n messages of `before`."""
    first = 0
    while first < min(len(before), len(after)) and before[first] == after[first]:
        first += 1
    for start in range(first, len(before)):
        if before[start:] == after[first : first + len(before) - start]:
            return first, len(before) - start
    return first, 0


def _quote(text: str, observations: Sequence[str]) -> str | list[str | int]:
    """Return a text as parts in which latest observations are given by their turns; the text if it has none."""
    parts: list[str | int] = []
    rest = text
    for turn in reversed(range(len(observations))):
        if not observations[turn]:
            break
        head, found, tail = rest.rpartition(observations[turn])
        if not found:
            break
        parts = [turn, *([tail] if tail else []), *parts]
        rest = head
    return [*([rest] if rest else []), *parts] if parts else text
