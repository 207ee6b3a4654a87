"""Discovery, compilation and caching of the games in a data folder.

A data folder holds the original's tree (`json_2.1.1/<split>/<type>-…/<trial>/game.tw-pddl`), tar archives of it,
or both. The task id of a game is its path, starting at `json_…`. Files that hold no playable game are skipped with
a warning.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import NamedTuple, NoReturn
from weakref import WeakValueDictionary

from ..data import archive_members, cache_folder
from ..errors import DataError, unknown_name
from ..retrieval.progress import progress_bar
from .gamefile import read_game
from .model import Game
from .pack import Pack, PackWriter, open_pack
from .pddl import Malformed

_log = logging.getLogger(__name__)

GAME_SUFFIX = ".tw-pddl"
_ARCHIVE = re.compile(r".*\.(tar(\.(gz|xz|bz2|zst))?|tgz|txz)$")
_BAR_DELAY = 1.0
"""Seconds before a progress bar appears while games are compiled."""
_RELEASE = re.compile(r"json_\d.*")
_EXCLUDED = ("movable", "Sliced")
"""Words that exclude a task if they occur in its folder name, as in ALFWorld's loader."""


class Library:
    """Games of one folder and one split.

    Attributes:
        folder: Folder, archive or game file that was opened.
        tasks: Sorted task ids. The sorted order is reproducible; the original's order depends on the file system.
        skipped: (file, reason) of each skipped file.
    """

    def __init__(
        self, folder: Path, split: str | None, sources: list[_Source], damaged: Sequence[DataError] = ()
    ) -> None:
        self.folder = folder
        self._sources = sources
        self._source_of: dict[str, _Source] = {}
        for source in sources:
            for task in source.pack.entries:
                self._source_of.setdefault(task, source)
        self.tasks = sorted(self._source_of)
        self.skipped = [(error.path, error.problem) for error in damaged] + sorted(
            (name, reason) for source in sources for name, (reason, _) in source.pack.skipped.items()
        )
        if not self.tasks:
            self._raise_empty(split)
        for name, reason in self.skipped:
            _log.warning("skipping %s: %s", name, reason)
        self._games: WeakValueDictionary[str, Game] = WeakValueDictionary()

    def _raise_empty(self, split: str | None) -> NoReturn:
        splits = sorted({name for source in self._sources for name in source.pack.splits})
        if split is not None and splits and split not in splits:
            raise unknown_name(f"split of {self.folder}", split, splits)
        reason = f" ({self.skipped[0][0]}: {self.skipped[0][1]})" if self.skipped else ""
        raise DataError(
            self.folder,
            f"contains no playable ALFWorld game{reason}; add {GAME_SUFFIX} files or tar archives of them.",
        )

    def __contains__(self, task: object) -> bool:
        """Return True if there is a game of this task id."""
        return task in self._source_of

    def game(self, task: str) -> Game:
        """Return the game of a task; environments with the same task share one object.

        Raises:
            DataError: The file can no longer be read.
        """
        game = self._games.get(task)
        if game is None:
            source = self._source_of[task]
            try:
                game = source.pack.game(task)
            except (OSError, ValueError) as error:
                _log.info("ignoring the cached game %s: %s", task, error)
                game = source.compile(task)
            self._games[task] = game
        return game


def open_library(folder: Path, split: str | None) -> Library:
    """Open the games of a folder, of one archive, or of one game file.

    The environments of a process share one library per folder and split. Each call compares the library with the
    folder's current content, unless the last comparison was so recent that comparing again would take more than
    about a twentieth of the elapsed time.

    Args:
        folder: Folder, archive or game file.
        split: Name of the split, or None for all games.

    Raises:
        DataError: There is no playable game, or the only sources are damaged archives. A damaged archive beside
            readable sources is listed in `Library.skipped`.
        ConfigurationError: There is no such split.
    """
    folder = Path(os.path.abspath(folder))
    started = time.monotonic()
    known = _libraries.get((folder, split))
    if known is not None and started < known.compared_at + 20 * known.comparison_seconds:
        return known.library
    files, archives = _find(folder)
    compared = time.monotonic()
    fingerprint = (files, archives)
    if known is None or known.fingerprint != fingerprint:
        sources: list[_Source] = [_FolderSource(folder, split, files)] if files else []
        damaged = []
        for path in archives:
            try:
                sources.append(_ArchiveSource(path, split))
            except DataError as error:
                damaged.append(error)
        if damaged and not sources:
            raise damaged[0]
        known = _CachedLibrary(fingerprint, Library(folder, split, sources, damaged))
        _libraries[folder, split] = known
    known.compared_at, known.comparison_seconds = compared, compared - started
    return known.library


