"""Atomic writes under failures, concurrency and SIGKILL, and JSON lines with damaged content."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from arboretum.envs import DataError
from arboretum.envs.files import (
    PART,
    open_cached,
    read_jsonl,
    replace_folder,
    shown_path,
    shown_paths,
    started_here,
    write_atomic,
)

needs_sigkill = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def kill_after_first_writes(code: str, folder: Path, seconds: float) -> None:
    """Run a program that writes in an endless loop, and kill it `seconds` after it prints a line."""
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(seconds)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL


# ---------------------------------------------------------------------- write_atomic


def test_write_atomic_creates_and_replaces_text_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_atomic(path, "naïve √\n")
    assert path.read_bytes() == "naïve √\n".encode()
    write_atomic(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert names(tmp_path) == ["file.txt"]


def test_write_atomic_into_a_missing_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "missing" / "file.txt", "new")
    assert names(tmp_path) == []


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failed_write_atomic_keeps_the_old_content_and_leaves_no_part(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "file.txt"
    write_atomic(path, "old")
    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(OSError, match="No space left"):
            write_atomic(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file.txt"]


def test_concurrent_reader_never_sees_a_mixture(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    contents = {"a" * 300_000, "b" * 200_000}
    write_atomic(path, "a" * 300_000)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for content in contents:
                write_atomic(path, content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = [path.read_text() for _ in range(200)]
    finally:
        stop.set()
        writer.join()
    assert set(seen) <= contents


WRITE_FILES = """
import sys
from pathlib import Path
from arboretum.envs.files import write_atomic

path = Path(sys.argv[1]) / "file.txt"
write_atomic(path, "0" * 2_000_000)
print("ready", flush=True)
while True:
    for digit in "0123456789":
        write_atomic(path, digit * 2_000_000)
"""


@needs_sigkill
@pytest.mark.parametrize("seconds", [0.0, 0.03])
def test_kill_during_write_atomic_leaves_complete_content(seconds: float, tmp_path: Path) -> None:
    kill_after_first_writes(WRITE_FILES, tmp_path, seconds)
    content = (tmp_path / "file.txt").read_text()
    assert len(content) == 2_000_000 and len(set(content)) == 1
    leftovers = [name for name in names(tmp_path) if name != "file.txt"]
    assert len(leftovers) <= 1 and all(name.endswith(PART) for name in leftovers)
    write_atomic(tmp_path / "file.txt", "after")
    assert (tmp_path / "file.txt").read_text() == "after"


# ---------------------------------------------------------------------- replace_folder


def fill(folder: Path, content: str) -> None:
    (folder / "deep").mkdir()
    (folder / "one.txt").write_text(content)
    (folder / "deep" / "two.txt").write_text(content)


def test_replace_folder_creates_the_folder_and_its_parents(tmp_path: Path) -> None:
    target = tmp_path / "parent" / "target"
    with replace_folder(target) as folder:
        assert folder.is_dir() and folder != target and not target.exists()
        fill(folder, "new")
    assert (target / "deep" / "two.txt").read_text() == "new"
    assert names(target.parent) == ["target"]


def test_replace_folder_drops_the_old_files(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "old.txt").write_text("old")
    with replace_folder(target) as folder:
        assert names(folder) == []
        fill(folder, "new")
        assert names(target) == ["old.txt"]
    assert names(target) == ["deep", "one.txt"]
    assert names(tmp_path) == ["target"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no permissions of groups")
def test_files_of_a_new_folder_are_as_readable_as_the_umask_says(tmp_path: Path) -> None:
    for umask, expected in ((0o022, 0o644), (0o027, 0o640), (0o077, 0o600)):
        before = os.umask(umask)
        try:
            with replace_folder(tmp_path / "target") as folder:
                fill(folder, "new")
                (folder / "deep" / "two.txt").chmod(0o600)
                (folder / "one.txt").chmod(0o700)
        finally:
            os.umask(before)
        modes = [stat.S_IMODE((tmp_path / "target" / name).stat().st_mode) for name in ("deep/two.txt", "one.txt")]
        assert modes == [expected, expected | 0o100]  # An owner's permission to execute stays.


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("error", [ValueError("failed"), KeyboardInterrupt()], ids=["exception", "interrupt"])
def test_failure_inside_the_block_leaves_the_folder_unchanged(
    error: BaseException, exists: bool, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    if exists:
        target.mkdir()
        (target / "old.txt").write_text("old")
    with pytest.raises(type(error)), replace_folder(target) as folder:
        fill(folder, "new")
        raise error
    assert names(tmp_path) == (["target"] if exists else [])
    if exists:
        assert (target / "old.txt").read_text() == "old"


def test_replace_folder_without_overwrite_keeps_an_existing_folder(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with replace_folder(target, overwrite=False) as folder:
        fill(folder, "first")
    with replace_folder(target, overwrite=False) as folder:
        fill(folder, "second")
    assert (target / "one.txt").read_text() == "first"
    assert names(tmp_path) == ["target"]


def test_folder_that_appears_during_the_block_wins_without_overwrite(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with replace_folder(target, overwrite=False) as slow:
        fill(slow, "slow")
        with replace_folder(target, overwrite=False) as fast:
            fill(fast, "fast")
    assert (target / "one.txt").read_text() == "fast"
    assert names(tmp_path) == ["target"]


def test_folder_that_appears_during_the_block_is_replaced_with_overwrite(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with replace_folder(target) as slow:
        fill(slow, "slow")
        with replace_folder(target) as fast:
            fill(fast, "fast")
    assert (target / "one.txt").read_text() == "slow"
    assert names(tmp_path) == ["target"]


WRITE_FOLDERS = """
import sys
from pathlib import Path
from arboretum.envs.files import replace_folder

