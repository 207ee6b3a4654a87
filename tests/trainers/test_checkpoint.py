"""Checkpoints survive kills and full disks. No model is needed for that."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from arboretum.envs.errors import DataError
from arboretum.trainers.checkpoints.store import CheckpointError, Checkpoints, Index


def write(update: int, size: int = 1000) -> object:
    """A writer of a checkpoint with a nested file, and a digest that tells whether it is whole."""

    def fill(folder: Path) -> None:
        data = random.Random(update).randbytes(size)
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_bytes(data)
        (folder / "digest").write_text(hashlib.sha256(data).hexdigest())

    return fill


def is_whole(folder: Path) -> bool:
    data = (folder / "model" / "weights").read_bytes()
    return (folder / "digest").read_text() == hashlib.sha256(data).hexdigest()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.last is None and checkpoints.best is None
    for update, score in ((1, 0.2), (2, 0.9), (3, None), (4, 0.9), (5, 0.1)):
        checkpoints.save(update, write(update), score)  # type: ignore[arg-type]
    assert names(tmp_path) == ["index.json", "update-000002", "update-000005"]
    again = Checkpoints(tmp_path)
    assert again.index == checkpoints.index and again.index.score == 0.9
    assert again.best is not None and again.last is not None and is_whole(again.best) and is_whole(again.last)


def test_an_update_that_was_kept_is_not_written_twice(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, write(3))  # type: ignore[arg-type]
    kept = checkpoints.save(3, lambda folder: pytest.fail("written twice"))
    assert is_whole(kept)


CHILD = """
import sys, random, hashlib
from pathlib import Path
from arboretum.trainers.checkpoints.store import Checkpoints
checkpoints = Checkpoints(Path(sys.argv[1]))
update = (checkpoints.index.last or 0)
while True:
    update += 1
    def fill(folder):
        data = random.Random(update).randbytes(300_000)
        (folder / "model").mkdir()
        with (folder / "model" / "weights").open("wb") as file:
            for start in range(0, len(data), 10_000):
                file.write(data[start : start + 10_000])
                file.flush()
        (folder / "digest").write_text(hashlib.sha256(data).hexdigest())
    checkpoints.save(update, fill, random.Random(update).random())
    print(update, flush=True)
"""


def test_a_kill_at_any_moment_leaves_the_checkpoints_whole(tmp_path: Path) -> None:
    luck = random.Random(7)
    done = 0
    for _ in range(8):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        done = int(child.stdout.readline())  # at least one more each time
        time.sleep(luck.uniform(0, 0.05))
        child.kill()
        rest = child.stdout.read().split()
        child.stdout.close()
        child.wait()
        done = max([done, *(int(line) for line in rest)])
        checkpoints = Checkpoints(tmp_path)
        # What was said to be kept is kept; the one under way may be too.
        assert checkpoints.index.last in (done, done + 1)
        assert checkpoints.last is not None and is_whole(checkpoints.last)
        assert checkpoints.best is not None and is_whole(checkpoints.best)


def test_a_full_disk_leaves_the_last_checkpoint_loadable(tmp_path: Path) -> None:
    """The real thing: the system refuses to let files grow beyond a limit, amid a write."""
    code = """
import sys, resource
from pathlib import Path
from arboretum.trainers.checkpoints.store import Checkpoints, CheckpointError
checkpoints = Checkpoints(Path(sys.argv[1]))
fill = lambda size: lambda folder: (folder / "weights").write_bytes(b"x" * size)
checkpoints.save(1, fill(1000), 0.5)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    checkpoints.save(2, fill(1_000_000), 0.9)
except CheckpointError as error:
    print(error)
checkpoints.save(3, fill(2000), 0.1)
"""
    pytest.importorskip("resource", reason="limits on files exist on POSIX systems only")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "could not be written (File too large); update-000001 is unchanged" in done.stdout
    assert names(tmp_path) == ["index.json", "update-000001", "update-000003"]
    index = Checkpoints(tmp_path).index
    assert (index.last, index.best, index.score) == (3, 1, 0.5)


def test_whatever_the_writer_raises_is_said_and_cleaned_up(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)

    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise RuntimeError("no room on the device\nand more")

    with pytest.raises(CheckpointError, match=r"no room on the device\); there is no earlier one"):
        checkpoints.save(1, fail)
    assert list(tmp_path.iterdir()) == [] and checkpoints.last is None


def test_a_damaged_index_is_said_not_guessed_around(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(1, write(1))  # type: ignore[arg-type]
    index = tmp_path / "index.json"
    whole = index.read_text()
    index.write_text(whole[:-5])
    with pytest.raises(DataError, match="is not an index of checkpoints"):
        Checkpoints(tmp_path)
    index.write_text(whole.replace("1", "2"))
    with pytest.raises(DataError, match="update-000002, which does not exist"):
        Checkpoints(tmp_path)


@pytest.mark.parametrize("index", ['{"last": "1"}', '{"last": 1.5}', '{"score": "high"}', "[1]", "3"])
def test_an_index_of_something_else_is_said(tmp_path: Path, index: str) -> None:
    Checkpoints(tmp_path).save(1, write(1))  # type: ignore[arg-type]
    (tmp_path / "index.json").write_text(index)
    with pytest.raises(DataError, match="is not an index of checkpoints"):
        Checkpoints(tmp_path)


def test_without_an_index_the_newest_checkpoint_is_the_last(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, write(3), 0.9)  # type: ignore[arg-type]
    checkpoints.save(20, write(20), 0.5)  # type: ignore[arg-type]
    (tmp_path / "index.json").unlink()
    (tmp_path / "update-000030.part").mkdir()  # of a save that was cut off
    again = Checkpoints(tmp_path)
    assert again.index == Index(last=20)
    again.save(40, write(40))  # type: ignore[arg-type]
    assert [path.name for path in sorted(tmp_path.glob("update-*"))] == ["update-000040"]


def test_a_checkpoint_is_good_once_it_has_stayed_sound(tmp_path: Path) -> None:
    """Update 30 was in the trap already when it was written, which shows at 40."""
    checkpoints = Checkpoints(tmp_path)

    def save(update: int, sound: bool, score: float | None = None, probation: int = 10) -> int | None:
        checkpoints.save(update, lambda folder: (folder / "x").touch(), score, sound=sound, probation=probation)
        there = {path.name for path in tmp_path.glob("update-*")}
        assert there == {f"update-{n:06d}" for n in checkpoints.index.named}
        return checkpoints.index.good

    assert save(0, True, probation=0) == 0
    assert save(5, True) == 0
    assert save(10, True) == 0
    assert save(20, True) == 5
    assert save(30, True) == 20
    assert save(40, False) == 20
    assert save(50, True) == 20 and save(60, True) == 50
    assert Checkpoints(tmp_path).index == checkpoints.index


def test_of_sound_checkpoints_the_one_with_the_highest_score_is_the_good_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    found = []
    for update, score in ((0, None), (10, 0.2), (20, 0.5), (30, 0.4), (40, 0.5), (50, 0.1)):
        checkpoints.save(
            update, lambda folder: (folder / "x").touch(), score, sound=True, probation=10 if update else 0
        )
        found.append(checkpoints.index.good)
    assert found == [0, 0, 10, 20, 20, 40]
