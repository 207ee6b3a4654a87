"""Commands that run in an empty folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from arboretum import cli
from arboretum.cli import main
from arboretum.envs.terminal import Terminal

Command = Callable[..., str]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Function that runs a command in an empty folder, and returns its output, or its error if it fails.

    Evaluations run in this process unless `--workers` is given, since processes take a second to start.
    """
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, status: int = 0, width: int = 80) -> str:
        if arguments[0] == "eval" and "--workers" not in arguments:
            arguments = (*arguments, "--workers", 1)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(cli, "console", Terminal(highlight=False))
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        assert ended.value.code == status, shown.err
        return shown.out if status == 0 else shown.err

    return run


@pytest.fixture
def planbench(tmp_path: Path) -> Path:
    """Folder of a PlanBench instance of two blocks, and one of three."""
    folder = tmp_path / "planbench"
    folder.mkdir()
    for number, (names, table) in enumerate(
        [("a b", "(on a b) (ontable b)"), ("a b c", "(on a b) (on b c) (ontable c)")]
    ):
        (folder / f"instance-{number}.pddl").write_text(
            f"(define (problem p) (:domain blocksworld-4ops) (:objects {names})"
            f" (:init (handempty) {table} (clear a)) (:goal (and (ontable a))))"
        )
    return folder
