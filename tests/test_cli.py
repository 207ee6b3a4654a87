"""The command as a user meets it: what it prints, and its exit status."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest


def arboretum(*arguments: str, stdin: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "arboretum.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "80"},
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["eval", "qick"], "unknown suite 'qick'; did you mean quick?"),
        (["eval", "quick", "--agent", "randm"], "unknown agent 'randm'; did you mean random?"),
        (["play", "TextBandt-v0"], "unknown environment 'TextBandt-v0'; did you mean TextBandit-v0"),
        (["play", "TextBandit-v0", "--task", "Teacher/Tradr"], "did you mean Teacher/Trader"),
        (["play", "TextBandit-v0", "--split", "tset"], "unknown split 'tset'; did you mean test?"),
        (["bench", "evns"], "unknown benchmark 'evns'; did you mean envs"),
        (["play", "TextBandit-v0", "--seed", "-1"], "seed must not be negative"),
        (["eval", "quick", "--workers", "0"], "--workers must be at least 1"),
        (["eval", "quick", "--out", "/proc/nowhere"], "cannot be written to"),
        (["report", "/nowhere"], "holds no run"),
        (["eval", "/nowhere.yaml"], "cannot be read"),
    ],
)
def test_what_a_user_can_mend_is_one_sentence_and_status_2(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    done = arboretum(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr + done.stdout


def test_worlds_lists_every_registered_id() -> None:
    from arboretum.envs.registry import ENVS

    done = arboretum("envs")
    assert done.returncode == 0
    for spec in ENVS:
        assert re.search(rf"^{spec.id}\s+\S", done.stdout, re.MULTILINE)


def test_a_person_plays_from_a_pipe() -> None:
    done = arboretum(
        "play", "TextBandit-v0", "--task", "Teacher/Trader", "--seed", "1", stdin="Plumber\n:hint\nTeacher\n"
    )
    assert done.returncode == 0
    assert "There is no such arm" in done.stdout
    assert "The expert would: Trader" in done.stdout
    assert "Teacher: 0.15 points" in done.stdout
    assert "Not solved in 2 moves" in done.stdout


def test_leaving_in_the_middle_is_no_error() -> None:
    done = arboretum("play", "TextBandit-v0", stdin="")
    assert done.returncode == 0 and "Left." in done.stdout


def test_watching_a_player() -> None:
    done = arboretum("play", "TextBandit-v0", "--agent", "expert", "--seed", "3")
    assert done.returncode == 0 and "solved in 1 moves" in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_arrow_keys_and_undo_at_a_terminal() -> None:
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        command = ["arboretum", "play", "TextSokoban-v0", "--task", "test/3", "--seed", "1"]
        os.execv(sys.executable, [sys.executable, "-m", "arboretum.cli", *command[1:]])
    seen = ""

    def until(text: str, after: int = 0) -> None:
        nonlocal seen
        deadline = time.monotonic() + 30
        while text not in seen[after:]:
            ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, seen
            seen += os.read(terminal, 4096).decode()

    until("> ")
    start = len(seen)
    os.write(terminal, b"\x1b[A")  # arrow up
    until("Up", start)
    until("> ", seen.index("Up", start))
    mark = len(seen)
    os.write(terminal, b":undp\x7fo\r")  # typed with a slip and a backspace
    until("> ", mark)
    mark = len(seen)
    os.write(terminal, b":undo\r")
    until("Nothing to undo", mark)
    mark = seen.index("Nothing to undo", mark)
    os.write(terminal, b"\x1b[D\x1b[C" * 3 + b"up\rdown\r")  # faster than any prompt
    for key in [*("Left", "Right") * 3, "up", "down"]:
        until(f"> {key}", mark)
        mark = seen.index(f"> {key}", mark) + 2
    os.write(terminal, b":quit\r")
    until("Left.")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
