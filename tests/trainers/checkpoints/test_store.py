"""The checkpoint store survives kills and full disks, and selects the checkpoints to keep. No model is needed."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from arboretum.envs.errors import DataError
from arboretum.trainers.checkpoints.store import CheckpointError, Checkpoints, Index, verify_checkpoint


def writer(update: int, size: int = 1000) -> Callable[[Path], None]:
    """Return a function that writes a checkpoint: a nested file of random bytes, and their digest."""

    def write(folder: Path) -> None:
        data = random.Random(update).randbytes(size)
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_bytes(data)
        (folder / "digest").write_text(hashlib.sha256(data).hexdigest())

    return write


def is_complete(folder: Path) -> bool:
    data = (folder / "model" / "weights").read_bytes()
    return (folder / "digest").read_text() == hashlib.sha256(data).hexdigest()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_last_and_best_checkpoints_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.last is None and checkpoints.best is None
    for update, score in ((1, 0.2), (2, 0.9), (3, None), (4, 0.9), (5, 0.1)):
        checkpoints.save(update, writer(update), score)
    assert names(tmp_path) == ["index.json", "update-000002", "update-000005"]
    reopened = Checkpoints(tmp_path)
    assert reopened.index == checkpoints.index and reopened.index.score == 0.9
    assert reopened.best is not None and is_complete(reopened.best)
    assert reopened.last is not None and is_complete(reopened.last)


def test_several_last_checkpoints_are_kept_beside_the_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for update, score in ((1, 0.9), (2, 0.2), (3, None), (4, 0.5), (5, 0.1)):
        checkpoints.save(update, writer(update), score)
    assert names(tmp_path) == ["index.json", *(f"update-00000{update}" for update in (1, 3, 4, 5))]
    reopened = Checkpoints(tmp_path, keep=2)  # a resumed run may keep fewer
    assert reopened.index == checkpoints.index and reopened.index.older == (3, 4)
    reopened.save(6, writer(6))
    assert names(tmp_path) == ["index.json", *(f"update-00000{update}" for update in (1, 5, 6))]
    (tmp_path / "index.json").unlink()
    assert Checkpoints(tmp_path, keep=2).index == Index(last=6, older=(5,))


def test_last_checkpoint_is_replaced_when_its_score_becomes_known(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for update in (1, 2):
        checkpoints.save(update, writer(update))
    checkpoints.save(2, writer(2), 0.5)
    assert Checkpoints(tmp_path).index == Index(last=2, older=(1,), best=2, score=0.5)
    assert checkpoints.best is not None and is_complete(checkpoints.best)


@pytest.mark.parametrize("keep", [1, 2, 4, 5, 8])
def test_number_of_kept_checkpoints_grows_to_the_setting(keep: int, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=keep)
    for update in range(1, 10):
        checkpoints.save(update, writer(update, 10))
        kept = range(max(update - keep, 0) + 1, update + 1)
        assert names(tmp_path) == ["index.json", *(f"update-{number:06d}" for number in kept)]


def test_index_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(1, writer(1))
    (tmp_path / "index.json").write_text('{"last": 1, "best": null, "score": null}')
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(2, writer(2))
    assert checkpoints.index.older == (1,) and is_complete(checkpoints.path(1))


def test_checkpoint_of_the_same_update_is_not_written_twice(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, writer(3))
    saved = checkpoints.save(3, lambda folder: pytest.fail("written twice"))
    assert is_complete(saved)


# ---------------------------------------------------------------------- kills, full disks and failing writers

ENDLESS_SAVER = """
import sys, random, hashlib
from pathlib import Path
from arboretum.trainers.checkpoints.store import Checkpoints
checkpoints = Checkpoints(Path(sys.argv[1]), int(sys.argv[2]))
update = (checkpoints.index.last or 0)
while True:
    update += 1
    def write(folder):
        data = random.Random(update).randbytes(300_000)
        (folder / "model").mkdir()
        with (folder / "model" / "weights").open("wb") as file:
            for start in range(0, len(data), 10_000):
                file.write(data[start : start + 10_000])
                file.flush()
        (folder / "digest").write_text(hashlib.sha256(data).hexdigest())
    checkpoints.save(update, write, random.Random(update).random())
    print(update, flush=True)
