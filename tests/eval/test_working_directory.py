"""Environments may change the working directory, as wrapped benchmarks do; results stay in their folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = [
    *("--model", "sapling", "--dialogue", "no_think", "--device", "cpu", "--validation.every", "0"),
    *("--set", "sampler.prompts=2", "--set", "sampler.rollouts=2", "--set", "sampler.reply_tokens=8"),
    *("--set", "optimization.episodes_per_step=null", "--set", "optimization.updates=1"),
]
SCRIPT = """
import os, arboretum
result = arboretum.evaluate("moving_env:MovesAtOnce", "random", limit=2, out="runs/python")
print(result.complete, os.path.abspath(result.folder))
"""


@pytest.fixture(params=["elsewhere", "."])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Working directory with the module of two environments that go elsewhere, or to its parent."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "moving_env.py").write_text(
        "import os\n"
        "from arboretum.envs.bandit import Bandit\n"
        f"ELSEWHERE = {str(tmp_path / request.param)!r}\n"
        "class MovesAtOnce(Bandit):\n"
        "    def _open(self, task):\n"
        "        os.chdir(ELSEWHERE)\n"
        "        return super()._open(task)\n"
        "class MovesLater(Bandit):\n"
        "    def _apply(self, action):\n"
        "        os.chdir(ELSEWHERE)\n"
        "        return super()._apply(action)\n"
    )
    return tmp_path / "here"


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in folder.parent.iterdir()} == {"elsewhere", "here"}
    assert list((folder.parent / "elsewhere").iterdir()) == []
    return done.stdout


@pytest.mark.parametrize("name", ["MovesAtOnce", "MovesLater"])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_evaluation_stays_in_its_folder(folder: Path, name: str, workers: str) -> None:
    options = ["--agent", "random", "--limit", "3", "--workers", workers]
    run(folder, "-m", "arboretum", "eval", f"moving_env:{name}", *options, "--out", "runs/mine")
    assert (folder / "runs" / "mine" / "report.html").exists()
    shown = run(folder, "-m", "arboretum", "eval", f"moving_env:{name}", *options)
    assert "\nReport: runs/moving_env" in shown
    assert len(list((folder / "runs").glob("*/report.html"))) == 2


def test_evaluation_from_python_stays_in_its_folder(folder: Path) -> None:
    assert run(folder, "-c", SCRIPT).split()[:2] == ["True", str(folder / "runs" / "python")]
    assert (folder / "runs" / "python" / "run.json").exists()


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["MovesAtOnce", "MovesLater"])
def test_training_stays_in_its_folder(folder: Path, name: str) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")
    options = ["--env", f"moving_env:{name}", *TRAINING, "--out", "runs/mine"]
    assert "Model: runs/mine/model\n" in run(folder, "-m", "arboretum", "train", "grpo", *options)
    assert (folder / "runs" / "mine" / "model" / "config.json").exists()
    more = ("--resume", "runs/mine", "--set", "optimization.updates=2")
    run(folder, "-m", "arboretum", "train", *more)
    assert len((folder / "runs" / "mine" / "metrics.jsonl").read_text().splitlines()) == 2


def test_paths_are_shown_as_they_were_given(folder: Path) -> None:
    options = ["--agent", "random", "--limit", "2", "--out", "runs/mine"]
    shown = run(folder, "-m", "arboretum", "eval", "TextBandit-v0", *options)
    assert "\nReport: runs/mine/report.html\n" in shown
    command = [sys.executable, "-m", "arboretum", "eval", "TextSokoban-v0", *options]
    refused = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert refused.returncode == 2 and refused.stderr.startswith("arboretum: runs/mine: holds a run of another ")
