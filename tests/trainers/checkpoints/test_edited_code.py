"""A run that goes on after an edit of its environment's code says so, and so do comparisons and fine-tuning."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from arboretum.cli import main
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.checkpoints.run_folder import claim_run_folder, read_config, record_code
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import EnvConfig, ValidationConfig

for module in ("torch", "accelerate"):
    pytest.importorskip(module, reason="needs torch and accelerate: pip install 'arboretum-rl[lm]'")

SENTENCE = (
    "The code of paid_env:Paid was edited while the run was trained: its updates are of different environments."
)
OPTIONS = [
    *("--env", "paid_env:Paid", "--model", "sapling", "--out", "run", "--validation.every", "0"),
    *("--set", "sampler.prompts=2", "--set", "sampler.rollouts=2", "--set", "sampler.reply_tokens=8"),
    *("--set", "optimization.episodes_per_step=null", "--set", "optimization.updates=1", "--device", "cpu"),
]


def write_environment(folder: Path, bonus: float) -> None:
    (folder / "paid_env.py").write_text(
        "from arboretum.envs.bandit import Bandit\n"
        "class Paid(Bandit):\n"
        "    def _apply(self, action):\n"
        "        outcome = super()._apply(action)\n"
        f"        return outcome._replace(reward=outcome.reward + {bonus})\n",
        encoding="utf-8",
    )


def run(folder: Path, *arguments: str) -> str:
    """Run a command of `arboretum` in a folder, and return what it printed with single spaces."""
    command = [sys.executable, "-m", "arboretum", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join(done.stdout.split())


def digests(folder: Path) -> list[str]:
    found: list[str] = json.loads((folder / "run.json").read_text())["code"]["paid_env:Paid"]
    return found


def test_resumed_run_notes_edited_code(tmp_path: Path) -> None:
    write_environment(tmp_path, 0.0)
    run(tmp_path, "train", "grpo", *OPTIONS)
    write_environment(tmp_path, 0.25)
    assert SENTENCE not in run(tmp_path, "train", "--resume", "run")  # It is complete, so that no update follows.
    write_environment(tmp_path, 0.0)
    more = ("train", "--resume", "run", "--set")
    assert SENTENCE not in run(tmp_path, *more, "optimization.updates=2")
    (first,) = digests(tmp_path / "run")
    write_environment(tmp_path, 0.25)
    assert SENTENCE in run(tmp_path, *more, "optimization.updates=3")
    assert digests(tmp_path / "run")[0] == first and len(digests(tmp_path / "run")) == 2
    assert SENTENCE in (tmp_path / "run" / "report.html").read_text()
    with (tmp_path / "paid_env.py").open("a", encoding="utf-8") as file:
        file.write("    def _observe(self):\n        return 'Choose! ' + super()._observe()\n")
    command = [sys.executable, "-m", "arboretum", *more, "optimization.updates=4"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    error = " ".join(refused.stderr.split())
    assert refused.returncode == 2
    assert "run: the code of paid_env:Paid was edited, so that its tasks or their first observations are" in error


@pytest.mark.heavy
def test_resumed_fine_tuning_notes_edited_code(tmp_path: Path) -> None:
    write_environment(tmp_path, 0.0)
    options = ("--env", "paid_env:Paid", "--model", "sapling", "--episodes", "256", "--batch", "2", "--out", "run")
    command = [sys.executable, "-m", "arboretum", "sft", *options, "--checkpoint-every", "1", "--device", "cpu"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("run/checkpoints/update-*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    write_environment(tmp_path, 0.25)
    assert SENTENCE in run(tmp_path, "sft", "--resume", "run")


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder from which this process imports the module of the environment."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "paid_env", raising=False)
    return tmp_path


def test_only_code_of_updates_that_count_is_noted(imported: Path) -> None:
    write_environment(imported, 0.0)
    recipe = RECIPES["grpo"].with_settings({"optimization.updates": 2})
    env, off = EnvConfig("paid_env:Paid"), ValidationConfig(0)
    config = TrainingConfig(recipe, env, "sapling", imported / "run", validation=off)
    claim_run_folder(config, resume=False)
    (before,) = digests(config.out)
    write_environment(imported, 0.25)
    claim_run_folder(config, resume=True)  # There is no checkpoint, so the run starts anew.
    (first,) = digests(config.out)
    assert first != before
    (config.out / "checkpoints" / "update-000002").mkdir(parents=True)
    write_environment(imported, 0.5)
    claim_run_folder(config, resume=True)
    assert digests(config.out) == [first]  # Updates may follow or not.
    record_code(config)
    record_code(config)
    assert len(digests(config.out)) == 2 and digests(config.out)[0] == first
    assert read_config(config.out, TrainingConfig) == config


def test_comparison_of_runs_names_edited_code(imported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, bonus in (("first", 0.0), ("same", 0.0), ("edited", 0.25)):
        write_environment(imported, bonus)
        config = TrainingConfig(
            RECIPES["grpo"], EnvConfig("paid_env:Paid"), "sapling", imported / name, validation=ValidationConfig(0)
        )
        claim_run_folder(config, resume=False)
        assert read_config(imported / name, TrainingConfig) == config

    def compare(*names: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["compare", *(str(imported / name) for name in names)])
        assert ended.value.code == 0
        return " ".join(capsys.readouterr().out.split())

    assert "All settings are the same." in compare("first", "same")
    shown = compare("first", "edited")
    assert "The validations differ in code.paid_env:Paid, so their rates are not comparable." in shown
    for name in ("first", "edited"):
        assert digests(imported / name)[0] in shown