"""


@pytest.mark.parametrize("keep", [1, 3])
def test_kill_at_a_random_moment_leaves_complete_checkpoints(keep: int, tmp_path: Path) -> None:
    rng = random.Random(7)
    saved = 0
    for _ in range(8):
        child = subprocess.Popen(
            [sys.executable, "-c", ENDLESS_SAVER, str(tmp_path), str(keep)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        saved = int(child.stdout.readline())  # At least one more each time.
        time.sleep(rng.uniform(0, 0.05))
        child.kill()
        rest = child.stdout.read().split()
        child.stdout.close()
        child.wait()
        saved = max([saved, *(int(line) for line in rest)])
        checkpoints = Checkpoints(tmp_path)
        # The next checkpoint may have been completed before the kill, but not reported.
        assert checkpoints.index.last in (saved, saved + 1)
        assert checkpoints.last is not None and is_complete(checkpoints.last)
        assert checkpoints.best is not None and is_complete(checkpoints.best)
        assert len(checkpoints.index.older) == min(keep, checkpoints.index.last or 0) - 1
        assert all(is_complete(checkpoints.path(update)) for update in checkpoints.index.named)


def test_full_disk_leaves_the_last_checkpoint_loadable(tmp_path: Path) -> None:
    """The operating system itself refuses to let a file grow beyond a limit, in the middle of a write."""
    pytest.importorskip("resource", reason="limits on files exist on POSIX systems only")
    code = """
import sys, resource
from pathlib import Path
from arboretum.trainers.checkpoints.store import Checkpoints, CheckpointError
checkpoints = Checkpoints(Path(sys.argv[1]))
writer = lambda size: lambda folder: (folder / "weights").write_bytes(b"x" * size)
checkpoints.save(1, writer(1000), 0.5)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    checkpoints.save(2, writer(1_000_000), 0.9)
except CheckpointError as error:
    print(error)
checkpoints.save(3, writer(2000), 0.1)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "could not be written (File too large); update-000001 is unchanged" in done.stdout
    assert names(tmp_path) == ["index.json", "update-000001", "update-000003"]
    index = Checkpoints(tmp_path).index
    assert (index.last, index.best, index.score) == (3, 1, 0.5)


def test_any_error_of_the_writer_is_reported_and_cleaned_up(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)

    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise RuntimeError("no room on the device\nand more")

    with pytest.raises(CheckpointError, match=r"no room on the device\); there is no earlier one"):
        checkpoints.save(1, fail)
    assert list(tmp_path.iterdir()) == [] and checkpoints.last is None


# ---------------------------------------------------------------------- the index


