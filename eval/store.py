"""The folder of a run: `run.json` (settings), `episodes.jsonl` with `texts.jsonl` (episodes), and derived files.

`episodes.jsonl` is the record of a run. Each finished episode is one line, appended by one write, so that a killed
run loses no finished episode. `index.sqlite` makes a run of many episodes quick to open; see `run_index`.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..agents.episode import Episode
from ..envs.checks import first_difference
from ..envs.errors import ConfigurationError, DataError
from ..envs.files import BINARY, PART, lock_run_folder, move_file, write_atomic
from .episode_lines import (
    LINE_END,
    EncodedEpisode,
    EpisodeKey,
    Result,
    amount,
    encode_episode,
    parse_head,
    read_lines,
)
from .identity import suite_difference
from .manifest import (
    BY_TASK,
    MANIFEST_COPY,
    MANIFEST_FILE,
    RESULT_FILES,
    check_holds_no_study,
    check_keeps_results,
    check_replaces_nothing,
    is_manifest,
    is_training,
    read_manifest,
    write_manifest,
)
from .plain import encode_object
from .provenance import edited_since
from .run_index import EPISODES_FILE, RunIndex, open_index
from .suite import fill_defaults
from .texts import TextStore, describe_lost_texts, read_texts, referred_texts, restore_texts

REFRESH = 5.0
"""Seconds between extensions of the index by the process that appends episodes."""

_WRONG_KINDS = (ValueError, TypeError, LookupError, AttributeError, AssertionError, RecursionError)


class Store:
    """Folder of a run, opened for appending by one process at a time.

    Args:
        folder: Folder of the run; created if absent.
        manifest: Settings of the run. Written to `run.json` of a new run; the suite and agents of an existing run
            must be the same.

    Attributes:
        index: Index of the stored episodes; up to `REFRESH` seconds behind.
        repairs: One sentence for each damaged line that was removed from `episodes.jsonl`, and for a restored
            `run.json`.

    Raises:
        ConfigurationError: The folder holds another run, cannot be written, or is locked by another process.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self._sessions = list(manifest.get("sessions", ()))
        self._versions = manifest.get("versions", {})
        self._suite = (
            json.loads(json.dumps(manifest["suite"], default=encode_object)) if "suite" in manifest else {}
        )
        self._lock = lock_run_folder(folder)
        try:
            self.repairs = self._restore_manifest()
            self._create_or_check_manifest(manifest)
            self.index = open_index(folder, thorough=True)
            self.repairs += self._repair()
            self._texts = TextStore(folder)
            self._file = os.open(self.episodes, os.O_WRONLY | os.O_APPEND | os.O_CREAT | BINARY, 0o644)
            self._indexed = time.monotonic()
        except BaseException:
            self._lock.release()
            raise

    @property
    def episodes(self) -> Path:
        """Path of `episodes.jsonl`."""
        return self.folder / EPISODES_FILE

    def append(self, episode: EncodedEpisode) -> None:
        """Append an encoded episode by one write, so that a kill leaves at most an incomplete last line.

        Raises:
            OSError: It cannot be written, for example because the disk is full. No part of it is kept.
        """
        self._texts.add(episode.texts)  # First, so that no stored line refers to a text that is not stored.
        end = os.fstat(self._file).st_size
        view = memoryview(episode.line)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, end)
            raise OSError(error.errno, error.strerror, str(self.episodes)) from error
        if time.monotonic() >= self._indexed + REFRESH:
            self._refresh_index()

    def record_tasks(
        self, counts: Mapping[str, int], digests: Mapping[str, str], facts: Mapping[str, Any]
    ) -> None:
        """Write the tasks of the suite's entries to `run.json`, and check them against those of an earlier call.

        The tables and the description of the suite, which may be revised, become those of this call.

        Args:
            counts: Number of episodes per agent, by entry.
            digests: Digest of the tasks, by entry.
            facts: Limits of an episode and origin of the tasks, by entry.

        Raises:
            ConfigurationError: The run was started with other tasks, for example with other data, or other limits.
        """
        manifest = read_manifest(self.folder)
        before = manifest.get("tasks", {})
        for entry, was, now in _differing_limits(manifest.get("entries", {}), facts):
            raise ConfigurationError(
                f"{self.folder}: was started with {was} for {entry!r}, and now it would be {now}; choose another"
                " --out, or evaluate it as it was."
            )
        for entry, digest in digests.items():
            if before.get(entry, digest) != digest:
                if edited := self._edited_since(manifest, entry):
                    raise ConfigurationError(
                        f"{self.folder}: the code of {', '.join(edited)} was edited, so that tasks of {entry!r} or"
                        " their first observations are others; choose another --out, or undo the edit."
                    )
                raise ConfigurationError(
                    f"{self.folder}: was started with other tasks for {entry!r} (other data?); choose another"
                    " --out, or set ARBORETUM_DATA as it was."
                )
        changed = {
            "expected": {**manifest.get("expected", {}), **counts},
            "tasks": {**before, **digests},
            "entries": {**manifest.get("entries", {}), **facts},
            "suite": {
                **{key: value for key, value in manifest["suite"].items() if key not in _TEXTS},
                **{key: self._suite[key] for key in _TEXTS if key in self._suite},
            },
        }
        if any(manifest.get(key) != value for key, value in changed.items()):
            write_manifest(self.folder, {**manifest, **changed})

    def _edited_since(self, manifest: Mapping[str, Any], entry: str) -> list[str]:
        """Return the names of the edited classes that the environment of an entry may be of."""
        ids = {one["name"]: one["env"] for one in self._suite.get("entries", ())}
        edited = edited_since(manifest, self._versions)
        return [name for name in edited if ids.get(entry, name) == name or ":" not in ids[entry]]

    def record_session(self) -> None:
        """Add this call's `sessions` to those of an earlier call in `run.json`, with versions that changed."""
        manifest = read_manifest(self.folder)
        sessions = manifest.get("sessions", [])
        others = {} if self._versions == manifest.get("versions", {}) else {"versions": self._versions}
        new = [one for session in self._sessions if (one := {**session, **others}) not in sessions]
        if new:
            write_manifest(self.folder, {**manifest, "sessions": [*sessions, *new]})

    def close(self) -> None:
        """Flush the episodes to the disk and release the lock."""
        try:
            self._refresh_index()
            self.index.close()
            os.fsync(self._file)
        finally:
            os.close(self._file)
            self._lock.release()

    def _refresh_index(self) -> None:
        with suppress(sqlite3.Error):  # The next reader extends the index, or makes it anew.
            self.index.refresh()
        self._indexed = time.monotonic()

    def _restore_manifest(self) -> list[str]:
        """Restore a lost or damaged `run.json` from its copy; return a sentence if it was restored."""
        path, copy = self.folder / MANIFEST_FILE, self.folder / MANIFEST_COPY
        if not self.episodes.exists() or is_manifest(path) or not is_manifest(copy):
            return []
        write_atomic(path, copy.read_bytes())
        return [f"{MANIFEST_FILE} was lost or damaged; it was restored from its copy, {MANIFEST_COPY}."]

    def _create_or_check_manifest(self, manifest: dict[str, Any]) -> None:
        path = self.folder / MANIFEST_FILE
        has_episodes = self.episodes.exists() and self.episodes.stat().st_size > 0
        if not path.exists() or not has_episodes:
            if has_episodes:
                raise ConfigurationError(
                    f"{self.folder}: holds episodes, but neither {MANIFEST_FILE} nor its copy {MANIFEST_COPY};"
                    " restore one of them, or choose another --out."
                )
            if is_training(self.folder):
                raise ConfigurationError(f"{self.folder}: holds a training run; choose another --out.")
            check_holds_no_study(self.folder)
            if not path.exists():
                check_replaces_nothing(self.folder, RESULT_FILES)
            check_keeps_results(self.folder)
            write_manifest(self.folder, manifest)
            return
        existing = read_manifest(self.folder)  # In today's schema, in which later changes write it.
        manifest = json.loads(json.dumps(manifest, default=encode_object))
        if "data" in manifest and "data" not in existing:
            raise ConfigurationError(
                f"{self.folder}: was written by another version of Arboretum, without the names of its data;"
                " choose another --out."
            )
        for entry, was, now in _differing_data(existing, manifest):
            raise ConfigurationError(
                f"{self.folder}: was started on {was} for {entry!r}, and now it would be {now}; choose another"
                " --out, or set ARBORETUM_DATA as it was."
            )
        for field in ("suite", "agents"):
            was, now = (_without_texts(fill_defaults(one.get(field))) for one in (existing, manifest))
            difference = suite_difference(was, now) if field == "suite" else first_difference(was, now)
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
                    f" evaluate it as it was.{_COUNTS if difference.startswith('state.') else ''}"
                )

    def _repair(self) -> list[str]:
        """Move incomplete and unreadable lines to `episodes.damaged.jsonl`; return a sentence for each."""
        if not self.index.has_damage():
            return []
        damaged: dict[int, tuple[bytes, str]] = {}
        for number, (offset, line) in enumerate(read_lines(self.episodes), 1):
            problem = parse_head(line, offset)
            if isinstance(problem, str):
                damaged[number] = line, problem
        with (self.folder / "episodes.damaged.jsonl").open("ab") as file:
            file.writelines(line.removesuffix(LINE_END) + LINE_END for line, _ in damaged.values())
        # Not `write_atomic`: the episodes of a large run need not fit in memory.
        part = self.episodes.with_name(self.episodes.name + PART)
        with part.open("wb") as file:
            lines = enumerate(read_lines(self.episodes), 1)
            file.writelines(line for number, (_, line) in lines if number not in damaged)
        move_file(part, self.episodes)
        self.index.close()
        self.index = open_index(self.folder, thorough=True)
        return [
            f"{self.episodes}, line {number}: {problem}; it was moved to episodes.damaged.jsonl, and its episode"
            " is played again."
            for number, (_, problem) in damaged.items()
        ]


