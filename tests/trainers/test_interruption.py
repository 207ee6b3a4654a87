"""Ctrl-C and SIGTERM during training and fine-tuning, sent to real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from arboretum.trainers.checkpoints.interruption import Interruption
from arboretum.trainers.checkpoints.store import Checkpoints
from arboretum.trainers.state import Activity

for module in ("torch", "accelerate"):
    pytest.importorskip(module, reason="needs torch and accelerate: pip install 'arboretum-rl[lm]'")

FROZENLAKE = (
    "--env TextFrozenLake-v0 --env-arg size=3 --device cpu --dialogue no_think --dialogue-arg max_turns=2"
    " --dialogue-arg show_reward=false"
)
QUICK = (
    f"train grpo {FROZENLAKE} --validation.every 2 --validation.tasks 4 --checkpoint-every 50"
    " --set sampler.prompts=2 --set sampler.rollouts=4 --set sampler.reply_tokens=8"
    " --set optimization.episodes_per_step=8"
)
SLOW = (
    "train grpo --env TextSokoban-v0 --model sapling --device cpu --dialogue no_think --validation.every 0"
    " --set sampler.prompts=64 --set sampler.rollouts=16 --set sampler.reply_tokens=24"
)
"""An update takes far longer than a second."""


class Command:
    """Process of `arboretum`, whose output is collected in a file."""

    def __init__(self, command: str, log: Path, launcher: tuple[str, ...] = ()) -> None:
        self.log = log
        # The children of a background shell ignore SIGINT unless the handler is restored.
        restore = lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None  # noqa: E731
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, *launcher, "-m", "arboretum.cli", *command.split()],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
                preexec_fn=restore,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.log.read_text()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, self.output
            time.sleep(0.01)

    def finish(self) -> int:
        return self.process.wait(timeout=120)


def updates(folder: Path, name: str = "update") -> list[int]:
    path = folder / "metrics.jsonl"
    return [int(json.loads(line)[name]) for line in path.read_text().splitlines()] if path.exists() else []


def records(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: v for name, v in json.loads(line).items() if "second" not in name} for line in lines]


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_keeps_the_update_in_progress_and_the_run_continues_alike(
    number: signal.Signals, warm_model: Path, tmp_path: Path
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    quick = f"{QUICK} --model {warm_model} --set optimization.updates=2000"
    command = Command(f"{quick} --out {run}", tmp_path / "log")
    command.wait_for(lambda: len(updates(run)) >= 4)
    command.process.send_signal(number)
    assert command.finish() == 130
    reached = updates(run)[-1]
    last = Checkpoints(run / "checkpoints").last
    assert last is not None and last.name == f"update-{reached:06d}", command.output
    assert f"the last checkpoint is {last.name}" in command.output
    assert f"continue with: arboretum train --resume {run}" in command.output
    assert not list((run / "checkpoints").glob("*.part"))

    total = f"--set optimization.updates={reached + 2}"
    assert Command(f"train --resume {run} {total}", tmp_path / "log").finish() == 0
    assert Command(f"{quick} {total} --out {whole}", tmp_path / "other").finish() == 0
    # The learning rate of the first run has a warm-up only, so prolonging it does not change the schedule.
    assert records(run)[: reached + 1] == records(whole)[: reached + 1]
    assert updates(run) == [*range(reached + 3)]


@pytest.mark.heavy
def test_processes_of_a_distributed_run_stop_after_the_same_update(warm_model: Path, tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of the terminal, and the launcher sends its own signal in addition."""
    run = tmp_path / "run"
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = Command(f"{QUICK} --model {warm_model} --out {run}", tmp_path / "log", launcher)
    command.wait_for(lambda: len(updates(run)) >= 3)
    os.killpg(command.process.pid, signal.SIGINT)
    assert command.finish() != 0
    last = Checkpoints(run / "checkpoints").last
    assert last is not None and last.name == f"update-{updates(run)[-1]:06d}", command.output
    assert command.output.count("Interrupted:") == 1


@pytest.mark.heavy
def test_second_signal_stops_at_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = Command(f"{SLOW} --out {run}", tmp_path / "log")
    command.wait_for(lambda: (run / "run.json").exists() and "update 1 of" in command.output)
    start = time.monotonic()
    command.process.send_signal(signal.SIGINT)
    command.wait_for(lambda: "a second Ctrl-C stops at once" in command.output)
    time.sleep(1.2)
    assert command.process.poll() is None
    command.process.send_signal(signal.SIGINT)
    assert command.finish() == 130
    assert "there is no checkpoint yet; continue with: arboretum train --resume" in command.output
    assert updates(run) == [] and time.monotonic() - start < 20
    assert "Traceback" not in command.output


@pytest.mark.heavy
def test_signal_while_loading_stops_at_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = Command(f"{SLOW} --out {run}", tmp_path / "log")
    command.wait_for(lambda: "importing PyTorch" in command.output)
    command.process.send_signal(signal.SIGTERM)
    # If the exception passes through code that an extension module executes, CPython forgets that it was handled,
    # and ends the process by SIGINT at exit, whatever status was asked for. Shells report both as 130.
    assert command.finish() in (130, -signal.SIGINT)
    assert "Interrupted: the run had not begun; start it with the same command." in command.output
    assert "Traceback" not in command.output and not run.exists()


@pytest.mark.heavy
def test_fine_tuning_keeps_its_steps(warm_model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = Command(
        f"sft {FROZENLAKE} --model {warm_model} --out {run} --episodes 64 --epochs 500 --batch 8", tmp_path / "log"
    )
    command.wait_for(lambda: len(updates(run, "step")) >= 3)
    command.process.send_signal(signal.SIGTERM)
    assert command.finish() == 130
    last = Checkpoints(run / "checkpoints").last
    assert last is not None and last.name == f"update-{updates(run, 'step')[-1]:06d}"
    assert f"continue with: arboretum sft --resume {run}" in command.output
    assert "demonstrating" in command.output or "importing PyTorch" in command.output


# ---------------------------------------------------------------------- the rule


def test_signals_of_a_launcher_within_a_second_are_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    activity = Activity()
    interruption = Interruption(activity)
    with interruption.handle_signals():
        interruption.defer()
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.requested and "with a checkpoint" in activity.notice
        monkeypatch.setattr("arboretum.trainers.checkpoints.interruption.SAME_REQUEST", -1.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_signal_before_the_first_update_stops_the_run_even_if_its_exception_is_discarded() -> None:
    """As Python discards one that is raised while an object is finalized."""
    interruption = Interruption(Activity())
    with interruption.handle_signals():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            interruption.defer()
        assert not interruption.deferred
