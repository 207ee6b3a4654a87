"""Checkpoints of a run, each written as a whole or not at all.

    checkpoints/
        update-000040/      one folder per checkpoint, with `SHA256SUMS`
        update-000050/
        index.json          the last checkpoints, the best one, and the one to roll back to

A checkpoint is written to a folder of another name, flushed to the disk and renamed; then the index is replaced;
then checkpoints that the index no longer names are deleted. A process killed between two of these steps leaves an
index that names complete checkpoints. If the index is lost, the newest folder is the last checkpoint, and the
metrics of the run say which one is the best.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ...envs.checksums import verify_checksums, write_checksums
from ...envs.errors import DataError
from ...envs.files import replace_folder, write_atomic
from ..monitor import ROLLED_BACK

METRICS_FILE = "metrics.jsonl"
"""File of a run's metrics, beside the folder of its checkpoints."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be written; earlier checkpoints are unchanged."""


@dataclass(frozen=True)
class Index:
    """Checkpoints that are kept, by the number of updates before them.

    Attributes:
        last: Newest checkpoint; None before the first.
        older: Checkpoints before the last that are kept beside it, oldest first.
        best: Checkpoint with the highest score; None if none has a score.
        score: Score of `best`.
        good: Checkpoint to roll back to if the policy collapses; None if none has passed its probation.
        good_score: Score of `good`; None if it has none.
        candidate: Checkpoint in probation.
        candidate_score: Score of `candidate`; None if it has none.
    """

    last: int | None = None
    older: tuple[int, ...] = ()
    best: int | None = None
    score: float | None = None
    good: int | None = None
    good_score: float | None = None
    candidate: int | None = None
    candidate_score: float | None = None

    @property
    def named(self) -> set[int]:
        """Checkpoints to keep."""
        return {n for n in (self.last, *self.older, self.best, self.good, self.candidate) if n is not None}

    def __post_init__(self) -> None:
        if not all(isinstance(update, int) for update in self.older):
            raise TypeError(f"older is {self.older!r}")
        for name, value in vars(self).items():
            if (
                name != "older"
                and value is not None
                and not isinstance(value, (int, float) if name.endswith("score") else int)
            ):
                raise TypeError(f"{name} is {value!r}")

    def with_verdict(self, update: int, score: float | None, sound: bool, probation: int) -> Index:
        """Return the index after a new checkpoint has been judged; see `Checkpoints.save`."""
        index = self if sound else replace(self, candidate=None, candidate_score=None)
        if not sound:
            return index
        if probation == 0:
            return replace(index, good=update, good_score=score)
        if index.candidate is not None and update - index.candidate >= probation:
            passed = index.candidate_score
            if index.good_score is None or (passed is not None and passed >= index.good_score):
                index = replace(index, good=index.candidate, good_score=passed)
            index = replace(index, candidate=None)
        if index.candidate is None:
            index = replace(index, candidate=update, candidate_score=score)
        return index