_TEXTS = ("tables", "description")
"""Parts of a suite that decide no episode, and may be revised."""
_COUNTS = (
    " Where that attribute decides no reply, such as a counter, give the class an attribute `identity` with those"
    " that do."
)


def _without_texts(value: Any) -> Any:
    return {key: one for key, one in value.items() if key not in _TEXTS} if isinstance(value, Mapping) else value


def _differing_limits(
    before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, str, str]]:
    """Yield each entry with another limit of an episode than before, with both limits in words.

    Earlier versions stored the limit of one task where it depends on the task.
    """
    for entry, facts in now.items():
        known = before.get(entry, {})
        for name in ("max_steps", "max_turns"):
            if name in known and facts.get(name) not in (known[name], BY_TASK):
                yield entry, f"{name}={known[name]}", f"{name}={facts.get(name)}"


def _differing_data(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each entry on other data than before, with both names."""
    old, new = before.get("data", {}), now.get("data", {})
    files = "the benchmark's files"
    for entry in {**old, **new}:
        if old.get(entry) != new.get(entry):
            yield entry, old.get(entry, files), new.get(entry, files)


class StoredResults(NamedTuple):
    """Results of a run's folder.

    Attributes:
        latest: Last stored result of every episode; the retry of a failed episode replaces it.
        problems: One sentence for each line that is left out, with its file and number, and one for lost texts.
    """

    latest: dict[EpisodeKey, Result]
    problems: list[str]


def read_results(folder: Path, check: Callable[[Result], str | None] = lambda result: None) -> StoredResults:
    """Read the results of a run from its lines, without those that are damaged or hold values of wrong kinds.

    `RunIndex.results` has the same results sooner, and needs the run's settings.

    Args:
        folder: Folder of the run.
        check: Function that returns the fault of a result, which is then left out, or None.
    """
    path = folder / EPISODES_FILE
    latest: dict[EpisodeKey, Result] = {}
    problems: list[str] = []
    texts: set[str] = set()
    if path.exists():
        for number, (offset, line) in enumerate(read_lines(path), 1):
            result = parse_head(line, offset)
            problem = result if isinstance(result, str) else check(result)
            if isinstance(result, Result) and problem is None:
                latest[result.key] = result
                texts |= referred_texts(line)
            else:
                problems.append(f"{path}, line {number}: {problem}; it is left out.")
    return StoredResults(latest, problems + describe_lost_texts(folder, texts))


class StoredEpisode(NamedTuple):
    """An episode as it is stored.

    Attributes:
        record: Content of its line; system messages refer to the texts of `read_texts`.
        episode: The episode, with its whole conversation.
    """

    record: dict[str, Any]
    episode: Episode


def read_episode(folder: str | Path, result: Result) -> Episode:
    """Read the full episode of a result, its conversation included.

    Raises:
        DataError: The stored episode holds values of wrong kinds.
    """
    (stored,) = read_episodes(Path(folder), [result])
    if isinstance(stored, DataError):
        raise stored
    return stored.episode


def read_episodes(folder: Path, results: Iterable[Result]) -> Iterator[StoredEpisode | DataError]:
    """Yield the full episode of each result, or the error of one that holds values of wrong kinds."""
    path = folder / EPISODES_FILE
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


__all__ = [
    "EncodedEpisode",
    "EpisodeKey",
    "Result",
    "RunIndex",
    "Store",
    "StoredEpisode",
    "StoredResults",
    "amount",
    "encode_episode",
    "read_episode",
    "read_episodes",
    "read_results",
]
