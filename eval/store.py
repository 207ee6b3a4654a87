"""The folder of a run: `run.json` (settings), `episodes.jsonl` with `texts.jsonl` (episodes), and derived files.

`episodes.jsonl` is the record of a run. Each finished episode is one line, appended by one write, so that a killed
run loses no finished episode. A line starts with the fields that resuming and summarizing need, so that both parse
only its head, and ends with a checksum.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from ..agents.episode import Episode
from ..envs.checks import first_difference
from ..envs.errors import ConfigurationError, DataError
from ..envs.files import PART, move_file, write_atomic
from .texts import TextStore, read_texts, restore_texts, share_texts

_TURNS = b',"turns":['  # Cannot occur inside a JSON string, where quotes are escaped.
_LINE_END = b"\n"
_WRONG_KINDS = (ValueError, TypeError, LookupError, AttributeError, AssertionError, RecursionError)
_MAX_AMOUNT = 1e15
_CHECKSUM = b',"crc":"%08x"}'  # CRC-32 of all bytes before it; detects a damaged line without parsing it.


MANIFEST_FILE = "run.json"
_MANIFEST_COPY = ".run.json"


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


def amount(details: Mapping[str, Any], name: str) -> float:
    """Return a number of tokens or a cost in an episode's details; 0 if there is none, or no such amount."""
    value = details.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < _MAX_AMOUNT else 0.0  # type: ignore[operator, arg-type]