class Checkpoints:
    """Checkpoints of a run: the last ones, the best, and the one to roll back to are kept.

    Args:
        folder: Folder of the checkpoints; created with the first one.
        keep: Number of the last checkpoints to keep, at least 1.

    Raises:
        DataError: The index cannot be read.
    """

    def __init__(self, folder: Path, keep: int = 1) -> None:
        self.folder = folder
        self.keep = keep
        self.index = Index()
        path = folder / "index.json"
        advice = "restore it, or delete index.json: then the newest checkpoint in the folder is the last one."
        if path.exists():
            try:
                stored = json.loads(path.read_text(encoding="utf-8"))
                self.index = Index(**{**stored, "older": tuple(stored.get("older", ()))})
            except (ValueError, TypeError, AttributeError) as error:
                raise DataError(path, f"is not an index of checkpoints ({error}); {advice}") from None
        else:
            names = [path.name.removeprefix("update-") for path in folder.glob("update-*")]
            self.index = self._rebuilt_index(sorted(int(name) for name in names if name.isdigit()))
        for update in self.index.named:
            if not self.path(update).is_dir():
                raise DataError(path, f"names {self.path(update).name}, which does not exist; {advice}")

    def _rebuilt_index(self, updates: Sequence[int]) -> Index:
        """Return the index of checkpoints without one: the last ones, and the best by the run's metrics."""
        if not updates:
            return Index()
        scores: dict[int, float] = {}
        path = self.folder.parent / METRICS_FILE
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            with suppress(ValueError, TypeError, KeyError):  # A line can be damaged.
                record = json.loads(line)
                # The policy that a rollback replaced was validated, and is in no checkpoint.
                if record["update"] in updates and ROLLED_BACK not in record:
                    scores[record["update"]] = float(record["validation/success"])
        best = max(scores, key=lambda update: (scores[update], -update), default=None)
        kept = updates[-self.keep :]
        return Index(kept[-1], tuple(kept[:-1]), best, None if best is None else scores[best])

    @property
    def last(self) -> Path | None:
        """Newest checkpoint."""
        return None if self.index.last is None else self.path(self.index.last)

    @property
    def best(self) -> Path | None:
        """Checkpoint with the highest score; of equal ones the earliest."""
        return None if self.index.best is None else self.path(self.index.best)

    @property
    def sound(self) -> Path | None:
        """Checkpoint to roll back to, if the last one shows signs of collapse; None otherwise."""
        collapsed = self.index.good is not None and self.index.candidate is None
        return self.path(self.index.good) if collapsed else None

    def path(self, update: int | None) -> Path:
        """Return the folder of a checkpoint."""
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
        """Write a checkpoint, unless the last or best one is of this update; a first score replaces the last one.

        Args:
            update: Updates before it.
            write: Fills an empty folder.
            score: Score of the policy; the checkpoint with the highest one is kept beside the last.
            sound: False if the policy shows signs of collapse; None if nothing monitors it. Collapse shows late,
                so a checkpoint becomes good, one to roll back to, once the run is still sound `probation` updates
                after it. Of the good ones, the one with the highest score is kept (of equal ones the newest), or
                the newest if none has a score.
            probation: Updates until a checkpoint is good; 0 makes it good at once.

        Raises:
            CheckpointError: The checkpoint could not be written.
        """
        final = self.path(update)
        if final == self.best or (final == self.last and score is None):
            return final
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._delete_unnamed()
            with replace_folder(final) as part:
                write(part)
                write_checksums(part)
            before = [n for n in (*self.index.older, self.index.last) if n is not None and n != update]
            index = replace(self.index, last=update, older=tuple(before[max(len(before) - self.keep + 1, 0) :]))
            if score is not None and (index.score is None or score > index.score):
                index = replace(index, best=update, score=score)
            if sound is not None:
                index = index.with_verdict(update, score, sound, probation)
            write_atomic(self.folder / "index.json", json.dumps(asdict(index)))
        except Exception as error:  # of the disk, or of any library that writes
            reason = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0]
            kept = "there is no earlier one" if self.last is None else f"{self.last.name} is unchanged"
            raise CheckpointError(
                f"{final}: the checkpoint could not be written ({reason}); {kept}. Free some space, or resume "
                "with the run's folder on another disk."
            ) from error
        self.index = index
        self._delete_unnamed()
        return final

    def _delete_unnamed(self) -> None:
        """Delete checkpoints that the index does not name."""
        named = {self.path(update).name for update in self.index.named}
        for path in self.folder.glob("update-*"):
            if path.name not in named:
                shutil.rmtree(path, ignore_errors=True)


def verify_checkpoint(folder: Path) -> None:
    """Verify the files of a checkpoint; see `envs.checksums`.

    Raises:
        DataError: A file is missing or damaged.
    """
    others = sorted(path.name for path in folder.parent.glob("update-*") if path.name != folder.name)
    verify_checksums(
        folder,
        f"restore it from a copy; or delete {folder} and index.json beside it: then the run is resumed from "
        f"{others[-1]}."
        if others
        else f"restore it from a copy. There is no other checkpoint; if you delete {folder} and index.json beside "
        "it, --resume starts the run again from its beginning.",
    )