def write(digit):
    with replace_folder(target) as folder:
        for number in range(20):
            (folder / f"{number}.txt").write_text(digit * 100_000)

target = Path(sys.argv[1]) / "target"
write("0")
print("ready", flush=True)
while True:
    for digit in "0123456789":
        write(digit)
"""


@needs_sigkill
@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_kill_during_replace_folder_leaves_no_partial_folder(seconds: float, tmp_path: Path) -> None:
    kill_after_first_writes(WRITE_FOLDERS, tmp_path, seconds)
    target = tmp_path / "target"
    # Between its two renames, replace_folder has moved the old folder away and not yet put the new one in place.
    if target.exists():
        contents = {path.read_text() for path in target.iterdir()}
        assert len(names(target)) == 20 and len(contents) == 1 and len(contents.pop()) == 100_000
    assert all(name.endswith(PART) for name in names(tmp_path) if name != "target")
    with replace_folder(target) as folder:
        fill(folder, "after")
    assert names(target) == ["deep", "one.txt"]


# ---------------------------------------------------------------------- read_jsonl


def test_read_jsonl_returns_records_in_order(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"a": 1}\n[2, "√"]\nnull\n"three"', encoding="utf-8")
    assert read_jsonl(path) == [{"a": 1}, [2, "√"], None, "three"]


def test_read_jsonl_of_a_missing_or_empty_file_is_empty(tmp_path: Path) -> None:
    assert read_jsonl(tmp_path / "missing.jsonl") == []
    (tmp_path / "empty.jsonl").touch()
    assert read_jsonl(tmp_path / "empty.jsonl") == []


@pytest.mark.parametrize("damaged", ["raise", "skip"])
@pytest.mark.parametrize("last", [b'{"a": 3, "text": "cut of', b'{"a": 3, "text": "\xe2\x88'])
def test_cut_last_line_is_skipped(last: bytes, damaged: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n' + last)
    assert read_jsonl(path, damaged=damaged) == [{"a": 1}, {"a": 2}]  # type: ignore[arg-type]


@pytest.mark.parametrize("line", ['{"a": 2', "", "not JSON", '{"a": 2}{"a": 3}'])
def test_damaged_middle_line_is_reported_with_its_number_or_skipped(line: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(f'{{"a": 1}}\n{line}\n{{"a": 4}}\n')
    with pytest.raises(DataError, match=r"records\.jsonl, line 2: is not valid JSON") as caught:
        read_jsonl(path)
    assert caught.value.line == 2 and caught.value.path == str(path)
    assert read_jsonl(path, damaged="skip") == [{"a": 1}, {"a": 4}]


def test_damaged_last_line_with_a_newline_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"a": 1}\n{"a": 2\n')
    with pytest.raises(DataError, match="line 2"):
        read_jsonl(path)


@pytest.mark.skipif(os.name != "posix", reason="needs symbolic links and devices")
def test_replace_folder_copes_with_links_and_read_only_files(tmp_path: Path) -> None:
    target, link = tmp_path / "elsewhere", tmp_path / "folder"
    target.mkdir()
    link.symlink_to(target)
    with replace_folder(link) as part:
        (part / "dangling").symlink_to(tmp_path / "nowhere")
        (part / "read-only").write_text("x")
        (part / "read-only").chmod(0o444)
    assert not link.is_symlink() and (link / "read-only").read_text() == "x" and target.is_dir()
    file = tmp_path / "file"
    file.write_text("old")
    with replace_folder(file) as part:
        (part / "new").write_text("new")
    assert (file / "new").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "file", "folder"]


@pytest.mark.skipif(os.name != "posix", reason="needs named pipes")
def test_write_atomic_writes_to_a_special_file_in_place(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomic(pipe, "text")
    assert os.read(reader, 100) == b"text" and pipe.is_fifo()
    os.close(reader)


def test_cached_folder_that_another_process_built_again_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "cached"
    folder.mkdir()
    (folder / "data").write_text("damaged")

    def read(folder: Path) -> str:
        text = (folder / "data").read_text()
        if text == "damaged":
            (folder / "data").write_text("built again")  # by another process, after this one has read the damage
            raise DataError(folder / "data", "is damaged.")
        return text

    assert open_cached(folder, read) == "built again"
    assert (folder / "data").read_text() == "built again"


def test_cached_folder_that_another_process_deleted_is_absent(tmp_path: Path) -> None:
    folder = tmp_path / "cached"
    folder.mkdir()

    def read(folder: Path) -> str:
        folder.rmdir()  # by another process
        raise DataError(folder / "data", "is missing.")

    assert open_cached(folder, read) is None


def test_paths_below_the_working_directory_are_shown_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    inside, beside = tmp_path / "here" / "runs" / "a", tmp_path / "there" / "b"
    assert shown_path(inside) == Path("runs/a") and shown_path(beside) == beside
    assert shown_paths(f"{inside}: as in {inside}/x, not {beside}") == f"runs/a: as in runs/a/x, not {beside}"
    for kept in (
        f"/mnt{inside}",
        f"~{inside}",
        f"set ARBORETUM_DATA={inside}",
        f"/usr:{inside}",
        f"{tmp_path}/here/ is",
    ):
        assert shown_paths(kept) == kept
    with started_here():
        monkeypatch.chdir(tmp_path)
        assert shown_path(inside) == Path("runs/a") and shown_paths(f"{inside}") == "runs/a"
    assert shown_path(inside) == Path("here/runs/a")
    monkeypatch.chdir("/")
    assert shown_path(inside) == inside and shown_paths(f"{inside}, http://a/b") == f"{inside}, http://a/b"
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert shown_path(inside) == inside and shown_paths(f"{inside}") == f"{inside}"
