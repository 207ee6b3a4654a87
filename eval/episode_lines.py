"""Lines of `episodes.jsonl`: encoding of an episode, and parsing of a line's head.

A line starts with the fields that resuming and summarizing need, so that both parse only its head, and ends with a
checksum.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from ..agents.episode import Episode
from .texts import share_texts

_TURNS = b',"turns":['  # Cannot occur inside a JSON string, where quotes are escaped.
LINE_END = b"\n"
_MAX_AMOUNT = 1e15
_CHECKSUM = b',"crc":"%08x"}'  # CRC-32 of all bytes before it; detects a damaged line without parsing it.
_END_LENGTH = len(_CHECKSUM % 0 + LINE_END)


class EpisodeKey(NamedTuple):
    """Identity of an episode within a run.

    Attributes:
        agent: Name of the agent.
        entry: Name of the suite entry.
        task: Name of the task.
        repeat: Index of the repeat, from 0.
    """

    agent: str
    entry: str
    task: str
    repeat: int


@dataclass(frozen=True, slots=True)
class Result:
    """Head of a stored episode.

    Attributes:
        key: Identity of the episode.
        seed: Seed of the episode.
        success: True if the task was solved at the end.
        total_reward: Undiscounted return.
        steps: Number of actions.
        turns: Number of the agent's replies.
        invalid: Number of actions that the environment refused.
        truncated: True if a step or turn limit ended the episode.
        seconds: Wall time of agent and environment.
        error: Reason for which the episode broke off; None for a complete one.
        details: Further values of the last `info`, and token counts and cost of language agents.
        offset: Byte offset of the line in `episodes.jsonl`.
    """

    key: EpisodeKey
    seed: int
    success: bool
    total_reward: float
    steps: int
    turns: int
    invalid: int
    truncated: bool
    seconds: float
    error: str | None
    details: dict[str, Any]
    offset: int


class EncodedEpisode(NamedTuple):
    """Encoded episode.

    Attributes:
        line: Line of `episodes.jsonl`.
        texts: Texts of `texts.jsonl` that the line refers to, by digest.
    """

    line: bytes
    texts: dict[str, str]


def encode_episode(key: EpisodeKey, episode: Episode) -> EncodedEpisode:
    """Encode an episode for `Store.append`."""
    head = {
        "agent": key.agent,
        "entry": key.entry,
        "task": key.task,
        "repeat": key.repeat,
        "seed": episode.seed,
        "success": episode.success,
        "return": episode.total_reward,
        "steps": episode.steps,
        "turn_count": len(episode.turns),
        "invalid": episode.invalid,
        "truncated": episode.truncated,
        "seconds": round(episode.seconds, 6),
        "error": episode.error,
        "details": episode.details,
    }
    body = episode.to_dict()
    texts = share_texts(body)
    # `turns` goes before `trials`, which contain turns too: `parse_head` cuts at the first `turns`.
    tail = {name: body.pop(name) for name in ("turns", "exchanges", "trials", "trace") if name in body}
    text = json.dumps({**body, **head, **tail}, ensure_ascii=False, separators=(",", ":"))
    line = text.encode("utf-8", "surrogatepass")[:-1]
    return EncodedEpisode(line + _CHECKSUM % zlib.crc32(line) + LINE_END, texts)


def amount(details: Mapping[str, Any], name: str) -> float:
    """Return a number of tokens or a cost in an episode's details; 0 if there is none, or no such amount."""
    value = details.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < _MAX_AMOUNT else 0.0  # type: ignore[operator, arg-type]


def score_of(details: Mapping[str, Any], name: str) -> float | None:
    """Return a score in an episode's details; None if there is none, or no number."""
    value = details.get(name)
    return float(value) if isinstance(value, int | float) else None


def read_lines(path: Path, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the byte offset and the content (with its line end) of each line.

    Args:
        path: File to read.
        offset: Byte offset of the first line to read.
    """
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            yield offset, line
            offset += len(line)


def parse_head(line: bytes, offset: int) -> Result | str:
    """Parse the head of a line; return the fault of a line that is incomplete, damaged or of the wrong kind."""
    body = line[:-_END_LENGTH]
    cut = body.find(_TURNS)
    if not line.endswith(LINE_END):
        return "is incomplete"
    if cut < 0 or line[len(body) :] != _CHECKSUM % zlib.crc32(body) + LINE_END:
        return "is unreadable"
    try:
        return _decode_head(line[:cut] + b"}").to_result(offset)
    except (ValueError, RecursionError, msgspec.MsgspecError):  # Also what only `json` takes: lone surrogates.
        pass
    try:
        head = json.loads((line[:cut] + b"}").decode("utf-8", "surrogatepass"))
        values = [head[name] for name in _KINDS]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "is unreadable"
    for name, value in zip(_KINDS, values, strict=True):
        problem = _kind_problem(name, value)
        if problem is not None:
            return problem
    return Result(*[EpisodeKey(*values[:4]), *values[4:], offset])


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Finite = Annotated[float, msgspec.Meta(gt=-_MAX_AMOUNT, lt=_MAX_AMOUNT)]


class _Head(msgspec.Struct, gc=False):
    """Head of a line in which every value is of the right kind: decoded ten times as fast as by `json`."""

    agent: str
    entry: str
    task: str
    repeat: _Count
    seed: _Count
    success: bool
    total_reward: _Finite = msgspec.field(name="return")
    steps: _Count
    turn_count: _Count
    invalid: _Count
    truncated: bool
    seconds: _Finite
    error: str | None
    details: dict[str, Any]

    def to_result(self, offset: int) -> Result:
        return Result(
            EpisodeKey(self.agent, self.entry, self.task, self.repeat),
            self.seed,
            self.success,
            self.total_reward,
            self.steps,
            self.turn_count,
            self.invalid,
            self.truncated,
            self.seconds,
            self.error,
            self.details,
            offset,
        )


_decode_head = msgspec.json.Decoder(_Head).decode

_KINDS: dict[str, str] = {
    **dict.fromkeys(("agent", "entry", "task"), "text"),
    **dict.fromkeys(("repeat", "seed"), "count"),
    "success": "true or false",
    "return": "finite number",
    **dict.fromkeys(("steps", "turn_count", "invalid"), "count"),
    "truncated": "true or false",
    "seconds": "finite number",
    "error": "text or null",
    "details": "mapping",
}
"""Fields in the head of a line and what they hold, in the order of `Result`."""


def _kind_problem(name: str, value: object) -> str | None:
    """Return the fault of a field's value; None if it is of the right kind."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_right = {
        "text": isinstance(value, str),
        "text or null": value is None or isinstance(value, str),
        "count": is_number and isinstance(value, int) and 0 <= value < 2**63,
        "true or false": isinstance(value, bool),
        "finite number": is_number and abs(value) < _MAX_AMOUNT,  # type: ignore[arg-type]
        "mapping": isinstance(value, dict),
    }[_KINDS[name]]
    return None if is_right else f"has no {_KINDS[name]} as `{name}` but {repr(value)[:40]}"
