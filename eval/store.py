"""The folder of a run: `run.json` (what was asked), `episodes.jsonl` (what was played), and what is made of them.

`episodes.jsonl` is the truth. Each finished episode is one line, appended in one write, so a run that is killed
loses nothing finished. A line starts with the few fields that resuming and summing up need, so that both parse
only its head, and ends with a checksum.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..agents.episode import Episode
from ..envs.errors import ConfigurationError, DataError
from ..envs.files import write_atomic

_TURNS = b',"turns":['  # cannot occur inside a JSON string, where quotes are escaped
_END = b"\n"
_CHECK = b',"crc":"%08x"}'  # of all bytes before it: tells a damaged line without parsing it


class Key(NamedTuple):
    """Which play an episode is."""

    agent: str
    entry: str
    task: str
    repeat: int


@dataclass(frozen=True, slots=True)
class Result:
    """The head of a stored episode."""

    key: Key
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
    """Where the line starts in `episodes.jsonl`, in bytes."""


def encode(key: Key, episode: Episode) -> bytes:
    """The line of an episode."""
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
    tail = {name: body.pop(name) for name in ("turns", "trials") if name in body}  # `turns` first: see `_head`
    text = json.dumps({**body, **head, **tail}, ensure_ascii=False, separators=(",", ":"))
    line = text.encode("utf-8", "surrogatepass")[:-1]
    return line + _CHECK % zlib.crc32(line) + _END


class Store:
    """A run's folder, open for appending by one process at a time.

    Args:
        folder: created if absent.
        manifest: what the run is (suite, agents); written to `run.json` at first, compared on resuming.

    Raises:
        ConfigurationError: the folder holds another run, or another process is writing to it.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock()
        except OSError as error:
            raise ConfigurationError(
                f"{folder}: cannot be written to ({error.strerror}); choose another --out."
            ) from None
        self._claim(manifest)
        self.repairs = self._repair()
        """What had to be mended in `episodes.jsonl`, in sentences."""
        self._file = os.open(self.episodes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    @property
    def episodes(self) -> Path:
        return self.folder / "episodes.jsonl"

    def append(self, line: bytes) -> None:
        """Add one encoded episode: one write, so that a kill leaves at most one half-written last line."""
        view = memoryview(line)
        while view:
            view = view[os.write(self._file, view) :]

    def expect(self, counts: Mapping[str, int], digests: Mapping[str, str]) -> None:
        """Note in `run.json` how many episodes each suite entry has for one player, and which tasks they are.

        Raises:
            ConfigurationError: the run was begun on other tasks, such as those of other data.
        """
        manifest = read_manifest(self.folder)
        before = manifest.get("tasks", {})
        for entry, digest in digests.items():
            if before.get(entry, digest) != digest:
                raise ConfigurationError(
                    f"{self.folder}: was begun on other tasks for {entry!r} (other data?); choose another --out,"
                    " or set ARBORETUM_DATA as it was."
                )
        changed = {"expected": {**manifest.get("expected", {}), **counts}, "tasks": {**before, **digests}}
        if any(manifest.get(key) != value for key, value in changed.items()):
            write_atomic(self.folder / "run.json", _pretty({**manifest, **changed}))

    def finished(self) -> dict[Key, Result]:
        """The whole episodes so far; those that broke off with an error are not among them."""
        return {key: result for key, result in latest(self.folder).items() if result.error is None}

    def close(self) -> None:
        os.fsync(self._file)
        os.close(self._file)
        os.close(self._guard)

    def _lock(self) -> None:
        self._guard = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            import fcntl  # absent on Windows, where runs are not guarded
        except ImportError:
            return
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._guard)
            raise ConfigurationError(
                f"{self.folder}: another process is writing this run; wait for it, or choose another --out."
            ) from None

    def _claim(self, manifest: dict[str, Any]) -> None:
        path = self.folder / "run.json"
        played = self.episodes.exists() and self.episodes.stat().st_size > 0
        if not path.exists() or not played:
            if played:
                raise ConfigurationError(f"{self.folder}: holds episodes but no run.json; choose another --out.")
            write_atomic(path, _pretty(manifest))
            return
        there = read_manifest(self.folder)
        for field in ("suite", "agents"):
            if there.get(field) != json.loads(json.dumps(manifest[field])):
                os.close(self._guard)
                raise ConfigurationError(
                    f"{self.folder}: holds a run of another {field.removesuffix('s')}; choose another --out,"
                    " or delete that folder."
                )

    def _repair(self) -> list[str]:
        """Make every line whole: cut a half-written last one, set aside any that cannot be read."""
        if not self.episodes.exists():
            return []
        bad: list[tuple[int, bytes]] = []
        for number, offset, line in _lines(self.episodes):
            if _head(line, offset) is None:
                bad.append((number, line))
        if not bad:
            return []
        with (self.folder / "episodes.damaged.jsonl").open("ab") as aside:
            aside.writelines(line.removesuffix(_END) + _END for _, line in bad)
        numbers = {number for number, _ in bad}
        copy = self.episodes.with_suffix(".jsonl.part")
        with copy.open("wb") as out:
            out.writelines(line for number, _, line in _lines(self.episodes) if number not in numbers)
            out.flush()
            os.fsync(out.fileno())
        copy.replace(self.episodes)
        return [
            f"episodes.jsonl, line {number} was {'unreadable' if line.endswith(_END) else 'half-written'}; it was"
            " moved to episodes.damaged.jsonl and its episode will be played again."
            for number, line in bad
        ]


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(1-based number, byte offset, line with its line end)."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield number, offset, line
            offset += len(line)


def _head(line: bytes, offset: int) -> Result | None:
    """The head of a line; None if the line is not whole."""
    body = line[: -len(_CHECK % 0 + _END)]
    cut = body.find(_TURNS)
    if cut < 0 or line[len(body) :] != _CHECK % zlib.crc32(body) + _END:
        return None
    try:
        head = json.loads(line[:cut] + b"}")
        key = Key(head["agent"], head["entry"], head["task"], head["repeat"])
        return Result(
            key,
            head["seed"],
            head["success"],
            head["return"],
            head["steps"],
            head["turn_count"],
            head["invalid"],
            head["truncated"],
            head["seconds"],
            head["error"],
            head["details"],
            offset,
        )
    except (ValueError, KeyError, TypeError):
        return None


def latest(folder: Path) -> dict[Key, Result]:
    """The last stored result of every play in a run's folder; a retried error is replaced by its retry."""
    path = folder / "episodes.jsonl"
    if not path.exists():
        return {}
    results: dict[Key, Result] = {}
    for _, offset, line in _lines(path):
        result = _head(line, offset)
        if result is not None:
            results[result.key] = result
    return results


def read_episode(folder: Path, result: Result) -> Episode:
    """The whole episode behind a result."""
    with (folder / "episodes.jsonl").open("rb") as file:
        file.seek(result.offset)
        return Episode.from_dict(json.loads(file.readline().decode("utf-8", "surrogatepass")))


def read_manifest(folder: Path) -> dict[str, Any]:
    """`run.json` of a run's folder.

    Raises:
        DataError: the folder holds no run, or its `run.json` is damaged.
    """
    path = folder / "run.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise DataError(
            folder, "holds no run (no run.json); give the folder that `arboretum eval` wrote."
        ) from None
    except ValueError as error:
        raise DataError(path, f"is not JSON ({error}).") from None
    if not isinstance(manifest, dict) or not {"suite", "agents"} <= manifest.keys():
        raise DataError(path, "expected a JSON object with `suite` and `agents`.")
    return manifest


def _pretty(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
