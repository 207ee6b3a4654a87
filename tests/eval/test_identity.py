"""Runs of different models, or of different settings of one model, are never mixed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import arboretum
from arboretum.agents.base import Agent, Reply, Seat
from arboretum.agents.dialogue.base import Dialogue
from arboretum.agents.dialogue.plain import Plain
from arboretum.agents.dialogue.think import Think
from arboretum.agents.language import LanguageAgent
from arboretum.envs import checksums
from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.eval.agents import open_agents
from arboretum.eval.evaluate import evaluate
from arboretum.eval.identity import digest_model, identify_agent, identify_model, model_label
from support.scripted_engine import ScriptedEngine

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
    options = {"api_key": "secret", "headers": {"authorization": "secret"}, "cost_limit": 5}
    options["extra"] = {"top_k": 3, "max_tokens": 5, "user": {"api_key": "secret", "token": "secret"}}
    options["extra"]["routes"] = ["https://user:secret@models.example/v2"]
    identity = identify_model("openai", "gpt", url, options)
    assert identity == {
        "engine": "openai",
        "model": "gpt",
        "server": "https://models.example:8443/v1",
        "options": {
            "extra": {
                "top_k": 3,
                "max_tokens": 5,
                "user": {"api_key": "***", "token": "***"},
                "routes": ["https://models.example/v2"],
            }
        },
    }


def test_run_is_not_resumed_against_another_server_of_the_environment_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiohttp", reason="needs the extra openai")
    from arboretum.eval.bench.endpoint import Endpoint

    def play(**options: Any) -> Any:
        return arboretum.evaluate(
            "TextBandit-v0", "direct", model="openai/m", limit=1, out=tmp_path / "out", **options
        )

    with Endpoint().running() as endpoint:
        address = endpoint.url
        monkeypatch.setenv("OPENAI_BASE_URL", address.replace("://", "://user:secret@") + "?key=secret")
        assert play().complete
        assert endpoint.requests
    assert "secret" not in (tmp_path / "out" / "run.json").read_text(encoding="utf-8")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://user:secret@other.example/v1")
    expected = f"another direct:m (server was '{address}' and is 'http://other.example/v1')"
    with pytest.raises(ConfigurationError, match=re.escape(expected)):
        play()
    assert play(base_url=address).complete  # the same server
    monkeypatch.delenv("OPENAI_BASE_URL")
    with pytest.raises(ConfigurationError, match=re.escape(f"(server was '{address}' and is None)")):
        play()


def test_edited_template_is_another_agent(tmp_path: Path) -> None:
    path = tmp_path / "my.jinja"
    identities = []
    for text in ("{{ messages }}", "{{ messages[0] }}"):
        path.write_text(text, encoding="utf-8")
        identities.append(identify_agent(Think(), {}, {}, {"template": str(path)}))
    assert identities[0] != identities[1]
    assert identify_agent(Think(), {}, {}, {"template": "qwen3"})["settings"] == {"template": "qwen3"}


def test_metadata_of_a_model_does_not_change_its_digest(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    digests = []
    for config in ({"hidden_size": 4}, {"arboretum_dialogue": "tags", "hidden_size": 4}, {"hidden_size": 8}):
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        digests.append(digest_model(tmp_path))
    assert digests[0] == digests[1] != digests[2]


def test_verified_weights_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARBORETUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(checksums, "ALWAYS_READ", 0)
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        (folder / name).write_text("{}", encoding="utf-8")
    digest = digest_model(folder)
    checksums.write_checksums(folder)
    checksums.verify_checksums(folder, "fix it.")
    with monkeypatch.context() as without_reading:
        for module, function in ((hashlib, "file_digest"), (checksums, "_digest")):
            without_reading.setattr(module, function, lambda *_: pytest.fail("a verified file was read"))
        assert digest_model(folder) == digest
    (folder / "model.safetensors").write_text("[]", encoding="utf-8")
    with pytest.raises(DataError, match="is damaged or was changed"):
        digest_model(folder)


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


class Fixed(Agent):
    """Agent of a caller, which always takes the same action."""

    name = "fixed"

    def __init__(self, action: Any) -> None:
        self.action = action

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        return [Reply((str(self.action),)) for _ in seats]


def play_given(agent: Agent, out: Path) -> Any:
    return arboretum.evaluate("TextBandit-v0", agent, limit=2, out=out)


def test_given_agent_of_another_state_is_refused_in_the_folder_of_a_run(tmp_path: Path) -> None:
    play_given(Fixed("A"), tmp_path)
    assert play_given(Fixed("A"), tmp_path).complete
    message = (
        r"another fixed \(state\.action was 'A' and is 'B'\).*Where that attribute decides no reply.*`identity`"
    )
    with pytest.raises(ConfigurationError, match=message):
        play_given(Fixed("B"), tmp_path)


def test_given_agent_that_nothing_identifies_resumes_only_its_own_run(tmp_path: Path) -> None:
    agent = Fixed(object())
    play_given(agent, tmp_path)
    assert play_given(agent, tmp_path).complete
    with pytest.raises(ConfigurationError, match="was started with another fixed"):
        play_given(Fixed(object()), tmp_path)
    for _ in range(2):
        named = Fixed(object())
        named.identity = "version 3"  # type: ignore[attr-defined]
        assert play_given(named, tmp_path / "named").complete


class Terse(Plain):
    """Dialogue of a caller, with the name of the built-in `plain`."""


class Terser(Terse):
    """Another one of the same name."""


def test_given_agents_of_dialogues_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    def play(dialogue: Dialogue) -> Any:
        return play_given(LanguageAgent("mine", ScriptedEngine(lambda *_: "A"), dialogue), tmp_path)

    play(Terse())
    assert play(Terse()).complete
    for other, value in ((Plain(), "None"), (Terser(), f"'{__name__}:Terser'")):
        with pytest.raises(
            ConfigurationError, match=rf"another \S+ \(dialogue\.class was '{__name__}:Terse' and is {value}"
        ):
            play(other)


def test_given_language_agents_are_told_apart_by_dialogue_sampling_and_weights(
    models: list[Path], tmp_path: Path
) -> None:
    from arboretum.agents.engines.transformers import TransformersEngine
    from arboretum.agents.registry import make_agent

    engines = [TransformersEngine(model, name="transformers:m") for model in models]

    def agent(engine: int = 0, kind: str = "think", **sampling: Any) -> Agent:
        made = make_agent(kind, engine=engines[engine], sampling={"max_tokens": 4, **sampling})
        made.name = "mine"
        return made

    play_given(agent(), tmp_path)
    assert play_given(agent(), tmp_path).complete
    for other, place in (
        (agent(kind="no_think"), "dialogue"),
        (agent(temperature=0.5), r"sampling\.temperature"),
        (agent(engine=1), "weights"),
    ):
        with pytest.raises(ConfigurationError, match=rf"another mine \({place}"):
            play_given(other, tmp_path)

    def name(engine: Any) -> None:
        arboretum.evaluate("TextBandit-v0", "think", model=engine, limit=2, max_tokens=4, out=tmp_path / "named")

    name(engines[0])
    with pytest.raises(ConfigurationError, match=r"another think:m \(weights"):
        name(engines[1])
