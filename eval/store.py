"""The folder of a run: `run.json` (settings), `episodes.jsonl` with `texts.jsonl` (episodes), and derived files.

`episodes.jsonl` is the record of a run. Each finished episode is one line, appended by one write, so that a killed
run loses no finished episode. A line starts with the fields that resuming and summarizing need, so that both parse
only its head, and ends with a checksum.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from ..agents.episode import Episode
from ..envs.checks import first_difference
from ..envs.errors import ConfigurationError, DataError
from ..envs.files import PART, write_atomic
from .texts import TextStore, read_texts, restore_texts, share_texts

_TURNS = b',"turns":['  # Cannot occur inside a JSON string, where quotes are escaped.
_LINE_END = b"\n"
_CHECKSUM = b',"crc":"%08x"}'  # CRC-32 of all bytes before it; detects a damaged line without parsing it.


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
    # `turns` goes before `trials`, which contain turns too: `_parse_head` cuts at the first `turns`.
    tail = {name: body.pop(name) for name in ("turns", "exchanges", "trials") if name in body}
    text = json.dumps({**body, **head, **tail}, ensure_ascii=False, separators=(",", ":"))
    line = text.encode("utf-8", "surrogatepass")[:-1]
    return EncodedEpisode(line + _CHECKSUM % zlib.crc32(line) + _LINE_END, texts)


class Store:
    """Folder of a run, opened for appending by one process at a time.

    Args:
        folder: Folder of the run; created if absent.
        manifest: Settings of the run. Written to `run.json` of a new run; the suite and agents of an existing run
            must be the same.

    Attributes:
        repairs: One sentence for each damaged line that was removed from `episodes.jsonl`.

    Raises:
        ConfigurationError: The folder holds another run, cannot be written, or is locked by another process.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self._sessions = list(manifest.get("sessions", ()))
        self._lock = FileLock(folder / ".lock", timeout=0, thread_local=False)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()  # The operating system releases it when the process dies.
        except Timeout:
            raise ConfigurationError(
                f"{folder}: another process is writing this run; wait for it, or choose another --out."
            ) from None
        except OSError as error:
            raise ConfigurationError(
                f"{folder}: cannot be written to ({error.strerror}); choose another --out."
            ) from None
        try:
            self._create_or_check_manifest(manifest)
            self.repairs = self._repair()
            self._texts = TextStore(folder)
            self._file = os.open(self.episodes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except BaseException:
            self._lock.release()
            raise

    @property
    def episodes(self) -> Path:
        """Path of `episodes.jsonl`."""
        return self.folder / "episodes.jsonl"

    def append(self, episode: EncodedEpisode) -> None:
        """Append an encoded episode by one write, so that a kill leaves at most an incomplete last line."""
        self._texts.add(episode.texts)  # First, so that no stored line refers to a text that is not stored.
        view = memoryview(episode.line)
        while view:
            view = view[os.write(self._file, view) :]

    def record_tasks(
        self, counts: Mapping[str, int], digests: Mapping[str, str], limits: Mapping[str, Any]
    ) -> None:
        """Write the tasks of the suite's entries to `run.json`, and check them against those of an earlier call.

        Args:
            counts: Number of episodes per agent, by entry.
            digests: Digest of the tasks, by entry.
            limits: Limits of an episode, by entry.

        Raises:
            ConfigurationError: The run was started with other tasks, for example with other data.
        """
        manifest = read_manifest(self.folder)
        before = manifest.get("tasks", {})
        for entry, digest in digests.items():
            if before.get(entry, digest) != digest:
                raise ConfigurationError(
                    f"{self.folder}: was started with other tasks for {entry!r} (other data?); choose another"
                    " --out, or set ARBORETUM_DATA as it was."
                )
        changed = {
            "expected": {**manifest.get("expected", {}), **counts},
            "tasks": {**before, **digests},
            "limits": {**manifest.get("limits", {}), **limits},
        }
        if any(manifest.get(key) != value for key, value in changed.items()):
            write_atomic(self.folder / "run.json", _to_json({**manifest, **changed}))

    def record_session(self) -> None:
        """Add this call's `sessions` to those of an earlier call in `run.json`."""
        manifest = read_manifest(self.folder)
        sessions = manifest.get("sessions", [])
        new = [session for session in self._sessions if session not in sessions]
        if new:
            write_atomic(self.folder / "run.json", _to_json({**manifest, "sessions": [*sessions, *new]}))

    def finished(self) -> dict[EpisodeKey, Result]:
        """Return the complete episodes so far, without those that broke off with an error."""
        return {key: result for key, result in latest_results(self.folder).items() if result.error is None}

    def close(self) -> None:
        """Flush the episodes to the disk and release the lock."""
        os.fsync(self._file)
        os.close(self._file)
        self._lock.release()

    def _create_or_check_manifest(self, manifest: dict[str, Any]) -> None:
        path = self.folder / "run.json"
        has_episodes = self.episodes.exists() and self.episodes.stat().st_size > 0
        if not path.exists() or not has_episodes:
            if has_episodes:
                raise ConfigurationError(f"{self.folder}: holds episodes but no run.json; choose another --out.")
            write_atomic(path, _to_json(manifest))
            return
        existing = read_manifest(self.folder)
        for field in ("suite", "agents"):
            if existing.get(field) != json.loads(json.dumps(manifest[field])):
                raise ConfigurationError(
                    f"{self.folder}: holds a run of another {field.removesuffix('s')}; choose another --out,"
                    " or delete that folder."
                )
        if "identities" not in existing and any(manifest.get("identities", {}).values()):
            raise ConfigurationError(
                f"{self.folder}: was written by another version of Arboretum, without the settings of its agents;"
                " choose another --out."
            )
        for agent, identity in manifest.get("identities", {}).items():
            difference = first_difference(existing.get("identities", {}).get(agent, {}), identity)
            if difference is not None:
                raise ConfigurationError(
                    f"{self.folder}: was started with another {agent} ({difference}); choose another --out, or"
                    " evaluate it as it was."
                )

    def _repair(self) -> list[str]:
        """Move incomplete and unreadable lines to `episodes.damaged.jsonl`; return a sentence for each."""
        if not self.episodes.exists():
            return []
        damaged = {
            number: line
            for number, offset, line in _read_lines(self.episodes)
            if _parse_head(line, offset) is None
        }
        if not damaged:
            return []
        with (self.folder / "episodes.damaged.jsonl").open("ab") as file:
            file.writelines(line.removesuffix(_LINE_END) + _LINE_END for line in damaged.values())
        # Not `write_atomic`: the episodes of a large run need not fit in memory.
        part = self.episodes.with_name(self.episodes.name + PART)
        with part.open("wb") as file:
            file.writelines(line for number, _, line in _read_lines(self.episodes) if number not in damaged)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.episodes)
        return [
            f"line {number} of episodes.jsonl was {'unreadable' if line.endswith(_LINE_END) else 'incomplete'};"
            " it was moved to episodes.damaged.jsonl, and its episode is played again."
            for number, line in damaged.items()
        ]


