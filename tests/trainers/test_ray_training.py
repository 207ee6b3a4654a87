"""Training whose environments are stepped on a real Ray cluster of two nodes: the same run as in one process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.ray_cluster import RayCluster

pytestmark = pytest.mark.heavy
for module in ("ray", "torch", "accelerate"):
    pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum-rl[ray,lm]'")

TESTS = Path(__file__).parent.parent
COMMON = (
    "--device cpu --dialogue no_think --dialogue-arg show_reward=false --validation.every 2 --validation.tasks 4"
    " --set sampler.prompts=2 --set sampler.reply_tokens=8 --set sampler.max_turns=3"
    " --set sampler.max_actions_per_turn=2 --set optimization.episodes_per_step=4"
    " --set optimization.updates=2 --set optimization.lr=3e-4"
)


@pytest.fixture(autouse=True)
def importable_support(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes of a cluster, and the runs, import the environments of `support`."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), *os.environ.get("PYTHONPATH", "").split(":")]))


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[RayCluster]:
    made = RayCluster(getattr(request, "param", 1))
    yield made
    made.stop()


class Run:
    """A run of `arboretum train` in a process of its own."""

    def __init__(self, command: str, folder: Path) -> None:
        self.folder = folder
        arguments = [sys.executable, "-m", "arboretum.cli", "train", *command.split(), "--out", str(folder)]
        self._process = subprocess.Popen(
            arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        )

    def finish(self) -> tuple[int, str]:
        output, _ = self._process.communicate(timeout=300)
        return self._process.returncode, " ".join(output.split())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def wait_for_update(self, number: int) -> None:
        deadline = time.monotonic() + 120
        path = self.folder / "metrics.jsonl"
        while not path.exists() or path.read_bytes().count(b"\n") <= number:
            assert self._process.poll() is None and time.monotonic() < deadline, self.finish()
            time.sleep(0.02)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [{k: v for k, v in json.loads(line).items() if "second" not in k} for line in lines]

    @property
    def weights(self) -> bytes:
        return (self.folder / "model" / "model.safetensors").read_bytes()


def test_run_with_hangs_a_dead_worker_and_an_interruption_is_that_of_one_process(
    warm_model: Path, cluster: RayCluster, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    # One episode at a time: in batches of other sizes, rounding would differ.
    command = (
        f"grpo --env support.failing_lakes:FailingLake --env-arg folder={lake} --model {warm_model} {COMMON}"
        " --set sampler.rollouts=4 --set optimization.updates=3 --in-flight 1 --step-timeout 0.5"
        " --monitor.failed 0.9"
    )
    here = Run(command, tmp_path / "here")
    status, output = here.finish()
    assert status == 0 and "the time limit of 0.5 s per step of the environment expired" in output
    for path in lake.iterdir():
        path.unlink()

    (lake / "fuse-1").touch()
    there = Run(f"{command} --env-arg is_stubborn=true --ray {cluster.address}", tmp_path / "ray")
    there.wait_for_update(1)
    assert not (lake / "fuse-1").exists()
    there.interrupt()
    status, output = there.finish()
    assert status == 130 and "Interrupted: the last checkpoint is" in output
    deadline = time.monotonic() + 30
    while any(Path("/proc", path.name).exists() for path in lake.iterdir()):
        assert time.monotonic() < deadline, "a worker outlives its run"
        time.sleep(0.1)

    again = Run(f"--resume {tmp_path / 'ray'}", tmp_path / "ray")
    status, output = again.finish()
    assert status == 0, output
    assert again.metrics == here.metrics and len(here.metrics) == 4
    assert again.weights == here.weights


def test_trees_in_two_environments_are_those_of_one_process_although_a_node_dies(
    warm_model: Path, cluster: RayCluster, tmp_path: Path
) -> None:
    command = (
        "tree_grpo --env small=TextFrozenLake-v0 --env large=TextFrozenLake-v0:2 --env-arg large.size=5"
        f" --model {warm_model} {COMMON} --in-flight 8"
    )
    there = Run(f"{command} --ray {cluster.address}", tmp_path / "ray")
    there.wait_for_update(1)
    cluster.kill_second_node()
    status, output = there.finish()
    assert status == 0, output
    here = Run(command, tmp_path / "here")
    status, output = here.finish()
    assert status == 0, output
    for ours, theirs in zip(there.metrics, here.metrics, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-2, abs=1e-4)  # rounding differs between batches
        for name in ("return", "success", "sampled_tokens", "env_steps", "expansions", "validation/return"):
            assert ours.get(name) == theirs.get(name)


def test_address_without_a_cluster_is_reported_in_one_sentence(warm_model: Path, tmp_path: Path) -> None:
    command = f"grpo --env TextFrozenLake-v0 --model {warm_model} {COMMON} --ray 127.0.0.1:1"
    status, output = Run(command, tmp_path / "run").finish()
    assert status == 2 and "arboretum: no Ray cluster at '127.0.0.1:1'" in output


@pytest.mark.parametrize("cluster", [0], indirect=True, ids=[""])
def test_run_without_a_worker_left_stops_and_keeps_its_checkpoint(
    warm_model: Path, cluster: RayCluster, tmp_path: Path
) -> None:
    command = f"grpo --env TextFrozenLake-v0 --model {warm_model} {COMMON} --set optimization.updates=1000"
    run = Run(f"{command} --checkpoint-every 1 --ray {cluster.address}", tmp_path / "run")
    run.wait_for_update(1)
    cluster.kill_second_node()
    status, output = run.finish()
    assert status == 1
    assert re.search(r"Stopped \(update \d+ of 1000\): sampling failed: every worker of the Ray cluster", output)
    assert "is kept; continue from it with: arboretum train --resume" in output
