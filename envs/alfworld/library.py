"""The games of a data folder: found, compiled once, opened by task.

A data folder holds the original's tree (`json_2.1.1/<split>/<type>-…/<trial>/game.tw-pddl`), tar archives of it,
or both. A game's task id is its path from `json_…` on. A file that is no playable game is skipped and reported;
the rest of its folder is played.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from weakref import WeakValueDictionary

from ..data import archive_members, cache_folder
from ..errors import DataError, unknown_name
from .gamefile import read_game
from .model import Game
from .pack import Pack, PackWriter, open_pack
from .pddl import Malformed

_log = logging.getLogger(__name__)

GAME_SUFFIX = ".tw-pddl"
_ARCHIVE = re.compile(r".*\.(tar(\.(gz|xz|bz2|zst))?|tgz|txz)$")
_RELEASE = re.compile(r"json_\d.*")
_LEFT_OUT = ("movable", "Sliced")
"""ALFWorld's loader leaves out tasks whose folder names one of these."""


class Library:
    """The games of one folder and one split.

    Attributes:
        tasks: task ids, sorted. Evaluate in this order: the original's own follows the file system.
        skipped: (file, reason) of what was left out.
    """

    def __init__(
        self, folder: Path, split: str | None, shelves: list[_Shelf], damaged: Sequence[DataError] = ()
    ) -> None:
        self.folder = folder
        self._shelves = shelves
        self._shelf_of: dict[str, _Shelf] = {}
        for shelf in shelves:
            for task in shelf.pack.places:
                self._shelf_of.setdefault(task, shelf)
        self.tasks = sorted(self._shelf_of)
        self.skipped = [(error.path, error.problem) for error in damaged] + sorted(
            (name, reason) for shelf in shelves for name, (reason, _) in shelf.pack.skipped.items()
        )
        if not self.tasks:
            self._complain(split)
        for name, reason in self.skipped:
            _log.warning("%s is skipped: %s", name, reason)
        self._games: WeakValueDictionary[str, Game] = WeakValueDictionary()

    def _complain(self, split: str | None) -> None:
        splits = sorted({name for shelf in self._shelves for name in shelf.pack.splits})
        if split is not None and splits and split not in splits:
            raise unknown_name("split", split, splits)
        reason = f" ({self.skipped[0][0]}: {self.skipped[0][1]})" if self.skipped else ""
        raise DataError(
            self.folder,
            f"holds no playable ALFWorld game{reason}; it must have {GAME_SUFFIX} files or tar archives of them.",
        )

    def game(self, task: str) -> Game:
        """Open a game; environments that have the same one open share it.

        Raises:
            DataError: the file has become unreadable.
        """
        game = self._games.get(task)
        if game is None:
            shelf = self._shelf_of[task]
            try:
                game = shelf.pack.game(task)
            except (OSError, ValueError) as error:
                _log.info("the compiled form of %s is ignored: %s", task, error)
                game = shelf.compile(task)
            self._games[task] = game
        return game


def open_library(folder: Path, split: str | None) -> Library:
    """The games of a folder (or of one archive or game file).

    Environments of one process share a library. It is compared with the folder again at each call, unless that
    would take more than a twentieth of the time: then calls in quick succession rely on the last comparison.

    Raises:
        DataError: no playable game; a damaged archive with nothing beside it (else it is among the skipped).
        ConfigurationError: no such split.
    """
    folder = Path(os.path.abspath(folder))
    started = time.monotonic()
    known = _libraries.get((folder, split))
    if known is not None and started < known.compared_at + 20 * known.comparison_took:
        return known.library
    files, archives = _find(folder)
    compared = time.monotonic()
    fingerprint = (files, archives)
    if known is None or known.fingerprint != fingerprint:
        shelves: list[_Shelf] = [_Tree(folder, split, files)] if files else []
        damaged = []
        for path in archives:
            try:
                shelves.append(_Archive(path, split))
            except DataError as error:
                damaged.append(error)
        if damaged and not shelves:
            raise damaged[0]
        known = _Known(fingerprint, Library(folder, split, shelves, damaged))
        _libraries[folder, split] = known
    known.compared_at, known.comparison_took = compared, compared - started
    return known.library


class Signature(NamedTuple):
    """What changes when a file does."""

    size: int
    modified: int
    changed: int
    inode: int


class _Known:
    """A library and the state of the folder that it was made from."""

    def __init__(self, fingerprint: object, library: Library) -> None:
        self.fingerprint = fingerprint
        self.library = library
        self.compared_at = self.comparison_took = 0.0


_libraries: dict[tuple[Path, str | None], _Known] = {}


class _Shelf:
    """A source of games and its pack."""

    pack: Pack

    def compile(self, task: str) -> Game:
        """Compile a game from its file, for when the pack fails."""
        raise NotImplementedError


class _Archive(_Shelf):
    """A tar archive. Its pack is named by the archive's content."""

    def __init__(self, path: Path, split: str | None) -> None:
        self.path = path
        with path.open("rb") as file:
            digest = blake2b(digest_size=16)
            while block := file.read(1 << 20):
                digest.update(block)
        place = _pack_path("archive", digest.hexdigest(), split)
        self.pack = (place and open_pack(place)) or self._fill(split).finish(place)

    def _fill(self, split: str | None) -> PackWriter:
        _log.info("compiling the games of %s, once", self.path)
        writer = PackWriter()
        for name, content in self._members():
            found = _split_of(PurePosixPath(name))
            writer.splits.add(found)
            if split is None or found == split:
                _shelve(writer, _task_id(PurePosixPath(name)), f"{self.path}:{name}", content)
        return writer

    def _members(self) -> Iterator[tuple[str, bytes]]:
        return ((name, data) for name, data in archive_members(self.path) if name.endswith(GAME_SUFFIX))

    def compile(self, task: str) -> Game:
        for name, content in self._members():
            if _task_id(PurePosixPath(name)) == task:
                return _read(f"{self.path}:{name}", content)
        raise DataError(self.path, f"no longer holds {task}.")


