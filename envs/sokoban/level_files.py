"""Boxoban level files (Guez et al., 2018): `<split>/<NNN>.txt`, opened by the thousand without being read.

A file holds levels of three parts: a line `; k`, the rows of the board, and an empty line. The published files
number their 1000 boards of 10x10 from 0, which makes the position of every level computable: such a file is
recognised by its size, and a level is read by one seek. A file of any other size is read and checked as a whole
when the folder is opened.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import overload

from ..errors import DataError, unknown_name
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
"""The common Sokoban level format (Boxoban uses all but `*` and `+`), and the symbols used here."""

_TO_STANDARD = str.maketrans(SYMBOLS)
_BODY = 10 * 11  # ten rows with their newlines
LARGEST = 30
"""The largest number of rows or columns accepted."""


def _standard_offset(index: int) -> int:
    """Where level `index` starts in a file laid out as published; also the size of a file of `index` levels."""
    digits = index + sum(max(0, index - int("1" + power * "0")) for power in range(1, len(str(index))))
    return index * (len("; \n") + _BODY + len("\n")) + digits


@lru_cache(maxsize=1024)  # published files are all of one size
def _standard_count(size: int) -> int | None:
    """How many levels a file of this size holds if it is laid out as published, or None if it cannot be."""
    count = size // (_BODY + len("; \n\n") + len(str(size)))  # no number has more digits than that: not too many
    while _standard_offset(count) < size:
        count += 1
    return count if count and _standard_offset(count) == size else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def parse_levels(text: str, path: str | Path) -> dict[int, str]:
    """All levels of a file, checked.

    Args:
        text: the file's content.
        path: its name, for error messages.

    Returns:
        From the number in each level's header to its board in the standard vocabulary, in the file's order.

    Raises:
        DataError: naming file and line: no header where one is due, a number given twice, a character that is
            not part of a level, rows of different lengths, a board that is cut off, open at the edge or too large,
            not exactly one player, unequal numbers of boxes and targets, or nothing to solve.
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
            raise DataError(path, f"level {number} occurs twice; number the levels of a file differently.", at + 1)
        first = at = at + 1
        while at < len(lines) and lines[at].strip():
            if lines[at].startswith(";"):
                break
            at += 1
        levels[int(number)] = _board(lines[first:at], path, first + 1)
    if not levels:
        raise DataError(path, "holds no level; expected '; 0' and a board.", 1)
    return levels


def _board(rows: list[str], path: str | Path, line: int) -> str:
    """One board of a file, checked and put into the standard vocabulary; `line` is that of its first row."""
    if len(rows) < 3:
        raise DataError(path, f"the board ends after {len(rows)} rows; is the file cut off?", line + len(rows))
    if len(rows) > LARGEST or len(rows[0]) > LARGEST:
        raise DataError(path, f"the board is larger than {LARGEST}x{LARGEST}.", line)
    for offset, row in enumerate(rows):
        hint = "; is the file cut off?" if offset == len(rows) - 1 else "."
        for character in row:
            if character not in SYMBOLS:
                known = " ".join(repr(s) for s in SYMBOLS)
                raise DataError(path, f"{character!r} is not part of a level; known: {known}.", line + offset)
        if len(row) != len(rows[0]):
            problem = f"this row has {len(row)} cells, the board's first has {len(rows[0])}"
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
        raise DataError(path, f"the board has {boxes} boxes but {targets} targets; expected as many.", line)
    if "$" not in text:
        raise DataError(path, "the board has no box off target: there is nothing to solve.", line)
    return text.translate(_TO_STANDARD)


@lru_cache(maxsize=16)
def _parsed(path: Path) -> dict[int, str]:
    try:
        text = path.read_bytes().decode("ascii")
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(path, "not a level file: expected plain ASCII text.", line) from error
    return parse_levels(text, path)


def _listing(path: Path) -> Sequence[int]:
    """The numbers of a file's levels, in its order."""
    count = _standard_count(path.stat().st_size)
    return range(count) if count is not None else tuple(_parsed(path))


class LevelFiles(Sequence[str]):
    """The levels of a folder by name, `<split>/<file>#<number>`, such as `medium/valid/000#17`.

    Args:
        folder: the folder whose subfolders are the splits; level files may lie at any depth.
        split: a subfolder ("medium/valid", or "medium" for all within it), or the last part of its name ("valid"
            for the validation split of every difficulty); None for everything.

    Raises:
        DataError: there is no level file, or one that does not follow the published layout is malformed.
        ConfigurationError: there is no such split.
    """

    def __init__(self, folder: Path, split: str | None = None) -> None:
        self.folder = folder
        # LICENSE.txt and the like lie beside the splits; levels lie in them.
        found = sorted(path for path in folder.rglob("*.txt") if path.parent != folder and path.is_file())
        splits = sorted({path.parent.relative_to(folder).as_posix() for path in found})
        if not splits:
            raise DataError(folder, "no level files; expected <split>/000.txt, such as medium/valid/000.txt.")
        if split is not None:
            wanted = split.strip("/")
            chosen = [s for s in splits if f"{s}/".startswith(f"{wanted}/") or s.endswith(f"/{wanted}")]
            if not chosen:
                raise unknown_name("split", split, splits)
            splits = chosen
        self.splits = tuple(splits)
        """The subfolders in use."""
        names = {path.relative_to(folder).with_suffix("").as_posix(): path for path in found}
        self._numbers = {
            name: _listing(path) for name, path in names.items() if name.rpartition("/")[0] in self.splits
        }
        """The numbers of the levels in each file."""
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
        return f"{name}#{self._numbers[name][index - self._ends[file]]}"  # counted from the file's end

    def __iter__(self) -> Iterator[str]:
        for name, numbers in self._numbers.items():
            for number in numbers:
                yield f"{name}#{number}"

    def __contains__(self, task: object) -> bool:
        if not isinstance(task, str):
            return False
        name, _, number = task.rpartition("#")
        return _is_number(number) and str(int(number)) == number and int(number) in self._numbers.get(name, ())

    def board(self, task: str) -> str:
        """The board of a task, of any split of the folder, in the standard vocabulary.

        Raises:
            DataError: the file is missing or malformed, or has no such level.
        """
        name, _, number = task.rpartition("#")
        path = self.folder / f"{name}.txt"
        index = int(number)
        board = self._seek(path, index)
        if board is not None:
            return board
        levels = _parsed(path)
        if index not in levels:
            raise DataError(path, f"has no level '; {index}'; it holds {len(levels)}.")
        return levels[index]

    @staticmethod
    def _seek(path: Path, index: int) -> str | None:
        """A level read by position, or None unless the file is laid out as published there."""
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
        return _board(rows, path, index * 12 + 2)
