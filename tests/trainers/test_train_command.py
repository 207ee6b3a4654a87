"""`train` and `sft` as the command line calls them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.expert import Expert
from arboretum.trainers.settings import Hardware, Validation
from arboretum.trainers.train import export_checkpoint, sft, train

NOWHERE = "/nowhere/model"  # a model that nobody may try to load


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"recipe": "gripo"}, "unknown recipe 'gripo'; did you mean"),
        ({"world": "TextSokobann-v0"}, "unknown world"),
        ({"settings": {"sampler.rollouts": 1}}, "sampler.rollouts is 1"),
        ({"settings": {"critic": None}, "recipe": "ppo"}, "needs a critic"),
        ({"dialogue": "thinking"}, "unknown dialogue"),
        ({"dialogue_settings": {"max_turn": 3}}, "max_turn"),
        ({"split": "training"}, "unknown split"),
        ({"kwargs": {"colour": "red"}}, "unknown option"),
        ({"world": "TextBandit-v0", "validation": Validation(split="valid")}, "unknown split"),
        ({"world": "TextBandit-v0", "validation": Validation(split="test", tasks=64)}, "asks for 64 tasks"),
        ({"world": "TextBandit-v0", "validation": Validation(split="train", tasks=4)}, "judged on what it learnt"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_loaded(
    options: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"recipe": "grpo", "world": "TextFrozenLake-v0", **options}
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        train(model=NOWHERE, out=tmp_path / "run", console=quiet(), **settings)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Hardware(precision="float16"), "precision"),  # type: ignore[arg-type]
        (lambda: Hardware(micro_tokens=0), "micro_tokens"),
        (lambda: Validation(every=-1), "validation.every"),
        (lambda: Expert(noise=1.5), "noise"),
        (lambda: Expert(keep="best"), "keep"),  # type: ignore[arg-type]
    ],
)
def test_impossible_values(make: Any, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        make()


def test_a_warm_start_on_an_unknown_world(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown world"):
        sft("TextSokobann-v0", NOWHERE, out=tmp_path, console=quiet())


@pytest.mark.heavy
def test_from_a_random_model_to_a_trained_one(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum[lm]'")
    from arboretum.eval.bench.tiny import make_tiny_model

    torch.set_num_threads(1)
    speech: dict[str, Any] = {
        "dialogue": "no_think",
        "dialogue_settings": {"max_turns": 2, "max_actions_per_turn": 1, "show_reward": False},
        "hardware": Hardware(device="cpu"),
    }
    console = quiet()
    model = make_tiny_model(tmp_path / "tiny")
    warm = tmp_path / "warm"
    expert = Expert(noise=0.5, keep="all")
    world = "TextFrozenLake-v0"
    done = sft(
        world, str(model), out=warm, episodes=32, epochs=1, batch=8, expert=expert, console=console, **speech
    )
    assert done == 0 and (warm / "model" / "model.safetensors").exists()

    run = tmp_path / "run"
    settings = {
        "sampler.prompts": 2,
        "sampler.rollouts": 2,
        "sampler.reply_tokens": 8,
        "optimisation.updates": 2,
        "optimisation.episodes_per_step": 4,
    }
    call: dict[str, Any] = {
        "recipe": "grpo",
        "world": world,
        "model": str(warm / "model"),
        "out": run,
        "settings": settings,
        "validation": Validation(every=1, tasks=2),
        "console": console,
        **speech,
    }
    assert train(**call) == 0
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "update 2 of 2" in text and "held out" in text and str(run / "model") in text
    assert json.loads((run / "run.json").read_text())["recipe"]["name"] == "grpo"
    assert (run / "model" / "config.json").exists()

    with pytest.raises(ConfigurationError, match="say --resume"):
        train(**call)
    other = {**call, "settings": {**settings, "objective.clip_high": 0.3}}
    with pytest.raises(ConfigurationError, match=r"another recipe \(objective.clip_high was 0.2 and is 0.3\)"):
        train(**other, resume=True)
    longer = {**call, "settings": {**settings, "optimisation.updates": 3}}
    assert train(**longer, resume=True) == 0
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["update"] for line in lines] == [0, 1, 2, 3]
    with pytest.raises(ConfigurationError, match="holds no checkpoint"):
        export_checkpoint(tmp_path / "nothing")
