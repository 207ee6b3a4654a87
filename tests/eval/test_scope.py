"""The scope of an evaluation: generated data, parts of a suite, and mistakes that are told before loading."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import arboretum
from arboretum.cli import main
from arboretum.envs.bandit import Bandit
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import make_env
from arboretum.eval.agents import NamedAgent, open_agents
from arboretum.eval.evaluate import evaluate, prepare
from arboretum.eval.models import Model, resolve_model
from arboretum.eval.options import option_name, parse_options
from arboretum.eval.planning import Scope, plan_suite
from arboretum.eval.suite import load_suite, suite_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory of a test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(suite: str, agents: list[Any] | None = None, **options: Any) -> str:
    """Evaluate, and return what is printed."""
    text = StringIO()
    console = Console(file=text, width=160)
    evaluate(suite, agents or [NamedAgent("random")], references=False, console=console, **options)
    return " ".join(text.getvalue().split())


def manifest_of(out: Path) -> Any:
    return json.loads((out / "run.json").read_text(encoding="utf-8"))


# ---------------------------------------------------------------------- generated data


@pytest.mark.parametrize(
    ("env", "options", "name"),
    [
        ("TextALFWorld-v0", {}, "generated homes"),
        ("TextWebShop-v0", {}, "generated shop"),
        ("TextBoxoban-v0", {}, "generated levels"),
        ("TextSearchQA-v0", {}, "generated encyclopedia"),
        ("TextSokoban-v0", {}, None),
        ("TextBlocksworld-v0", {}, None),
        ("TextBandit-v0", {}, None),
    ],
)
def test_environment_without_files_names_its_generated_data(
    env: str, options: dict[str, Any], name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    assert make_env(env, **options).generated_data == name


@pytest.mark.parametrize(
    ("env", "options", "name"),
    [
        ("TextALFWorld-v0", {"split": "valid_unseen"}, None),
        ("TextWebShop-v0", {}, None),
        ("TextBoxoban-v0", {}, None),
        ("TextBoxoban-v0", {"generated": True}, "generated levels"),
        ("TextSearchQA-v0", {}, None),
        ("TextSearchQA-v0", {"dataset": "encyclopedia"}, "generated encyclopedia"),
    ],
)
def test_environment_on_files_is_named_so_only_where_it_generates(
    env: str, options: dict[str, Any], name: str | None, data: Path
) -> None:
    assert make_env(env, **options).generated_data == name


def test_results_on_generated_data_do_not_carry_the_benchmarks_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    shown = run("alfworld", scope=Scope(limit=2))
    assert "generated homes: unseen 50" in shown and "generated homes: unseen 30" in shown
    (out,) = (folder / "runs").iterdir()
    assert "generated_homes" in out.name
    assert manifest_of(out)["data"] == {"unseen 50": "generated homes", "unseen 30": "generated homes"}
    assert "generated homes: unseen 50" in (out / "report.html").read_text(encoding="utf-8")
    lines = json.loads((out / "summary.json").read_text(encoding="utf-8"))["lines"]
    assert all(line["entry"].startswith("generated homes") for line in lines)


def test_real_data_keeps_its_name_and_is_not_mixed_with_generated_data(
    folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "run"
    shown = run("alfworld", scope=Scope(limit=2), out=out)
    assert "generated" not in shown and manifest_of(out)["data"] == {}
    before = (out / "episodes.jsonl").read_bytes()
    monkeypatch.delenv("ARBORETUM_DATA")
    with pytest.raises(
        ConfigurationError, match=r"started on the benchmark's files for 'unseen 50', and now .* generated homes"
    ):
        run("alfworld", scope=Scope(limit=2), out=out)
    assert (out / "episodes.jsonl").read_bytes() == before


# ---------------------------------------------------------------------- parts of a suite


def test_id_of_an_environment_is_a_suite_of_one_on_held_out_tasks(folder: Path) -> None:
    shown = run("TextSokoban-v0", scope=Scope(limit=3))
    assert "TextSokoban-v0" in shown
    (out,) = (folder / "runs").iterdir()
    assert out.name == "TextSokoban-v0-limit3-random"
    (entry,) = manifest_of(out)["suite"]["entries"]
    assert entry == {"name": "TextSokoban-v0", "env": "TextSokoban-v0", "split": "test", "tasks": 3}


@pytest.mark.parametrize(
    ("env", "split"), [("TextALFWorld-v0", "valid_unseen"), ("TextWebShop-v0", "test"), ("TextBandit-v0", "test")]
)
def test_single_environment_is_evaluated_on_its_own_held_out_split(
    env: str, split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    (entry,) = load_suite(env).entries
    assert entry.split == split


class FileBandit(Bandit):
    """Bandit that reads a file for each split, and has none for "test" and "train"."""

    def __init__(self, *, split: str | None = None, **options: Any) -> None:
        if split is not None:
            Path(f"no-such-folder/{split}.json").read_text()
        super().__init__(**options)


def test_split_that_cannot_be_opened_is_not_replaced_by_all_tasks() -> None:
    with pytest.raises(ConfigurationError, match=r"split='test': FileNotFoundError.*Name the tasks with --split"):
        load_suite(f"{__name__}:FileBandit")


class YearBandit(Bandit):
    """Bandit whose splits are numbers."""

    def __init__(self, *, split: int, **options: Any) -> None:
        super().__init__(split={2023: "train", 2024: "test"}[split], **options)


@pytest.mark.parametrize(("option", "limit"), [("max_steps=default", 100), ("max_steps=null", None)])
def test_run_with_a_documented_step_limit_that_is_no_number_is_resumed(
    folder: Path, option: str, limit: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    env = "TextSokoban-v0"
    command = ["eval", env, "--env-arg", option, "--agent", "expert", "--no-references", "--limit", "3"]
    for _ in range(2):
        with pytest.raises(SystemExit) as stopped:
            main([*command, "--label-seconds", "0", "--workers", "1", "--out", "run"])
        assert stopped.value.code == 0, capsys.readouterr().err
    assert manifest_of(folder / "run")["entries"][env]["max_steps"] == limit
    assert manifest_of(folder / "run")["suite"]["entries"][0]["split"] == "test"


def test_numbered_split_is_played_and_named_in_the_report(folder: Path) -> None:
    path = f"{__name__}:YearBandit"
    run(path, env_arg=["split=2024"], out=folder / "run")
    assert manifest_of(folder / "run")["suite"]["description"] == f"{path}, split 2024"
    assert "tasks of the environment, split 2024" in (folder / "run" / "report.html").read_text(encoding="utf-8")


def test_explicit_none_of_split_and_step_limit_reaches_the_environment() -> None:
    """They differ from leaving the arguments out: None removes the limit, and plays the tasks of all splits."""
    env = suite_of("TextSokoban-v0", split=None, max_steps=None).entries[0].make()
    assert env.max_steps is None
    assert list(env.tasks[:9]) == list(make_env("TextSokoban-v0").tasks[:9])
    assert list(env.tasks[:9]) != list(load_suite("TextSokoban-v0").entries[0].make().tasks[:9])


def test_limit_takes_a_prefix_of_the_suites_tasks() -> None:
    suite = load_suite("quick")
    full, part, more = plan_suite(suite), plan_suite(suite, 5), plan_suite(suite, 10**6)
    for entry in suite.entries:
        assert part.tasks[entry.name] == list(full.tasks[entry.name])[:5]
        assert more.tasks[entry.name] == full.tasks[entry.name]
    few = load_suite("TextBlocksworld-v0")
    assert len(plan_suite(few, 3).tasks["TextBlocksworld-v0"]) == 3


def test_seed_and_repeats_are_part_of_a_runs_identity(folder: Path) -> None:
    out = folder / "run"
    run("TextBandit-v0", scope=Scope(limit=2, seed=3, repeats=2), out=out)
    suite = manifest_of(out)["suite"]
    assert suite["seed"] == 3 and suite["entries"][0]["repeats"] == 2
    records = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    assert len(records) == 4 and len({record["seed"] for record in records}) == 4
    for scope, message in (
        (Scope(limit=2, seed=4, repeats=2), r"another suite \(--seed was 3 and is 4\)"),
        (Scope(limit=2, seed=3), r"another suite \(--repeats was 2 and is 1\)"),
        (Scope(limit=1, seed=3, repeats=2), r"another suite \(--limit was 2 and is 1\)"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            run("TextBandit-v0", scope=scope, out=out)
    run("TextBandit-v0", scope=Scope(limit=2, seed=0), out=folder / "zero")
    assert "seed" not in manifest_of(folder / "zero")["suite"]  # The default.
    with pytest.raises(ConfigurationError, match=r"another suite \(--seed was 0 and is 5\)"):
        run("TextBandit-v0", scope=Scope(limit=2, seed=5), out=folder / "zero")
    for env_arg, message in (
        (["split=train"], r"another suite \(--split was 'test' and is 'train'\)"),
        (["reverse=true"], r"another suite \(--env-arg reverse was None and is True\)"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            run("TextBandit-v0", scope=Scope(limit=2, seed=0), env_arg=env_arg, out=folder / "zero")
    run("quick", scope=Scope(limit=2), out=folder / "quick")
    with pytest.raises(ConfigurationError, match=r"--limit, or entries\[1\]\.tasks of the suite, was 2 and is 3"):
        run("quick", scope=Scope(limit=3), out=folder / "quick")
    for scope in (Scope(limit=2), Scope(limit=2, seed=1), Scope(limit=2, repeats=2)):
        run("TextBandit-v0", scope=scope)
    assert len(list((folder / "runs").iterdir())) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit": 0}, "limit must be at least 1"),
        ({"timeout": 0.0}, "timeout must be above 0"),
        ({"step_timeout": -1.0}, "step_timeout must be above 0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"repeats": 0}, "repeats must be at least 1"),
    ],
)
def test_impossible_scope_is_rejected(
    settings: dict[str, Any], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        arboretum.evaluate("TextBandit-v0", **settings)
    options = [text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    with pytest.raises(SystemExit, match="2"):
        main(["eval", "TextBandit-v0", *options])
    setting, _, rest = message.partition(" ")
    assert capsys.readouterr().err.startswith(f"arboretum: {option_name(setting)} {rest}")


# ---------------------------------------------------------------------- models


def test_model_names_its_provider_or_a_folder(folder: Path) -> None:
    (folder / "runs" / "a" / "model").mkdir(parents=True)
    assert resolve_model("openai/gpt-4.1-mini") == ("openai", "gpt-4.1-mini")
    assert resolve_model("vllm/Qwen/Qwen2.5-3B-Instruct") == ("vllm", "Qwen/Qwen2.5-3B-Instruct")
    assert resolve_model("transformers/runs/a/model") == ("transformers", "runs/a/model")
    assert resolve_model("runs/a/model") == ("transformers", "runs/a/model")
    assert resolve_model("sapling") == ("transformers", "sapling")
    assert resolve_model("anything/at all", "openai") == ("openai", "anything/at all")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("opnai/gpt-4.1", r"did you mean openai/gpt-4\.1\?"),
        ("nope/nope", "write transformers/nope/nope, "),
        ("llama3:8b", "write transformers/llama3:8b, "),
        ("Qwen/Qwen2.5-0.5B", r"write transformers/Qwen/Qwen2\.5-0\.5B, vllm/Qwen"),
        ("saplng", r"did you mean sapling\?"),
        ("gpt-4.1", r"write transformers/gpt-4\.1, "),
        ("runs/grpo/nothing/model", r"there is no such folder"),
        ("./nothing", r"there is no such folder .* has no nothing"),
        ("http://localhost:8000/v1", r"an address belongs to --base-url"),
    ],
)
def test_model_that_names_neither_is_refused_with_the_nearest(model: str, message: str, folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"names neither a folder nor a provider; {message}"):
        resolve_model(model)


def test_folder_without_a_model_is_refused(folder: Path) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="holds no model"):
        Model(*resolve_model("empty"))
    with pytest.raises(ConfigurationError, match="there is no such folder"):
        Model(*resolve_model("transformers/./nothing"))


@pytest.fixture
def no_loading(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make loading any model an error of the test."""
    pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
    from arboretum.agents.engines.local import load

    def fail(*arguments: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(load, "load_model", fail)
    yield


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize(
    ("suite", "agents", "options", "message"),
    [
        ("qick", ["think"], {}, "unknown suite or environment 'qick'; did you mean quick"),
        ("TextSokobn-v0", ["think"], {}, "did you mean TextSokoban-v0"),
        ("nothing.yaml", ["think"], {}, "cannot be read"),
        ("TextSokoban-v0", ["think"], {}, "choose their number with --limit (in Python limit=)"),
        ("quick", ["thnk"], {}, "unknown agent 'thnk'; did you mean think"),
        ("quick", ["think", "think"], {}, "named twice"),
        ("quick", ["random"], {}, "--model is for language agents"),
        ("quick", ["think"], {"dialogue": "thinc"}, "unknown dialogue 'thinc'; did you mean think"),
        ("quick", ["think"], {"dialogue_arg": ["max_turn=3"]}, "did you mean max_turns"),
        ("quick", ["think"], {"engine_arg": ["devce=cpu"]}, "did you mean device"),
        ("quick", ["think"], {"template": "qwen33"}, "unknown chat template 'qwen33'; did you mean qwen3"),
        ("quick", ["think"], {"examples": -1}, "examples must be at least 0"),
        ("boxoban", ["think"], {}, "requires level files, and there are none"),
        ("hotpotqa", ["think"], {}, "was not found; set ARBORETUM_DATA"),
        ("env.yaml", ["think"], {}, "suite env, entry 'A': unknown environment 'TextBandt-v0'"),
        ("kwargs.yaml", ["think"], {}, "suite kwargs, entry 'A': unknown option of TextSokoban-v0 'siz'"),
        ("sampling.yaml", ["think"], {}, "suite sampling, entry 'A': unknown sampling setting 'temprature'"),
        ("dialogue.yaml", ["think"], {}, "suite dialogue, entry 'A': unknown setting of dialogue think 'turns'"),
    ],
)
def test_mistake_is_told_before_a_model_is_loaded(
    suite: str,
    agents: list[str],
    options: dict[str, Any],
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    for name, entry in {
        "env": "{name: A, env: TextBandt-v0}",
        "kwargs": "{name: A, env: TextSokoban-v0, tasks: 2, kwargs: {siz: 3}}",
        "sampling": "{name: A, env: TextSokoban-v0, tasks: 2, sampling: {temprature: 3}}",
        "dialogue": "{name: A, env: TextSokoban-v0, tasks: 2, dialogue: {turns: 3}}",
    }.items():
        (folder / f"{name}.yaml").write_text(f"entries:\n  - {entry}\n")
    with pytest.raises(ConfigurationError) as caught, open_agents(agents, model="sapling", **options) as factories:
        run(suite, list(factories))
    assert message in str(caught.value)
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("dialogue", [None, "no_think"])
def test_warning_names_the_dialogue_that_the_model_was_taught(
    dialogue: str | None, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_agents(["direct"], model="sapling", dialogue=dialogue) as factories:
        prepare(load_suite("TextFrozenLake-v0"), factories, Scope(limit=1), references=False)
    said = (
        "direct:sapling plays in dialogue 'plain', but the model was taught 'no_think': choose --dialogue no_think"
    )
    assert [said in message for message in caplog.messages] == ([True] if dialogue is None else [])


def test_unknown_sampling_setting_is_refused_without_a_language_agent(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = "{name: A, env: TextSokoban-v0, tasks: 2}"
    (folder / "mine.yaml").write_text(f"sampling: {{temprature: 3}}\nentries:\n  - {entry}\n")
    with pytest.raises(SystemExit, match="2"):
        main(["eval", "mine.yaml"])
    assert "suite mine, entry 'A': unknown sampling setting 'temprature'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "0"], "--temperature requires a model; add --model"),
        (["--max-tokens", "9", "--examples", "0"], "--examples and --max-tokens require a model"),
        (["--in-flight", "0"], "--in-flight must be at least 1"),
    ],
)
def test_setting_without_effect_is_refused(
    options: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["eval", "TextBandit-v0", "--limit", "1", *options])
    assert capsys.readouterr().err.startswith(f"arboretum: {message}")


def test_tasks_of_one_name_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their episodes replaced each other, so that the run stayed incomplete."""
    before = Bandit.__init__

    def twice(self: Bandit, *arguments: Any, **options: Any) -> None:
        before(self, *arguments, **options)
        self.tasks = [*self.tasks, self.tasks[0]]

    monkeypatch.setattr(Bandit, "__init__", twice)
    with pytest.raises(ConfigurationError, match="2 tasks of TextBandit-v0 have the name"):
        run("TextBandit-v0")


@pytest.mark.parametrize("value", ["!!int one", "!!timestamp 5", "[" * 5000])
def test_value_that_is_not_yaml_is_told_in_one_sentence(value: str) -> None:
    with pytest.raises(ConfigurationError, match="the value is not YAML"):
        parse_options([f"x={value}"], "--env-arg")


@pytest.mark.parametrize("value", ["2024-01-31", "2024-13-45"])
def test_dates_are_texts(value: str) -> None:
    """The second one, of no month of the year, was a traceback; the first one cannot be written to JSON."""
    assert parse_options([f"x={value}"], "--env-arg") == {"x": value}


def test_environment_that_cannot_open_its_tasks_is_told_in_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Bandit, task: str) -> None:
        raise ConnectionError("no bandit answers")

    monkeypatch.setattr(Bandit, "_open", fail)
    with pytest.raises(ConfigurationError, match="cannot open its tasks: ConnectionError: no bandit answers"):
        run("TextBandit-v0")


def test_finished_run_is_shown_without_loading_the_model(folder: Path, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")

    def show() -> str:
        with open_agents(["think"], model="sapling", max_tokens=4) as agents:
            return run("TextBandit-v0", list(agents), scope=Scope(limit=2), out=folder / "run")

    first = show()
    assert "think:sapling" in first
    request.getfixturevalue("no_loading")
    assert "2 of 2 episodes are already stored" in show()


@pytest.mark.heavy
def test_loading_a_local_model_prints_no_bar(folder: Path) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
    command = [sys.executable, "-m", "arboretum", "eval", "TextBandit-v0", "--limit", "1", "--no-references"]
    command += ["--agent", "no_think", "--model", "sapling", "--max-tokens", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "no_think:sapling" in done.stdout
    assert done.stderr == ""


def test_engine_that_cannot_be_made_is_told_before_an_episode_is_played(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiohttp", reason="needs the extra openai")
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    out = folder / "run"
    with (
        pytest.raises(ConfigurationError, match="OpenAI's API needs a key"),
        open_agents(["think"], model="openai/gpt-4.1-mini") as agents,
        Path(os.devnull).open("w") as sink,
    ):
        evaluate("TextBandit-v0", agents, out=out, console=Console(file=sink))
    assert not (out / "episodes.jsonl").read_bytes()