class _Tree(_Shelf):
    """Loose files. Their pack is named by the folder; a record counts only for the bytes it was made from."""

    def __init__(self, folder: Path, split: str | None, files: dict[Path, Signature]) -> None:
        self.paths: dict[str, Path] = {}
        splits = set()
        for path in sorted(files):
            found = _split_of(path)
            splits.add(found)
            if split is None or found == split:
                self.paths.setdefault(_task_id(path, folder), path)
        place = _pack_path("tree", blake2b(os.fsencode(folder), digest_size=16).hexdigest(), split)
        old = open_pack(place) if place else None
        if old is not None and self._is_current(old, files, splits):
            self.pack = old
        else:
            self.pack = self._fill(old, files, splits).finish(place)

    def _is_current(self, pack: Pack, files: dict[Path, Signature], splits: set[str]) -> bool:
        if set(pack.splits) != splits or len(pack.places) + len(pack.skipped) != len(self.paths):
            return False
        for task, path in self.paths.items():
            place = pack.places.get(task)
            source = place.source if place else pack.skipped.get(str(path), ("", ()))[1]
            if not source or source[0] != files[path]:
                return False
        return True

    def _fill(self, old: Pack | None, files: dict[Path, Signature], splits: set[str]) -> PackWriter:
        _log.info("compiling new games, once")
        writer = PackWriter()
        writer.splits = splits
        now = time.time_ns()
        for task, path in self.paths.items():
            content = path.read_bytes()
            digest = blake2b(content, digest_size=16).hexdigest()
            # A file written just now may be written again without a visible change of its times.
            recent = now - max(files[path].modified, files[path].changed) < 2_000_000_000
            source = ((0, 0, 0, 0) if recent else files[path], digest)
            place = old.places.get(task) if old else None
            if old is not None and place is not None and place.source[1:] == (digest,):
                try:
                    writer.add_record(task, old.record(place), old.dialect(place), source)
                    continue
                except (OSError, ValueError) as error:
                    _log.info("the compiled form of %s is ignored: %s", task, error)
            _shelve(writer, task, str(path), content, source)
        return writer

    def compile(self, task: str) -> Game:
        path = self.paths[task]
        try:
            return _read(str(path), path.read_bytes())
        except OSError as error:
            raise DataError(path, f"can no longer be read ({error}).") from error


def _shelve(writer: PackWriter, task: str, where: str, content: bytes, source: tuple[object, ...] = ()) -> None:
    """Compile a file into a pack, or note why not."""
    if any(word in task for word in _LEFT_OUT):
        writer.skip(where, "ALFWorld leaves out tasks with movable receptacles or sliced objects", source)
        return
    try:
        game = read_game(content)
    except Malformed as problem:
        writer.skip(where, str(problem), source)
    except (ValueError, LookupError, RecursionError) as problem:  # malformed in a way that no rule foresaw
        writer.skip(where, f"cannot be read ({type(problem).__name__}: {problem})", source)
    else:
        writer.add(task, game, source)


def _read(where: str, content: bytes) -> Game:
    try:
        return read_game(content)
    except Malformed as problem:
        raise DataError(where, f"{problem}.") from None


def _find(folder: Path) -> tuple[dict[Path, Signature], dict[Path, Signature]]:
    """The game files at and below a path, and the archives right at it."""
    files: dict[Path, Signature] = {}
    archives: dict[Path, Signature] = {}
    if folder.is_file():
        (archives if _ARCHIVE.match(folder.name) else files)[folder] = _signature(folder.stat())
        return files, archives
    waiting = [str(folder)]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError as error:
            raise DataError(folder, f"cannot be listed ({error}).") from error
        for entry in entries:
            if entry.is_dir():
                waiting.append(entry.path)
            elif entry.name.endswith(GAME_SUFFIX):
                files[Path(entry.path)] = _signature(entry.stat())
            elif _ARCHIVE.match(entry.name) and os.path.dirname(entry.path) == str(folder):
                archives[Path(entry.path)] = _signature(entry.stat())
    return dict(sorted(files.items())), dict(sorted(archives.items()))


def _signature(stat: os.stat_result) -> Signature:
    return Signature(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


def _task_id(path: PurePosixPath | Path, folder: Path | None = None) -> str:
    """The path from `json_…` on; without such a component, relative to `folder`."""
    parts = path.parts
    for number, part in enumerate(parts):
        if _RELEASE.fullmatch(part):
            return "/".join(parts[number:])
    if folder is not None and path != folder:
        return path.relative_to(folder).as_posix()
    return "/".join(parts[-4:]) if folder is not None else path.as_posix()


def _split_of(path: PurePosixPath | Path) -> str:
    """The folder three above the file: `<split>/<task>/<trial>/game.tw-pddl`."""
    return path.parts[-4] if len(path.parts) >= 4 else ""


def _pack_path(kind: str, key: str, split: str | None) -> Path | None:
    """Where a pack is kept, or None if there is no place for caches."""
    name = f"{kind}-{key}" + (f"-{blake2b(split.encode(), digest_size=4).hexdigest()}" if split else "")
    try:
        return cache_folder() / "alfworld" / f"{name}.pack"
    except OSError as error:
        _log.info("compiled games are not kept: %s", error)
        return None
