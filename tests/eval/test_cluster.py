"""Evaluation on a real Ray cluster of two nodes on this machine, one of which dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.ray_cluster import RayCluster

pytestmark = pytest.mark.heavy
pytest.importorskip("ray", reason='needs the extra "ray"')

SUITE = """\
name: both
entries:
  - {name: lakes, env: TextFrozenLake-v0, split: test, tasks: 300, repeats: 4}
  - {name: boxes, env: TextSokoban-v0, split: test, tasks: 300, repeats: 4, max_steps: 10}
"""


MODEL = ["--agent", "no_think", "--model", "sapling", "--max-tokens", "24", "--no-references"]


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    made = RayCluster()
    yield made
    made.stop()


@pytest.fixture
def suite(tmp_path: Path) -> str:
    path = tmp_path / "both.yaml"
    path.write_text(SUITE)
    return str(path)


def start_eval(suite: str, out: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "arboretum.cli", "eval", suite, "--out", str(out), *options]
    environment = {**os.environ, **variables}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=300)
    return process.returncode, " ".join(output.split())


def records(folder: Path) -> list[dict[str, Any]]:
    """Return what the episodes are, in an order of their own, without wall times."""
    found = []
    for line in (folder / "episodes.jsonl").read_text().splitlines():
        record = json.loads(line)
        for turn in record["turns"]:
            turn["agent_seconds"] = turn["env_seconds"] = 0.0
        found.append({**record, "seconds": 0.0, "crc": ""})
    return sorted(found, key=lambda r: (r["agent"], r["entry"], r["task"], r["repeat"]))


def wait_for_episodes(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    path = folder / "episodes.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.02)


def lakes(folder: Path, tasks: int) -> str:
    path = folder / "lake.yaml"
    path.write_text(
        textwrap.dedent(f"""\
        name: lake
        dialogue: {{max_actions: 10, max_turns: 5, max_actions_per_turn: 5}}
        entries:
          - {{name: lake, env: TextFrozenLake-v0, split: test, tasks: {tasks}, kwargs: {{success_rate: 1.0}}}}
        """)
    )
    return str(path)


def test_node_that_dies_loses_no_episode_and_doubles_none(suite: str, cluster: RayCluster, tmp_path: Path) -> None:
    run = start_eval(suite, tmp_path / "ray", "--ray", cluster.address)
    wait_for_episodes(tmp_path / "ray", 200)
    cluster.kill_second_node()
    status, output = finish(run)
    assert status == 0, output
    # 2 entries, 300 tasks, 4 repeats, 2 agents: more than half was left when the node died.
    assert len(records(tmp_path / "ray")) == 4_800
    status, output = finish(start_eval(suite, tmp_path / "here", "--workers", "1"))
    assert status == 0, output
    assert records(tmp_path / "ray") == records(tmp_path / "here")


def test_node_with_other_data_is_refused(cluster: RayCluster, tmp_path: Path) -> None:
    """The nodes have the data of the cluster's start; this process generates its own."""
    if not os.environ.get("ARBORETUM_DATA"):
        pytest.skip("needs ARBORETUM_DATA with ALFWorld's files")
    run = start_eval(
        "TextALFWorld-v0", tmp_path / "run", "--limit", "2", "--ray", cluster.address, ARBORETUM_DATA=str(tmp_path)
    )
    status, output = finish(run)
    assert status == 2 and "has other tasks for" in output and "ARBORETUM_DATA" in output
    assert not (tmp_path / "run" / "episodes.jsonl").read_bytes()


def test_model_plays_in_a_copy_on_every_node(cluster: RayCluster, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
    path = lakes(tmp_path, 24)
    status, output = finish(start_eval(path, tmp_path / "ray", *MODEL, "--ray", cluster.address))
    assert status == 0, output
    status, output = finish(start_eval(path, tmp_path / "here", *MODEL))
    assert status == 0, output
    # Logits are rounded in batches of another size, so a few replies may differ; the episodes are the same ones.
    ours, theirs = records(tmp_path / "ray"), records(tmp_path / "here")
    key = [(r["task"], r["repeat"], r["seed"]) for r in ours]
    assert key == [(r["task"], r["repeat"], r["seed"]) for r in theirs] and len(key) == 24
    same = sum(a["turns"][0]["reply"] == b["turns"][0]["reply"] for a, b in zip(ours, theirs, strict=True))
    assert same >= 20


def test_copy_whose_gpu_is_lost_with_its_node_gets_no_episodes(tmp_path: Path) -> None:
    """The copy is started again, but Ray finds no GPU for it: the other copy has the one that is left."""
    pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
    cluster = RayCluster(gpus=1)
    try:
        path = lakes(tmp_path, 96)
        run = start_eval(path, tmp_path / "ray", *MODEL, "--in-flight", "4", "--ray", cluster.address)
        wait_for_episodes(tmp_path / "ray", 8)
        cluster.kill_second_node()
        status, output = finish(run)
    finally:
        cluster.stop()
    assert status == 0, output
    assert len(records(tmp_path / "ray")) == 96
