"""The progress of an evaluation whose output is no terminal."""

from __future__ import annotations

import re
import time
from io import StringIO

import pytest

from arboretum.cli import main
from arboretum.envs.terminal import Terminal
from arboretum.eval.progress import RunDisplay
from arboretum.eval.runner import Progress

STATE = Progress(total=40, done=9, failed=1, successes={"a": 3}, played={"a": 6}, tokens=5, cost=0.5)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunDisplay, "PAUSE", 0.01)


def show_until_a_line(display: RunDisplay, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a run in progress prints on standard error within three seconds, up to its second line."""
    printed = ""
    with display:
        display.show(STATE)
        end = time.monotonic() + 3
        while printed.count("\n") < 2 and time.monotonic() < end:
            time.sleep(0.01)
            printed += capsys.readouterr().err
    return printed


@pytest.mark.usefixtures("soon")
def test_log_has_a_line_after_each_pause(capsys: pytest.CaptureFixture[str]) -> None:
    printed = show_until_a_line(RunDisplay("a suite", Terminal(file=StringIO())), capsys)
    assert re.match(r"  0\.0 min  10 of 40 episodes, 5 sampled tokens, \$0\.50, 1 broke off\n", printed)


@pytest.mark.usefixtures("soon")
def test_terminal_has_a_bar_and_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    screen = StringIO()
    display = RunDisplay("a suite", Terminal(file=screen, force_terminal=True, width=100))
    with display:
        display.show(STATE)
        time.sleep(0.1)
    shown = screen.getvalue()
    assert "10/40" in shown and "a 50%" in shown and "1 broke off" in shown
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("soon")
def test_command_prints_its_results_on_standard_output_only(
    capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["eval", "TextBlocksworld-v0", "--limit", "64", "--workers", "1", "--out", f"{tmp_path}/run"])
    printed = capsys.readouterr()
    assert ended.value.code == 0 and " of 128 episodes" in printed.err
    assert " min  " not in printed.out and "TextBlocksworld-v0" in printed.out
