"""Phase in progress of a run, in a terminal and in a log."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable

import pytest
from rich.console import Console

from arboretum.trainers.reporting.progress import Progress
from arboretum.trainers.reporting.status import describe_phase, format_duration, run_seconds_left
from arboretum.trainers.state import Activity, Phase


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, at most ten seconds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_phase_counts_its_progress_and_is_described() -> None:
    activity = Activity()
    activity.begin("loading sapling")
    assert describe_phase(activity, activity.phase) == "loading sapling"
    activity.place = "update 3 of 200"
    activity.begin("rolling out", 1280, "episodes")
    assert list(activity.count(range(12))) == list(range(12))
    activity.turns = 31
    assert (
        describe_phase(activity, activity.phase) == "update 3 of 200: rolling out 12 of 1,280 episodes, 31 turns"
    )
    activity.begin("updating", unit="micro-batches")
    activity.advance(0, total=8)
    activity.advance()
    assert describe_phase(activity, activity.phase) == "update 3 of 200: updating 1 of 8 micro-batches"
    activity.end()
    assert describe_phase(activity, activity.phase) == "update 3 of 200"


def test_time_left_follows_the_last_duration_and_then_the_fraction_done() -> None:
    first = Phase("rolling out", "episodes", 0, 64, started=100.0, expected=None)
    assert first.seconds_left(110.0) is None
    assert first._replace(done=16).seconds_left(110.0) == pytest.approx(30.0)
    again = first._replace(done=1, expected=40.0)
    assert again.seconds_left(110.0) == pytest.approx(30.0)
    assert again._replace(done=32).seconds_left(150.0) == pytest.approx(50.0)  # slower than the last time
    assert again._replace(done=64).seconds_left(150.0) is None


def test_time_left_in_the_run_is_the_mean_of_the_latest_updates() -> None:
    validation = {"update": 0, "validation/success": 0.5, "seconds/validate": 99.0}
    updates = [{"update": t, "seconds/sample": 2.0, "seconds/learn": 1.0} for t in (1, 2)]
    assert run_seconds_left([], 10) is None and run_seconds_left([validation], 10) is None
    assert run_seconds_left([validation, *updates], 10) == pytest.approx(24.0)
    sampled = [{**record, "sampled_tokens": 100.0} for record in updates]
    assert run_seconds_left(sampled, 10, 350) == pytest.approx(6.0)  # 150 tokens are two further updates.
    assert run_seconds_left(sampled, 10, 150) == 0 and run_seconds_left(sampled, 3, 350) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (5400, "90 min"), (12000, "3 h 20 min")]
)
def test_duration_is_short_to_read(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize("height", [24, 8])
def test_terminal_shows_the_phase_before_the_first_update_and_fits(height: int) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, height=height, color_system=None)
    activity = Activity()
    activity.begin("loading a-model-with-a-long-name/" + "x" * 80)
    with Progress(console, "grpo on an environment", 40, activity=activity) as progress:
        wait_for(lambda: "loading a-model" in file.getvalue())
        for update in range(1, 21):
            progress.show({"update": update, "success": update / 40, "policy_loss": 0.5, "seconds/sample": 60.0})
        activity.place, activity.notice = "update 21 of 40", "Stopping after this update."
        activity.begin("rolling out", 64, "episodes")
        activity.advance(12)
        wait_for(lambda: "Stopping after" in file.getvalue())
        drawn = file.getvalue()
        frame = re.sub(r"\x1b\[[?\d]*[a-zA-Z]", "", drawn[drawn.rindex("\x1b[2K") :])
    assert "update 21 of 40: rolling out 12 of 64 episodes" in drawn and "run: about 20 min left" in drawn
    assert "policy loss 0.5" in drawn
    lines = frame.rstrip("\n").split("\n")
    assert len(lines) < height and max(map(len, lines)) <= 80
    end = file.getvalue()[len(drawn) :]
    assert "rolling out" not in end and "20 of 40" in end  # the phase is over, the table stays


def test_log_receives_the_phase_at_once_and_then_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "FIRST_PAUSE", 0.1)
    monkeypatch.setattr(Progress, "LAST_PAUSE", 0.4)
    file = io.StringIO()
    activity = Activity()
    activity.begin("loading sapling")
    with Progress(Console(file=file, width=80), "grpo", 40, activity=activity) as progress:
        wait_for(lambda: "loading sapling (0 s)\n" in file.getvalue())
        activity.place = "update 1 of 40"
        activity.begin("validating", 256, "episodes")
        start, before = time.monotonic(), file.getvalue().count("\n")
        time.sleep(1.5)
        lines = file.getvalue().count("\n") - before
        assert 3 <= lines <= 2 + (time.monotonic() - start) / 0.2
        progress.show({"update": 1, "success": 0.5, "seconds/sample": 3.0})
        activity.notice = "Stopping after this update."
        wait_for(lambda: "\nStopping after this update.\n" in file.getvalue())
    text = file.getvalue()
    assert "update 1 of 40: validating 0 of 256 episodes (" in text and "\x1b" not in text
    assert text.count("Stopping") == 1


def test_log_of_quick_updates_has_no_line_between_them() -> None:
    file = io.StringIO()
    activity = Activity()
    with Progress(Console(file=file, width=80), "grpo", 40, activity=activity) as progress:
        for update in range(1, 31):
            activity.begin("rolling out", 4, "episodes")
            time.sleep(0.02)
            progress.show({"update": update, "success": 0.5})
    lines = file.getvalue().splitlines()
    assert [line for line in lines[:31] if line.startswith("update")] == [
        f"update {update} of 40: success 50%" for update in range(1, 31)
    ]


def test_phase_that_ends_while_it_is_described_is_described_whole() -> None:
    class Ending(Activity):
        """Activity whose phase has ended whenever it is read a second time."""

        reads = 0

        @property
        def phase(self) -> Phase | None:
            self.reads += 1
            return Phase("saving", "", 0, 0, time.monotonic(), None) if self.reads % 2 else None

        @phase.setter
        def phase(self, phase: Phase | None) -> None:
            pass

    activity, output = Ending(), io.StringIO()
    activity.place = "update 3 of 50"
    with Progress(Console(file=output, width=200), "run", 50, activity=activity):
        wait_for(output.getvalue)
    assert output.getvalue().startswith("update 3 of 50: saving (0 s")
