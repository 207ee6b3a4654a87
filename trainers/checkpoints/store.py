"""Checkpoints that are whole or not there at all.

    checkpoints/
        update-000040/      one folder each; what is in it is up to who writes it
        update-000050/
        index.json          which of them is the last, which the best, which the one to go back to

A checkpoint is written into a folder of another name, flushed to the disk, and renamed; then the index is
replaced; then what the index no longer names is deleted. Whatever stops the process between two of these steps,
the index names whole checkpoints. Where it is lost, the newest folder is the last checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ...envs.errors import DataError

_PART = ".part"


class CheckpointError(RuntimeError):
    """A checkpoint could not be written; the ones before it are as they were."""


@dataclass(frozen=True)
class Index:
    """Which checkpoints there are, by the number of updates before them.

    Attributes:
        last: the newest; None before the first.
        best: the one with the highest score; None where none was scored.
        score: its score.
        good: the one to go back to if the policy collapses; None where none has proved to be good.
        good_score: its score; None where it was not scored.
        candidate: one that has still to prove it, and its score.
    """

    last: int | None = None
    best: int | None = None
    score: float | None = None
    good: int | None = None
    good_score: float | None = None
    candidate: int | None = None
    candidate_score: float | None = None

    @property
    def named(self) -> set[int]:
        """The checkpoints that are kept."""
        return {n for n in (self.last, self.best, self.good, self.candidate) if n is not None}

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not isinstance(value, (int, float) if name.endswith("score") else int):
                raise TypeError(f"{name} is {value!r}")

    def judged(self, update: int, score: float | None, sound: bool, probation: int) -> Index:
        """With what a new checkpoint tells of which is good; see `Checkpoints.save`."""
        index = self if sound else replace(self, candidate=None, candidate_score=None)
        if not sound:
            return index
        if probation == 0:
            return replace(index, good=update, good_score=score)
        if index.candidate is not None and update - index.candidate >= probation:
            proven = index.candidate_score
            if index.good_score is None or (proven is not None and proven >= index.good_score):
                index = replace(index, good=index.candidate, good_score=proven)
            index = replace(index, candidate=None)
        if index.candidate is None:
            index = replace(index, candidate=update, candidate_score=score)
        return index


class Checkpoints:
    """The checkpoints of a run: the last one, the best one and the one to go back to are kept.

    Args:
        folder: where they lie; made when the first is written.

    Raises:
        DataError: the index cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = Index()
        path = folder / "index.json"
        if path.exists():
            try:
                self.index = Index(**json.loads(path.read_text(encoding="utf-8")))
            except (ValueError, TypeError) as error:
                raise DataError(
                    path,
                    f"is no index of checkpoints ({error}); restore it, or delete it: then the newest checkpoint "
                    "in the folder is the last one.",
                ) from None
        else:
            numbers = [path.name.removeprefix("update-") for path in folder.glob("update-*")]
            self.index = Index(last=max((int(number) for number in numbers if number.isdigit()), default=None))
        for update in self.index.named:
            if not self.path(update).is_dir():
                raise DataError(path, f"names {self.path(update).name}, which is not there.")

    @property
    def last(self) -> Path | None:
        """The newest checkpoint."""
        return None if self.index.last is None else self.path(self.index.last)

    @property
    def best(self) -> Path | None:
        """The checkpoint with the highest score; of equal ones the earliest."""
        return None if self.index.best is None else self.path(self.index.best)

    @property
    def sound(self) -> Path | None:
        """The one to go back to, where the last shows signs of collapse."""
        collapsed = self.index.good is not None and self.index.candidate is None
        return self.path(self.index.good) if collapsed else None

    def path(self, update: int | None) -> Path:
        return self.folder / f"update-{update:06d}"

    def save(
        self,
        update: int,
        write: Callable[[Path], None],
        score: float | None = None,
        *,
        sound: bool | None = None,
        probation: int = 0,
    ) -> Path:
        """Write a checkpoint, unless there is one of this update.

        Args:
            update: updates before it.
            write: fills an empty folder.
            score: how good the policy is; the highest is kept beside the last.
            sound: whether the policy shows no sign of collapse; None where nobody asks. A collapse shows late, so
                a checkpoint is good, one to go back to, when the run is still sound some updates after it. Of
                those that are, the one with the highest score is kept too (of equal ones the newest), or the
                newest where none was scored.
            probation: how many updates; 0 where the policy is good beyond doubt.

        Raises:
            CheckpointError: it could not be written, and why.
        """
        final = self.path(update)
        if final in (self.last, self.best):
            return final
        part = final.with_name(final.name + _PART)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clean()
            part.mkdir()
            write(part)
            _flush(part)
            if final.exists():
                shutil.rmtree(final)  # of a run that was killed before the index named it
            part.rename(final)
            _sync(self.folder)
            index = replace(self.index, last=update)
            if score is not None and (index.score is None or score > index.score):
                index = replace(index, best=update, score=score)
            if sound is not None:
                index = index.judged(update, score, sound, probation)
            self._write_index(index)
        except Exception as error:  # of the disk, or of whichever library writes
            shutil.rmtree(part, ignore_errors=True)
            reason = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0]
            kept = "there is no earlier one" if self.last is None else f"{self.last.name} is as it was"
            raise CheckpointError(
                f"{final}: the checkpoint could not be written ({reason}); {kept}. Free some space, or resume "
                "with the run's folder on another disk."
            ) from error
        self.index = index
        self._clean()
        return final

    def _write_index(self, index: Index) -> None:
        part = self.folder / ("index.json" + _PART)
        with part.open("w", encoding="utf-8") as file:
            json.dump(asdict(index), file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.folder / "index.json")
        _sync(self.folder)

    def _clean(self) -> None:
        """Delete what the index does not name."""
        named = {self.path(update).name for update in self.index.named}
        for path in self.folder.glob("update-*"):
            if path.name not in named:
                shutil.rmtree(path, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Force everything in a folder to the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        else:
            _sync(path)
    _sync(folder)


def _sync(folder: Path) -> None:
    """Force a folder's list of names to the disk, where folders can be opened."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # Windows
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