class Signature(NamedTuple):
    """File metadata that changes when a file is modified (times in nanoseconds)."""

    size: int
    modified: int
    changed: int
    inode: int


class _CachedLibrary:
    """A library with the fingerprint of the folder from which it was built."""

    def __init__(self, fingerprint: object, library: Library) -> None:
        self.fingerprint = fingerprint
        self.library = library
        self.compared_at = self.comparison_seconds = 0.0


_libraries: dict[tuple[Path, str | None], _CachedLibrary] = {}


class _Source:
    """A source of game files, with the pack of their compiled games."""

    pack: Pack

    def compile(self, task: str) -> Game:
        """Compile a game from its file, as a fallback for an unreadable record."""
        raise NotImplementedError


class _ArchiveSource(_Source):
    """A tar archive. The name of its pack is derived from the archive's content."""

    def __init__(self, path: Path, split: str | None) -> None:
        self.path = path
        with path.open("rb") as file:
            digest = blake2b(digest_size=16)
            while block := file.read(1 << 20):
                digest.update(block)
        pack_path = _pack_path("archive", digest.hexdigest(), split)
        self.pack = (pack_path and open_pack(pack_path)) or self._build_pack(split).write(pack_path)

    def _build_pack(self, split: str | None) -> PackWriter:
        _log.info("compiling and caching the games of %s", self.path)
        writer = PackWriter()
        with progress_bar(delay=_BAR_DELAY, transient=True) as progress:
            for number, (name, content) in enumerate(self._members()):
                progress("games", number, None)
                found = _split_of(PurePosixPath(name))
                writer.splits.add(found)
                if split is None or found == split:
                    _add_game(writer, _task_id(PurePosixPath(name)), f"{self.path}:{name}", content)
        return writer

    def _members(self) -> Iterator[tuple[str, bytes]]:
        return ((name, data) for name, data in archive_members(self.path) if name.endswith(GAME_SUFFIX))

    def compile(self, task: str) -> Game:
        for name, content in self._members():
            if _task_id(PurePosixPath(name)) == task:
                return _read(f"{self.path}:{name}", content)
        raise DataError(self.path, f"no longer contains {task}; restore the archive.")


class _FolderSource(_Source):
    """Loose game files. The name of their pack is derived from the folder; records are validated by content."""

    def __init__(self, folder: Path, split: str | None, files: dict[Path, Signature]) -> None:
        self.paths: dict[str, Path] = {}
        splits = set()
        for path in sorted(files):
            found = _split_of(path)
            splits.add(found)
            if split is None or found == split:
                self.paths.setdefault(_task_id(path, folder), path)
        pack_path = _pack_path("tree", blake2b(os.fsencode(folder), digest_size=16).hexdigest(), split)
        old = open_pack(pack_path) if pack_path else None
        if old is not None and self._is_current(old, files, splits):
            self.pack = old
        else:
            self.pack = self._build_pack(old, files, splits).write(pack_path)

    def _is_current(self, pack: Pack, files: dict[Path, Signature], splits: set[str]) -> bool:
        if set(pack.splits) != splits or len(pack.entries) + len(pack.skipped) != len(self.paths):
            return False
        for task, path in self.paths.items():
            entry = pack.entries.get(task)
            source = entry.source if entry else pack.skipped.get(str(path), ("", ()))[1]
            if not source or source[0] != files[path]:
                return False
        return True

    def _build_pack(self, old: Pack | None, files: dict[Path, Signature], splits: set[str]) -> PackWriter:
        _log.info("compiling and caching new games")
        writer = PackWriter()
        writer.splits = splits
        now = time.time_ns()
        with progress_bar(delay=_BAR_DELAY, transient=True) as progress:
            for number, (task, path) in enumerate(self.paths.items()):
                progress("games", number, len(self.paths))
                try:
                    content = path.read_bytes()
                except OSError as error:
                    # Without a signature, so that the next start tries again.
                    writer.skip(str(path), f"cannot be read ({error.strerror})")
                    continue
                digest = blake2b(content, digest_size=16).hexdigest()
                # A file that is written twice within the resolution of file times has an unchanged signature.
                recent = now - max(files[path].modified, files[path].changed) < 2_000_000_000
                source = ((0, 0, 0, 0) if recent else files[path], digest)
                entry = old.entries.get(task) if old else None
                if old is not None and entry is not None and entry.source[1:] == (digest,):
                    try:
                        writer.add_record(task, old.record(entry), old.dialect(entry), source)
                        continue
                    except (OSError, ValueError) as error:
                        _log.info("ignoring the cached game %s: %s", task, error)
                _add_game(writer, task, str(path), content, source)
        return writer

    def compile(self, task: str) -> Game:
        path = self.paths[task]
        try:
            return _read(str(path), path.read_bytes())
        except OSError as error:
            raise DataError(path, f"can no longer be read ({error}).") from error


