"""`decisions.jsonl`: labels of a run's episodes, a derived file that can be deleted at any time.

Each line has the labels of one episode, and names the line of `episodes.jsonl` from which it was made by its
offset, length and checksum. A line that is damaged, belongs to another line of `episodes.jsonl` or was written by
another version of Arboretum is ignored, and its episode is labelled again.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from ...envs.files import BINARY, read_at, write_atomic
from ..index_reader import EPISODES_FILE, IndexReader
from ..store import EpisodeKey, Result
from .labels import REASONS, Decision, EpisodeDecisions, Unlabelled

FILE = "decisions.jsonl"
VERSION = 3
"""Version of the labels and of their form in the file."""

Labels = EpisodeDecisions | Unlabelled

_OPTIMAL, _COSTLY, _FATAL, _LOST, _UNKNOWN = "ocfx?"
_VISITS = {".": (False, False), "r": (True, False), "b": (False, True), "*": (True, True)}
_VISIT_MARKS = {flags: mark for mark, flags in _VISITS.items()}
_USUAL: Mapping[str, tuple[float | None, float | None]] = {
    _OPTIMAL: (0.0, 0.0),
    _COSTLY: (0.0, 2.0),
    _FATAL: (1.0, None),
    _LOST: (0.0, None),
    _UNKNOWN: (None, None),
}
"""Regrets in value and steps of most actions, by mark; `regrets` holds the others."""
_JUDGMENTS: Mapping[str, tuple[bool | None, bool | None]] = {
    _OPTIMAL: (True, False),
    _COSTLY: (False, False),
    _FATAL: (False, True),
    _LOST: (None, False),
    _UNKNOWN: (None, None),
}
"""Values of `optimal` and `fatal`, by mark."""
_MARKS = {judgment: mark for mark, judgment in _JUDGMENTS.items()}
_CHECKSUM_LENGTH = len(b'"01234567"}\n')

DECISIONS_FILE: Mapping[str, str] = {
    **dict.fromkeys(EpisodeKey._fields, "Identity of the episode, as in `episodes.jsonl`."),
    "at": "Offset and length in bytes of the episode's line in `episodes.jsonl`.",
    "episode": "Checksum of that line.",
    "version": "Version of Arboretum and of the labels.",
    "unlabelled": "Reason why the episode has no labels; the following keys are then absent.",
    "outcome": f"Why the episode ended as it did: {', '.join(REASONS)}.",
    "exact": "True if the optimum is proven; otherwise regrets are over the shortest known.",
    "measure": "Quantity of the regrets in value.",
    "marks": "One character per action: `o` optimal, `c` costly, `f` fatal, `x` nothing left to lose, `?`"
    " unknown.",
    "visits": "One character per action: `r` same action in the same state as before, `b` back in an earlier"
    " state, `*` both, `.` neither.",
    "regrets": "By index of the action, from 0: regrets in value and in steps, where they differ from"
    " [0, 0] for `o`, [0, 2] for `c`, [1, null] for `f`, [0, null] for `x` and [null, null] for `?`.",
    "crc": "CRC-32 of all bytes of the line before this key, as eight hexadecimal digits.",
}
"""Keys of a line of `decisions.jsonl`."""


def labels_version() -> str:
    """Return the version of Arboretum and of the labels, which a line must have to be used."""
    from ... import __version__

    return f"{__version__}/{VERSION}"


class DecisionsFile:
    """File of a run's labels, opened for appending.

    Lines that no episode of the run needs are removed when it is opened.

    Args:
        folder: Folder of the run.
        find: Function that returns the result of an episode.
        keep: Labels that remain valid; the others are removed.
    """

    def __init__(
        self, folder: Path, find: Callable[[EpisodeKey], Result | None], keep: Mapping[EpisodeKey, Labels]
    ) -> None:
        path = folder / FILE
        content = path.read_bytes() if path.exists() else b""
        if content.count(b"\n") != len(keep) or content[-1:] not in (b"", b"\n"):
            lines = []
            with (folder / EPISODES_FILE).open("rb") as episodes:
                for key, labels in keep.items():
                    if (result := find(key)) is not None:
                        episodes.seek(result.offset)
                        lines.append(_encode(result, episodes.readline(), labels))
            write_atomic(path, b"".join(lines))
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | BINARY, 0o644)

    def append(self, result: Result, line: bytes, labels: Labels) -> None:
        """Append the labels of an episode by one write, so that a kill leaves at most an incomplete last line.

        Args:
            result: Result of the episode.
            line: Line of the episode in `episodes.jsonl`.
            labels: Its labels.
        """
        os.write(self._file, _encode(result, line, labels))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _encode(result: Result, line: bytes, labels: Labels) -> bytes:
    """Return the line of the labels of an episode, whose line in `episodes.jsonl` is `line`."""
    head = {
        **result.key._asdict(),
        "at": [result.offset, len(line)],
        "episode": line[-_CHECKSUM_LENGTH:][1:9].decode("ascii", "replace"),
        "version": labels_version(),
    }
    body = _JSON.encode({**head, **plain_labels(labels)}).encode("utf-8", "surrogatepass")[:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def plain_labels(labels: Labels) -> dict[str, Any]:
    """Return labels as plain data, in the form of `DECISIONS_FILE`."""
    if isinstance(labels, Unlabelled):
        return {"unlabelled": labels.reason}
    plain = [_plain_decision(decision) for decision in labels.decisions]
    return {
        "outcome": labels.outcome,
        "exact": labels.exact,
        "measure": labels.measure,
        "marks": "".join([mark for mark, _, _ in plain]),
        "visits": "".join([visit for _, visit, _ in plain]),
        "regrets": {str(index): regrets for index, (_, _, regrets) in enumerate(plain) if regrets is not None},
    }


@lru_cache(maxsize=4096)
def _plain_decision(decision: Decision) -> tuple[str, str, list[float | None] | None]:
    """Return the marks of a decision, and its regrets in value and steps if they are not those of its mark."""
    optimal, value, steps, fatal, repeated, returned = decision
    mark = _MARKS[optimal, fatal]
    regrets = None if (value, steps) == _USUAL[mark] else [value, steps]
    return mark, _VISIT_MARKS[repeated, returned], regrets


def read_labels(folder: str | Path, results: Iterable[Result]) -> dict[EpisodeKey, Labels]:
    """Return the stored labels of a run's results, by the keys of the results.

    Results whose labels are missing, damaged or stale are left out; nothing is computed.

    Args:
        folder: Folder of the run.
        results: Results of the run.
    """
    wanted = {result.offset: result for result in results}
    return _read_found(Path(folder), lambda record: wanted.get(record["at"][0])) if wanted else {}


def read_indexed_labels(folder: Path, index: IndexReader) -> dict[EpisodeKey, Labels]:
    """Return the stored labels of a run as `read_labels` does, without holding the results of the run.

    Args:
        folder: Folder of the run.
        index: Index of the run.
    """

    def find(record: Mapping[str, Any]) -> Result | None:
        key = EpisodeKey(*[record[name] for name in EpisodeKey._fields])
        if not (all(isinstance(part, str) for part in key[:3]) and isinstance(key.repeat, int)):
            return None
        result = index.find(key)
        return result if result is not None and result.offset == record["at"][0] else None

    return _read_found(folder, find)


def _read_found(folder: Path, find: Callable[[Mapping[str, Any]], Result | None]) -> dict[EpisodeKey, Labels]:
    """Return the valid labels of the results that a function finds for lines of the file."""
    path = folder / FILE
    found: dict[EpisodeKey, Labels] = {}
    if not path.exists() or not (folder / EPISODES_FILE).exists():
        return found
    version = labels_version()
    with (folder / EPISODES_FILE).open("rb") as episodes, path.open("rb") as file:
        for line in file:
            try:
                record = _parse(line)
                if record is None or record["version"] != version:
                    continue
                offset, length = record["at"]
                result = find(record)
                if result is None or _checksum_at(episodes, offset + length) != record["episode"]:
                    continue
                labels = _read(record)
            except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
                continue
            if isinstance(labels, Unlabelled) or len(labels.decisions) == result.steps:
                found[result.key] = labels
    return found


def _parse(line: bytes) -> dict[str, Any] | None:
    """Parse a line; return None if it is incomplete or damaged."""
    body = line[: -len(b',"crc":"01234567"}\n')]
    if line[len(body) :] != b',"crc":"%08x"}\n' % zlib.crc32(body):
        return None
    record: dict[str, Any] = json.loads((body + b"}").decode("utf-8", "surrogatepass"))
    return record


def _checksum_at(episodes: BinaryIO, end: int) -> str:
    """Return the checksum in the line of `episodes.jsonl` that ends at an offset."""
    tail = read_at(episodes.fileno(), _CHECKSUM_LENGTH, max(0, end - _CHECKSUM_LENGTH))
    return tail[1:9].decode("ascii", "replace") if tail.endswith(b'"}\n') else ""


def _read(record: Mapping[str, Any]) -> Labels:
    """Return the labels of a line."""
    if "unlabelled" in record:
        return Unlabelled(record["unlabelled"])
    regrets = record["regrets"]
    decisions = list(_decisions(record["marks"], record["visits"]))
    for index, (value, steps) in regrets.items():
        decisions[int(index)] = decisions[int(index)]._replace(value_regret=value, step_regret=steps)
    return EpisodeDecisions(tuple(decisions), record["outcome"], record["exact"], record["measure"])


def _decisions(marks: str, visits: str) -> Iterator[Decision]:
    """Yield the usual decision of each pair of marks."""
    for pair in zip(marks, visits, strict=True):
        yield _USUAL_DECISIONS[pair]


_USUAL_DECISIONS = {
    (mark, visit): Decision(_JUDGMENTS[mark][0], *_USUAL[mark], _JUDGMENTS[mark][1], *_VISITS[visit])
    for mark in _JUDGMENTS
    for visit in _VISITS
}