def _read_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield the 1-based number, the byte offset, and the content (with its line end) of each line."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield number, offset, line
            offset += len(line)


def _parse_head(line: bytes, offset: int) -> Result | None:
    """Parse the head of a line; return None if the line is incomplete or damaged."""
    body = line[: -len(_CHECKSUM % 0 + _LINE_END)]
    cut = body.find(_TURNS)
    if cut < 0 or line[len(body) :] != _CHECKSUM % zlib.crc32(body) + _LINE_END:
        return None
    try:
        head = json.loads(line[:cut] + b"}")
        key = EpisodeKey(head["agent"], head["entry"], head["task"], head["repeat"])
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


def latest_results(folder: Path) -> dict[EpisodeKey, Result]:
    """Return the last stored result of every episode of a run; the retry of a failed episode replaces it."""
    path = folder / "episodes.jsonl"
    if not path.exists():
        return {}
    results: dict[EpisodeKey, Result] = {}
    for _, offset, line in _read_lines(path):
        result = _parse_head(line, offset)
        if result is not None:
            results[result.key] = result
    return results


def read_episode(folder: Path, result: Result) -> Episode:
    """Read the full episode of a result, its conversation included."""
    (record,) = read_records(folder, [result])
    restore_texts(record, read_texts(folder))
    return Episode.from_dict(record)


def read_records(folder: Path, results: Iterable[Result]) -> Iterator[dict[str, Any]]:
    """Yield the stored record of each result; its system messages refer to the run's `read_texts`."""
    with (folder / "episodes.jsonl").open("rb") as file:
        for result in results:
            file.seek(result.offset)
            yield json.loads(file.readline().decode("utf-8", "surrogatepass"))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read `run.json` of a run's folder.

    Raises:
        DataError: The folder holds no run, or its `run.json` is damaged.
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


def _to_json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
