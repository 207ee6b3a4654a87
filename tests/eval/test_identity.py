"""Runs of different models, or of different settings of one model, are never mixed."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arboretum.envs.errors import ConfigurationError
from arboretum.eval.agents import open_agents
from arboretum.eval.evaluate import evaluate
from arboretum.eval.identity import identify_model, model_label

SUITE = "name: small\nentries:\n  - {name: Bandit, env: TextBandit-v0, split: test, tasks: 2}\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models with different weights in folders of the same name, as training writes them."""
    pytest.importorskip("transformers", reason="needs transformers: pip install 'arboretum-rl[lm]'")
    from arboretum.eval.bench.tiny import make_tiny_model

    root = tmp_path_factory.mktemp("runs")
    return [Path(make_tiny_model(root / f"grpo{seed}" / "model", seed=seed)) for seed in (1, 2)]


def run(folder: Path, model: Path, out: Path | None = None, **settings: Any) -> str:
    """Evaluate a model as the command line does, and return what is printed."""
    suite = folder / "small.yaml"
    suite.write_text(SUITE, encoding="utf-8")
    text = StringIO()
    with open_agents(["think"], engine="transformers", model=str(model), max_tokens=8, **settings) as agents:
        evaluate(str(suite), agents, out=out, references=False, console=Console(file=text, width=100))
    return text.getvalue()


def stored(folder: Path) -> int:
    return len((folder / "episodes.jsonl").read_text(encoding="utf-8").splitlines())


def test_models_in_folders_of_one_name_have_runs_of_their_own(
    models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = [run(tmp_path, model) for model in models]
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) == 2 and all(stored(folder) == 2 for folder in folders)
    assert "think:grpo1" in shown[0] and "think:grpo2" in shown[1]
    run(tmp_path, models[0])
    assert sorted((tmp_path / "runs").iterdir()) == folders and stored(folders[0]) == 2
    run(tmp_path, models[0], temperature=0.5)
    assert len(list((tmp_path / "runs").iterdir())) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.5}, r"sampling\.temperature was None and is 0\.5"),
        ({"dialogue": "no_think"}, r"dialogue\.\w+ was|settings\.dialogue_name was None and is 'no_think'"),
        ({"template": "qwen3"}, r"settings\.template was None and is 'qwen3'"),
        ({"engine_arg": ["dtype=bfloat16"]}, r"options was None"),
    ],
)
def test_another_setting_in_the_folder_of_a_run_is_refused_by_name(
    models: list[Path], tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    out = tmp_path / "out"
    run(tmp_path, models[0], out)
    before = (out / "episodes.jsonl").read_bytes()
    with pytest.raises(ConfigurationError, match=rf"out: was started with another think:grpo1 \(({message})"):
        run(tmp_path, models[0], out, **settings)
    assert (out / "episodes.jsonl").read_bytes() == before
    run(tmp_path, models[0], out, engine_arg=["max_batch=2"])  # changes speed only
    assert (out / "episodes.jsonl").read_bytes() == before


def test_retrained_weights_in_the_same_folder_are_refused(models: list[Path], tmp_path: Path) -> None:
    import shutil

    model = tmp_path / "grpo" / "model"
    shutil.copytree(models[0], model)
    run(tmp_path, model, tmp_path / "out")
    shutil.rmtree(model)
    shutil.copytree(models[1], model)
    with pytest.raises(ConfigurationError, match=r"another think:grpo \(weights was"):
        run(tmp_path, model, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))
    assert manifest["identities"]["think:grpo"]["model"] == str(model)


def test_secrets_and_settings_without_effect_are_not_stored() -> None:
    url = "https://user:secret@models.example:8443/v1?key=secret"
    options = {"api_key": "secret", "headers": {"authorization": "secret"}, "cost_limit": 5, "extra": {"top_k": 3}}
    identity = identify_model("openai", "gpt", url, options)
    assert identity == {
        "engine": "openai",
        "model": "gpt",
        "server": "https://models.example:8443/v1",
        "options": {"extra": {"top_k": 3}},
    }


@pytest.mark.parametrize(
    ("model", "label"),
    [
        ("runs/grpo1/model", "grpo1"),
        ("Qwen/Qwen2.5-0.5B", "Qwen2.5-0.5B"),
        ("sapling", "sapling"),
        ("model", "model"),
    ],
)
def test_label_of_a_model_names_its_run(model: str, label: str) -> None:
    assert model_label(model) == label


def test_budgets_that_the_references_do_not_have_are_printed(models: list[Path], tmp_path: Path) -> None:
    shown = run(tmp_path, models[0], tmp_path / "out", dialogue_arg=["max_turns=5", "max_actions=10"])
    note = "think:grpo1 has at most 5 turns and 10 actions per episode in Bandit"
    assert note in " ".join(shown.split())
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert any(note in one for one in summary["notes"])
    assert note in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "at most" not in run(tmp_path, models[0], tmp_path / "without")
