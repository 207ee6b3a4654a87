"""`arboretum sft` and `arboretum train` from a random model to a trained one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arboretum.cli import main

for module in ("torch", "accelerate"):
    pytest.importorskip(module, reason="needs torch and accelerate: pip install 'arboretum-rl[lm]'")

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_thread")]

COMMON = (
    "--env TextFrozenLake-v0 --device cpu --dialogue no_think --dialogue-arg max_turns=2"
    " --dialogue-arg show_reward=false --dialogue-arg max_actions_per_turn=1"
)


def run_command(command: str) -> int:
    """Run a command of `arboretum`, and return its exit status."""
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_random_model_is_fine_tuned_trained_and_prolonged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from arboretum.eval.bench.tiny import make_tiny_model

    model = make_tiny_model(tmp_path / "tiny")
    warm, run = tmp_path / "warm", tmp_path / "run"
    expert = "--episodes 32 --epochs 1 --batch 8 --expert.noise 0.5 --expert.keep all"
    assert run_command(f"sft {COMMON} --model {model} --out {warm} {expert}") == 0
    assert (warm / "model" / "model.safetensors").exists()
    capsys.readouterr()

    command = (
        f"train grpo {COMMON} --model {warm / 'model'} --out {run} --validation.every 1 --validation.tasks 2"
        " --set sampler.prompts=2 --set sampler.rollouts=2 --set sampler.reply_tokens=8"
        " --set optimization.episodes_per_step=4"
    )
    assert run_command(f"{command} --set optimization.updates=2") == 0
    text = capsys.readouterr().out
    assert "update 2 of 2" in text and "held out" in text and str(run / "model") in text
    assert json.loads((run / "run.json").read_text())["recipe"]["name"] == "grpo"
    assert (run / "model" / "config.json").exists()

    assert run_command(f"{command} --set optimization.updates=2") == 2
    assert "continue it with --resume" in capsys.readouterr().err
    other = f"{command} --resume {run} --set optimization.updates=2 --set objective.clip_high=0.3"
    assert run_command(other) == 2
    assert "another recipe (objective.clip_high was 0.2 and is 0.3)" in capsys.readouterr().err
    assert run_command(f"{command} --resume {run} --set optimization.updates=3") == 0
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["update"] for line in lines] == [0, 1, 2, 3]
