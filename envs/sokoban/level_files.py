"""Boxoban level files (Guez et al., 2018): `<split>/<NNN>.txt`, indexed without being read.

A level consists of a line `; k`, the rows of the board, and an empty line. The published files number their 1000
boards of 10x10 cells from 0, so the offset of every level can be computed: such a file is recognized by its size,
and a level is read with one seek. Files of any other size are read and validated when the folder is opened.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import overload

from ..errors import DataError, unknown_name
from ..tasks import parse_index
from .rules import STANDARD

SYMBOLS = {
    "#": STANDARD.wall,
    " ": STANDARD.floor,
    ".": STANDARD.target,
    "*": STANDARD.box_on_target,
    "$": STANDARD.box,
    "@": STANDARD.player,
    "+": STANDARD.player_on_target,
}
"""Mapping from the symbols of the common Sokoban level format (Boxoban uses all but `*` and `+`) to ours."""

_TO_STANDARD = str.maketrans(SYMBOLS)
_BOARD_BYTES = 10 * 11  # ten rows with their newlines
MAX_BOARD_SIZE = 30
"""Maximum number of rows or columns of a board."""


def _standard_offset(index: int) -> int:
    """Return the offset in bytes of level `index` in a file of the published layout.

    It is also the size of a file with `index` levels.
    """
    digits = index + sum(max(0, index - int("1" + power * "0")) for power in range(1, len(str(index))))
    return index * (len("; \n") + _BOARD_BYTES + len("\n")) + digits


@lru_cache(maxsize=1024)  # all published files have the same size
def _standard_count(size: int) -> int | None:
    """Return the number of levels in a file of `size` bytes and published layout, or None for other sizes."""
    # No level number has more digits than the file size, so this first estimate is a lower bound.
    count = size // (_BOARD_BYTES + len("; \n\n") + len(str(size)))
    while _standard_offset(count) < size:
        count += 1
    return count if count and _standard_offset(count) == size else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def parse_levels(text: str, path: str | Path) -> dict[int, str]:
    """Parse and validate all levels of a file.

    Args:
        text: Content of the file.
        path: Path of the file, for error messages.

    Returns:
        Mapping from the number in each level's header to its board in the standard vocabulary, in file order.

    Raises:
        DataError: A header is missing, a number occurs twice, a character is not part of a level, rows differ in
            length, a board is cut off, open at the edge or too large, the number of players is not one, the
            numbers of boxes and targets differ, or no box is off target. The error has the line number.
    """
    levels: dict[int, str] = {}
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        if not lines[at].strip():
            at += 1
            continue
        header = lines[at]
        number = header[1:].strip()
        if not header.startswith(";") or not _is_number(number):
            raise DataError(path, f"expected a level's header such as '; 0', found {header[:40]!r}.", at + 1)
        if int(number) in levels:
            raise DataError(
                path, f"level {number} occurs twice; give the levels of a file different numbers.", at + 1
            )
        first = at = at + 1
        while at < len(lines) and lines[at].strip():
            if lines[at].startswith(";"):
                break
            at += 1
        levels[int(number)] = _parse_board(lines[first:at], path, first + 1)
    if not levels:
        raise DataError(path, "contains no level; expected '; 0' and a board.", 1)
    return levels


def _parse_board(rows: list[str], path: str | Path, line: int) -> str:
    """Validate one board and return it in the standard vocabulary; `line` is the line number of its first row."""
    if len(rows) < 3:
        raise DataError(path, f"the board ends after {len(rows)} rows; is the file cut off?", line + len(rows))
    if len(rows) > MAX_BOARD_SIZE or len(rows[0]) > MAX_BOARD_SIZE:
        raise DataError(path, f"the board is larger than {MAX_BOARD_SIZE}x{MAX_BOARD_SIZE}.", line)
    for offset, row in enumerate(rows):
        hint = "; is the file cut off?" if offset == len(rows) - 1 else "."
        for character in row:
            if character not in SYMBOLS:
                known = " ".join(repr(s) for s in SYMBOLS)
                raise DataError(path, f"{character!r} is not part of a level; expected {known}.", line + offset)
        if len(row) != len(rows[0]):
            problem = f"this row has {len(row)} cells, but the first row of the board has {len(rows[0])}"
            raise DataError(path, problem + hint, line + offset)
        edge = row if offset in (0, len(rows) - 1) else row[0] + row[-1]
        if edge.strip("#"):
            raise DataError(path, "the edge of the board must be walls ('#')" + hint, line + offset)
    text = "\n".join(rows)
    players = text.count("@") + text.count("+")
    if players != 1:
        raise DataError(path, f"the board has {players} players ('@' or '+'), expected one.", line)
    boxes = text.count("$") + text.count("*")
    targets = text.count(".") + text.count("*") + text.count("+")
    if boxes != targets:
        raise DataError(path, f"the board has {boxes} boxes but {targets} targets; expected equal numbers.", line)
    if "$" not in text:
        raise DataError(path, "the board has no box off target; expected at least one.", line)
    return text.translate(_TO_STANDARD)


@lru_cache(maxsize=16)
def _load_levels(path: Path) -> dict[int, str]:
    try:
        text = path.read_bytes().decode("ascii")
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(path, "is not a level file; expected ASCII text.", line) from error
    return parse_levels(text, path)


def _read_at_offset(path: Path, index: int) -> str | None:
    """Read a level at its computed offset, or return None if the file does not have the published layout."""
    start, end = _standard_offset(index), _standard_offset(index + 1)
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            text = file.read(end - start).decode("ascii", "replace")
    except OSError:
        return None
    header, _, rest = text.partition("\n")
    if len(text) != end - start or header != f"; {index}" or not rest.endswith("#\n\n"):
        return None
    rows = rest[:-2].split("\n")
    if len(rows) != 10 or any(len(row) != 10 for row in rows):
        return None
    return _parse_board(rows, path, index * 12 + 2)


def _level_numbers(path: Path) -> Sequence[int]:
    """Return the level numbers of a file, in file order."""
    count = _standard_count(path.stat().st_size)
    # A small file that is numbered from 1 has the same size.
    is_standard = count is not None and all(_read_at_offset(path, number) for number in (0, count - 1))
    return range(count) if count is not None and is_standard else tuple(_load_levels(path))


class LevelFiles(Sequence[str]):
    """Sequence of the levels in a folder, named `<split>/<file>#<number>`, such as `medium/valid/000#17`.

    Args:
        folder: Folder whose subfolders, at any depth, are the splits.
        split: Subfolder ("medium/valid", or "medium" for all within it), or the last part of its name ("valid"
            for the validation split of every difficulty). None uses all subfolders.

    Raises:
        DataError: There is no level file, or a file that does not have the published layout is malformed.
        ConfigurationError: The split does not exist.
    """

    def __init__(self, folder: Path, split: str | None = None) -> None:
        self.folder = folder
        # Text files in the folder itself, such as LICENSE.txt, are not level files.
        paths = sorted(path for path in folder.rglob("*.txt") if path.parent != folder and path.is_file())
        splits = sorted({path.parent.relative_to(folder).as_posix() for path in paths})
        if not splits:
            raise DataError(folder, "contains no level files; expected files such as medium/valid/000.txt.")
        if split is not None:
            name = split.strip("/")
            chosen = [s for s in splits if f"{s}/".startswith(f"{name}/") or s.endswith(f"/{name}")]
            if not chosen:
                raise unknown_name(f"split of {folder}", split, splits)
            splits = chosen
        self.splits = tuple(splits)
        """Subfolders in use."""
        names = {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}
        self._numbers = {
            name: _level_numbers(path) for name, path in names.items() if name.rpartition("/")[0] in self.splits
        }
        """Level numbers of each file."""
        self._names = list(self._numbers)
        self._ends = list(accumulate(len(numbers) for numbers in self._numbers.values()))

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"task index {index} is outside 0 … {len(self) - 1}")
        index %= len(self)
        file = bisect_right(self._ends, index)
        name = self._names[file]
        return f"{name}#{self._numbers[name][index - self._ends[file]]}"  # a negative index, from the file's end

    def __iter__(self) -> Iterator[str]:
        for name, numbers in self._numbers.items():
            for number in numbers:
                yield f"{name}#{number}"

    def __contains__(self, task: object) -> bool:
        if not isinstance(task, str):
            return False
        name, _, number = task.rpartition("#")
        return parse_index(number) in self._numbers.get(name, ())

    def board(self, task: str) -> str:
        """Return the board of a task in the standard vocabulary. The task may belong to any split of the folder.

        Raises:
            DataError: The file is missing or malformed, or does not contain the level.
        """
        name, _, number = task.rpartition("#")
        path = self.folder / f"{name}.txt"
        index = int(number)
        board = _read_at_offset(path, index)
        if board is not None:
            return board
        levels = _load_levels(path)
        if index not in levels:
            raise DataError(path, f"does not contain level '; {index}'; it contains {len(levels)} levels.")
        return levels[index]