def _add_game(writer: PackWriter, task: str, where: str, content: bytes, source: tuple[object, ...] = ()) -> None:
    """Compile a file and add it to a pack, or register the reason why it is skipped."""
    if any(word in task for word in _EXCLUDED):
        writer.skip(where, "ALFWorld excludes tasks with movable receptacles or sliced objects", source)
        return
    try:
        game = read_game(content)
    except Malformed as problem:
        writer.skip(where, str(problem), source)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:  # No check covers it.
        writer.skip(where, f"cannot be read ({type(problem).__name__}: {problem})", source)
    else:
        writer.add(task, game, source)


def _read(where: str, content: bytes) -> Game:
    try:
        return read_game(content)
    except Malformed as problem:
        raise DataError(where, f"{problem}.") from None


def _find(folder: Path) -> tuple[dict[Path, Signature], dict[Path, Signature]]:
    """Return the game files at and below a path, and the archives directly in it.

    Every folder is read once: links are followed after all else, and not to folders that have been read.

    Raises:
        DataError: A folder cannot be listed, or a file or link in it leads nowhere.
    """
    files: dict[Path, Signature] = {}
    archives: dict[Path, Signature] = {}
    if folder.is_file():
        (archives if _ARCHIVE.match(folder.name) else files)[folder] = _signature(folder.stat())
        return files, archives
    waiting = [(str(folder), os.path.realpath(folder))]
    links: list[str] = []
    seen: set[str] = set()
    while waiting or links:
        if not waiting:
            link = links.pop()
            waiting.append((link, os.path.realpath(link)))
        path, real = waiting.pop()
        if real in seen:
            continue
        seen.add(real)
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir() and entry.is_symlink():
                        links.append(entry.path)
                    elif entry.is_dir():
                        waiting.append((entry.path, os.path.join(real, entry.name)))
                    elif entry.name.endswith(GAME_SUFFIX):
                        files[Path(entry.path)] = _signature(entry.stat())
                    elif _ARCHIVE.match(entry.name) and path == str(folder):
                        archives[Path(entry.path)] = _signature(entry.stat())
        except OSError as error:
            raise DataError(error.filename or path, f"cannot be read ({error.strerror}).") from error
    return dict(sorted(files.items())), dict(sorted(archives.items()))


def _signature(stat: os.stat_result) -> Signature:
    return Signature(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


def _task_id(path: PurePosixPath | Path, folder: Path | None = None) -> str:
    """Return the path starting at `json_…`; without such a component, the path relative to `folder`."""
    parts = path.parts
    for number, part in enumerate(parts):
        if _RELEASE.fullmatch(part):
            return "/".join(parts[number:])
    if folder is not None and path != folder:
        return path.relative_to(folder).as_posix()
    return "/".join(parts[-4:]) if folder is not None else path.as_posix()


def _split_of(path: PurePosixPath | Path) -> str:
    """Return the split of a file from its path `<split>/<task>/<trial>/game.tw-pddl`."""
    return path.parts[-4] if len(path.parts) >= 4 else ""


def _pack_path(kind: str, key: str, split: str | None) -> Path | None:
    """Return the path of a pack, or None if the cache folder cannot be created."""
    name = f"{kind}-{key}" + (f"-{blake2b(split.encode(), digest_size=4).hexdigest()}" if split else "")
    try:
        return cache_folder() / "alfworld" / f"{name}.pack"
    except OSError as error:
        _log.info("compiled games are not cached: %s", error)
        return None