class Store:
    """Folder of a run, opened for appending by one process at a time.

    Args:
        folder: Folder of the run; created if absent.
        manifest: Settings of the run. Written to `run.json` of a new run; the suite and agents of an existing run
            must be the same.

    Attributes:
        repairs: One sentence for each damaged line that was removed from `episodes.jsonl`, and for a restored
            `run.json`.

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
            self.repairs = self._restore_manifest()
            self._create_or_check_manifest(manifest)
            self.repairs += self._repair()
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
        self, counts: Mapping[str, int], digests: Mapping[str, str], facts: Mapping[str, Any]
    ) -> None:
        """Write the tasks of the suite's entries to `run.json`, and check them against those of an earlier call.

        Args:
            counts: Number of episodes per agent, by entry.
            digests: Digest of the tasks, by entry.
            facts: Limits of an episode and origin of the tasks, by entry.

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
            "entries": {**manifest.get("entries", {}), **facts},
        }
        if any(manifest.get(key) != value for key, value in changed.items()):
            _write_manifest(self.folder, {**manifest, **changed})

    def record_session(self) -> None:
        """Add this call's `sessions` to those of an earlier call in `run.json`."""
        manifest = read_manifest(self.folder)
        sessions = manifest.get("sessions", [])
        new = [session for session in self._sessions if session not in sessions]
        if new:
            _write_manifest(self.folder, {**manifest, "sessions": [*sessions, *new]})

    def finished(self, check: Callable[[Result], str | None] = lambda result: None) -> dict[EpisodeKey, Result]:
        """Return the complete episodes so far, without those that broke off with an error.

        Args:
            check: See `read_results`.
        """
        latest = read_results(self.folder, check).latest
        return {key: result for key, result in latest.items() if result.error is None}

    def close(self) -> None:
        """Flush the episodes to the disk and release the lock."""
        os.fsync(self._file)
        os.close(self._file)
        self._lock.release()

    def _restore_manifest(self) -> list[str]:
        """Restore a lost or damaged `run.json` from its copy; return a sentence if it was restored."""
        path, copy = self.folder / MANIFEST_FILE, self.folder / _MANIFEST_COPY
        if not self.episodes.exists() or _is_manifest(path) or not _is_manifest(copy):
            return []
        write_atomic(path, copy.read_bytes())
        return [f"{MANIFEST_FILE} was lost or damaged; it was restored from its copy, {_MANIFEST_COPY}."]

    def _create_or_check_manifest(self, manifest: dict[str, Any]) -> None:
        path = self.folder / MANIFEST_FILE
        has_episodes = self.episodes.exists() and self.episodes.stat().st_size > 0
        if not path.exists() or not has_episodes:
            if has_episodes:
                raise ConfigurationError(
                    f"{self.folder}: holds episodes, but neither {MANIFEST_FILE} nor its copy {_MANIFEST_COPY};"
                    " restore one of them, or choose another --out."
                )
            _write_manifest(self.folder, manifest)
            return
        existing = read_manifest(self.folder)
        manifest = json.loads(json.dumps(manifest))
        for entry, was, now in _differing_data(existing, manifest):
            raise ConfigurationError(
                f"{self.folder}: was started on {was} for {entry!r}, and now it would be {now}; choose another"
                " --out, or set ARBORETUM_DATA as it was."
            )
        for field in ("suite", "agents"):
            difference = first_difference(existing.get(field), manifest[field])
            if difference is not None:
                raise ConfigurationError(
                    f"{self.folder}: holds a run of another {field.removesuffix('s')} ({difference}); choose"
                    " another --out, or delete that folder."
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
        damaged: dict[int, tuple[bytes, str]] = {}
        for number, offset, line in _read_lines(self.episodes):
            problem = _parse_head(line, offset)
            if isinstance(problem, str):
                damaged[number] = line, problem
        if not damaged:
            return []
        with (self.folder / "episodes.damaged.jsonl").open("ab") as file:
            file.writelines(line.removesuffix(_LINE_END) + _LINE_END for line, _ in damaged.values())
        # Not `write_atomic`: the episodes of a large run need not fit in memory.
        part = self.episodes.with_name(self.episodes.name + PART)
        with part.open("wb") as file:
            file.writelines(line for number, _, line in _read_lines(self.episodes) if number not in damaged)
        move_file(part, self.episodes)
        return [
            f"{self.episodes}, line {number}: {problem}; it was moved to episodes.damaged.jsonl, and its episode"
            " is played again."
            for number, (_, problem) in damaged.items()
        ]


def _differing_data(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each entry on other data than before, with both names."""
    old, new = before.get("data", {}), now.get("data", {})
    files = "the benchmark's files"
    for entry in {**old, **new}:
        if old.get(entry) != new.get(entry):
            yield entry, old.get(entry, files), new.get(entry, files)


def _read_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield the 1-based number, the byte offset, and the content (with its line end) of each line."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield number, offset, line
            offset += len(line)


def _parse_head(line: bytes, offset: int) -> Result | str:
    """Parse the head of a line; return the fault of a line that is incomplete, damaged or of the wrong kind."""
    body = line[: -len(_CHECKSUM % 0 + _LINE_END)]
    cut = body.find(_TURNS)
    if not line.endswith(_LINE_END):
        return "is incomplete"
    if cut < 0 or line[len(body) :] != _CHECKSUM % zlib.crc32(body) + _LINE_END:
        return "is unreadable"
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


class StoredResults(NamedTuple):
    """Results of a run's folder.

    Attributes:
        latest: Last stored result of every episode; the retry of a failed episode replaces it.
        problems: One sentence for each line that is left out, with its file and number.
    """

    latest: dict[EpisodeKey, Result]
    problems: list[str]


def read_results(folder: Path, check: Callable[[Result], str | None] = lambda result: None) -> StoredResults:
    """Read the results of a run, without lines that are damaged or hold values of wrong kinds.

    Args:
        folder: Folder of the run.
        check: Function that returns the fault of a result, which is then left out, or None.
    """
    path = folder / "episodes.jsonl"
    latest: dict[EpisodeKey, Result] = {}
    problems: list[str] = []
    if path.exists():
        for number, offset, line in _read_lines(path):
            result = _parse_head(line, offset)
            problem = result if isinstance(result, str) else check(result)
            if isinstance(result, Result) and problem is None:
                latest[result.key] = result
            else:
                problems.append(f"{path}, line {number}: {problem}; it is left out.")
    return StoredResults(latest, problems)


class StoredEpisode(NamedTuple):
    """An episode as it is stored.

    Attributes:
        record: Content of its line; system messages refer to the texts of `read_texts`.
        episode: The episode, with its whole conversation.
    """

    record: dict[str, Any]
    episode: Episode


def read_episode(folder: Path, result: Result) -> Episode:
    """Read the full episode of a result, its conversation included.

    Raises:
        DataError: The stored episode holds values of wrong kinds.
    """
    (stored,) = read_episodes(folder, [result])
    if isinstance(stored, DataError):
        raise stored
    return stored.episode


def read_episodes(folder: Path, results: Iterable[Result]) -> Iterator[StoredEpisode | DataError]:
    """Yield the full episode of each result, or the error of one that holds values of wrong kinds."""
    path = folder / "episodes.jsonl"
    texts = read_texts(folder)
    with path.open("rb") as file:
        for result in results:
            file.seek(result.offset)
            line = file.readline()
            try:
                record = json.loads(line.decode("utf-8", "surrogatepass"), parse_constant=_refuse_constant)
                stored = StoredEpisode(record, Episode.from_dict(restore_texts(record, texts)))
            except _WRONG_KINDS as error:
                yield DataError(
                    path,
                    f"the episode of task {result.key.task!r} at byte {result.offset} is damaged"
                    f" ({type(error).__name__}: {error}).",
                )
            else:
                yield stored


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON, and browsers do not read it")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read `run.json` of a run's folder, or its copy if it is missing or damaged.

    Raises:
        DataError: The folder holds no run, or its `run.json` is damaged and there is no copy.
    """
    path, copy = folder / MANIFEST_FILE, folder / _MANIFEST_COPY
    if not _is_manifest(path) and _is_manifest(copy):
        path = copy
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


def _is_manifest(path: Path) -> bool:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and {"suite", "agents"} <= manifest.keys()


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write `run.json` and its copy: without its settings, no episode of a run can be used."""
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    for name in (MANIFEST_FILE, _MANIFEST_COPY):
        write_atomic(folder / name, text)