def test_damaged_index_is_reported(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(1, writer(1))
    index = tmp_path / "index.json"
    intact = index.read_text()
    index.write_text(intact[:-5])
    with pytest.raises(DataError, match="is not an index of checkpoints"):
        Checkpoints(tmp_path)
    index.write_text(intact.replace("1", "2"))
    with pytest.raises(DataError, match=r"update-000002, which does not exist; restore it, or delete"):
        Checkpoints(tmp_path)


@pytest.mark.parametrize(
    "index",
    ['{"last": "1"}', '{"older": 3}', '{"older": ["x"]}', '{"last": 1.5}', '{"score": "high"}', "[1]", "3"],
)
def test_index_of_the_wrong_shape_is_reported(tmp_path: Path, index: str) -> None:
    Checkpoints(tmp_path).save(1, writer(1))
    (tmp_path / "index.json").write_text(index)
    with pytest.raises(DataError, match="is not an index of checkpoints"):
        Checkpoints(tmp_path)


def test_newest_checkpoint_is_the_last_one_without_an_index(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, writer(3), 0.9)
    checkpoints.save(20, writer(20), 0.5)
    (tmp_path / "index.json").unlink()
    (tmp_path / "update-000030.part").mkdir()  # An interrupted save leaves such a folder.
    reopened = Checkpoints(tmp_path)
    assert reopened.index == Index(last=20)
    reopened.save(40, writer(40))
    assert [path.name for path in sorted(tmp_path.glob("update-*"))] == ["update-000040"]


def test_best_checkpoint_is_kept_without_an_index(tmp_path: Path) -> None:
    """The metrics of the run have the scores; deleting the index is what the message of a damaged one advises."""
    folder = tmp_path / "checkpoints"
    checkpoints = Checkpoints(folder)
    scores = {40: 0.9, 50: 0.6}
    for update, score in scores.items():
        checkpoints.save(update, writer(update), score)
    lines = [json.dumps({"update": update, "validation/success": score}) for update, score in scores.items()]
    (tmp_path / "metrics.jsonl").write_text("\n".join([lines[0], "damaged", '{"update": 45}', lines[1]]))
    (folder / "index.json").unlink()
    reopened = Checkpoints(folder)
    assert reopened.index == Index(last=50, best=40, score=0.9)
    reopened.save(60, writer(60), 0.7)
    assert names(folder) == ["index.json", "update-000040", "update-000060"]


def test_score_of_a_policy_that_was_rolled_back_is_not_that_of_its_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    checkpoints = Checkpoints(folder, keep=2)
    checkpoints.save(10, writer(10), 0.5)
    checkpoints.save(20, writer(10), None, sound=False)  # It has the weights of update 10.
    lines = [
        {"update": 10, "validation/success": 0.5},
        {"update": 20, "validation/success": 0.6, "rolled_back_to": 10},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "index.json").unlink()
    index = Checkpoints(folder, keep=2).index
    assert (index.last, index.best, index.score) == (20, 10, 0.5)


# ---------------------------------------------------------------------- the checkpoint to roll back to


def test_checkpoint_is_good_after_a_sound_probation(tmp_path: Path) -> None:
    """The policy had collapsed already when update 30 was saved, which shows at update 40."""
    checkpoints = Checkpoints(tmp_path)

    def save(update: int, sound: bool, score: float | None = None, probation: int = 10) -> int | None:
        checkpoints.save(update, lambda folder: (folder / "x").touch(), score, sound=sound, probation=probation)
        saved = {path.name for path in tmp_path.glob("update-*")}
        assert saved == {f"update-{n:06d}" for n in checkpoints.index.named}
        return checkpoints.index.good

    assert save(0, True, probation=0) == 0
    assert save(5, True) == 0
    assert save(10, True) == 0
    assert save(20, True) == 5
    assert save(30, True) == 20
    assert save(40, False) == 20
    assert save(50, True) == 20 and save(60, True) == 50
    assert Checkpoints(tmp_path).index == checkpoints.index


def test_good_checkpoint_is_the_sound_one_with_the_highest_score(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    good = []
    for update, score in ((0, None), (10, 0.2), (20, 0.5), (30, 0.4), (40, 0.5), (50, 0.1)):
        checkpoints.save(
            update, lambda folder: (folder / "x").touch(), score, sound=True, probation=10 if update else 0
        )
        good.append(checkpoints.index.good)
    assert good == [0, 0, 10, 20, 20, 40]


def test_advice_for_a_damaged_checkpoint_names_the_other_one_or_says_that_there_is_none(tmp_path: Path) -> None:
    for update, advice in ((1, "There is no other checkpoint"), (2, "resumed from update-000001.")):
        damaged = Checkpoints(tmp_path, keep=2).save(update, writer(update))
        digest = (damaged / "digest").read_bytes()
        (damaged / "digest").write_bytes(b"0")
        with pytest.raises(DataError, match=advice):
            verify_checkpoint(damaged)
        (damaged / "digest").write_bytes(digest)
