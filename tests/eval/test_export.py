"""Exports of a run: every format against the stored episodes, read by the tools that the format is for."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arboretum.agents.dialogue import make_dialogue
from arboretum.agents.engines.base import Message
from arboretum.agents.episode import Episode, Move, Turn
from arboretum.agents.episode_chat import EpisodeChat
from arboretum.agents.exchange import Exchange
from arboretum.cli import main
from arboretum.envs.registry import make_env
from arboretum.eval.agents import NamedAgent
from arboretum.eval.api import evaluate as run_evaluation
from arboretum.eval.evaluate import evaluate
from arboretum.eval.export import command, tables
from arboretum.eval.export.atif import _token_metrics
from arboretum.eval.export.conversation import conversation, segments
from arboretum.eval.export.source import describe_left_out
from arboretum.eval.store import EpisodeKey, Result, Store, encode_episode, read_episode, read_results
from arboretum.eval.texts import TextStore
from support.neighbours import neighbour
from support.scripted_engine import ScriptedEngine


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run of two agents, in which one further episode broke off."""
    folder = tmp_path_factory.mktemp("runs")
    suite = folder / "s.yaml"
    suite.write_text("entries:\n  - {name: Lake, env: TextFrozenLake-v0, split: test, tasks: 6, repeats: 3}\n")
    with open(os.devnull, "w") as sink:
        agents = [NamedAgent("random"), NamedAgent("expert")]
        out = folder / "run"
        assert evaluate(str(suite), agents, out=out, references=False, console=Console(file=sink)) == 0
    key = next(key for key in read_results(out).latest if key.agent == "random")
    result = read_results(out).latest[key]
    broken = read_episode(out, result)
    broken.error, broken.trace, broken.success = "the lake is gone \ud800", "Traceback …", False
    with (out / "episodes.jsonl").open("ab") as file:
        file.write(encode_episode(key, broken).line)
    return out


@pytest.fixture
def language_run(tmp_path: Path) -> Path:
    """Folder of a run of the expert and of a language agent."""
    return shutil.copytree(Path(__file__).parent / "stored_runs" / "schema_1", tmp_path / "language")


def of_sapling(run: Path) -> list[Result]:
    return [result for key, result in results(run).items() if key.agent == "direct:sapling"]


def export(run: Path, to: str, out: Path, *options: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", str(run), "--to", to, "--out", str(out), *options])
    assert ended.value.code == 0


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["export", *arguments])
    assert ended.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def results(run: Path) -> dict[EpisodeKey, Result]:
    return read_results(run).latest


# ---------------------------------------------------------------------- tables


def test_csv_has_one_row_per_episode(run: Path, tmp_path: Path) -> None:
    export(run, "csv", tmp_path / "e.csv")
    with (tmp_path / "e.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(results(run)) == 36
    for row, (key, result) in zip(rows, results(run).items(), strict=True):
        assert (row["agent"], row["entry"], row["task"], int(row["repeat"])) == key
        assert float(row["reward"]) == result.total_reward and int(row["seed"]) == result.seed
        assert row["success"] == str(result.success) and int(row["steps"]) == result.steps
    assert [row["error"] for row in rows if row["error"]] == ["the lake is gone ?"]


def test_csv_has_a_column_per_detail(language_run: Path, tmp_path: Path) -> None:
    export(language_run, "csv", tmp_path / "e.csv")
    with (tmp_path / "e.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    counts = [int(row["details.prompt_tokens"]) for row in rows if row["agent"] == "direct:sapling"]
    expected = [
        r.details["prompt_tokens"] for k, r in results(language_run).items() if k.agent == "direct:sapling"
    ]
    assert counts == expected and sum(counts) == 254  # The note of the run's table when it was played.


@pytest.mark.heavy
def test_parquet_is_a_conversational_data_set(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(tables, "ROWS", 10)
    export(run, "parquet", tmp_path / "e.parquet")
    table = parquet.read_table(tmp_path / "e.parquet")
    assert parquet.ParquetFile(tmp_path / "e.parquet").num_row_groups == 4
    assert str(table.schema.field("messages").type) == "list<element: struct<role: string, content: string>>"
    rows = table.to_pylist()
    for row, result in zip(rows, results(run).values(), strict=True):
        episode = read_episode(run, result)
        system, *rest = row["messages"]
        assert system["role"] == "system" and "frozen lake" in system["content"]
        assert [message["content"] for message in rest[::2]] == [turn.observation for turn in episode.turns]
        assert [message["content"] for message in rest[1::2]] == [turn.reply for turn in episode.turns]
        assert {message["role"] for message in rest[1::2]} == {"assistant"}
        assert row["actions"] == [move.action for turn in episode.turns for move in turn.moves]
        assert sum(row["rewards"]) == row["reward"] == result.total_reward
        assert (row["seed"], row["success"], row["task"]) == (result.seed, result.success, result.key.task)


@pytest.mark.heavy
def test_parquet_is_read_by_datasets(run: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    export(run, "parquet", tmp_path / "e.parquet")
    data = datasets.load_dataset("parquet", data_files=str(tmp_path / "e.parquet"), cache_dir=str(tmp_path / "c"))
    assert data["train"].num_rows == 36
    assert data["train"][0]["messages"][0]["role"] == "system"


# ---------------------------------------------------------------------- data for training


def test_sft_has_the_successful_episodes_as_the_model_saw_them(language_run: Path, tmp_path: Path) -> None:
    export(language_run, "sft", tmp_path / "sft.jsonl")
    rows = [row for row in lines(tmp_path / "sft.jsonl") if row["agent"] == "direct:sapling"]
    stored = [read_episode(language_run, result) for result in of_sapling(language_run)]
    solved = [episode for episode in stored if episode.success]
    assert len(rows) == len(solved) > 0
    for row, episode in zip(rows, solved, strict=True):
        last = episode.exchanges[-1]
        expected = [*last.messages, Message("assistant", str(last.answer))]
        assert [(message["role"], message["content"]) for message in row["messages"]] == expected
        assert row["reward"] == 1.0 and row["task"] == episode.task


def test_sft_leaves_out_failures_unless_all_are_asked_for(run: Path, tmp_path: Path) -> None:
    export(run, "sft", tmp_path / "solved.jsonl")
    export(run, "sft", tmp_path / "all.jsonl", "--all-episodes")
    stored = results(run).values()
    assert len(lines(tmp_path / "solved.jsonl")) == sum(result.success for result in stored)
    assert len(lines(tmp_path / "all.jsonl")) == sum(result.error is None for result in stored) == 35


def test_shortened_history_gives_a_conversation_per_request() -> None:
    system = Message("system", "s")

    def exchange(turn: int, *contents: str) -> Exchange:
        roles = ("user", "assistant")
        messages = [Message(roles[n % 2], content) for n, content in enumerate(contents)]
        return Exchange(turn, "turn", (system, *messages), reply=f"r{turn}", finish="stop")

    turns = [Turn(f"o{n}", f"r{n}", moves=[Move("a", 0.0, True, True)]) for n in range(3)]
    episode = Episode("E", "t", 0, "direct", turns=turns)
    episode.exchanges = [exchange(0, "o0"), exchange(1, "o0", "r0", "o1"), exchange(2, "o2")]
    first, second = segments(episode)
    assert [content for _, content in first] == ["s", "o0", "r0", "o1", "r1"]
    assert [content for _, content in second] == ["s", "o2", "r2"]
    assert [content for _, content in conversation(episode)] == ["s", "o0", "r0", "o1", "r1", "o2", "r2"]


def stored_outcomes(folder: Path, outcomes: list[tuple[list[str], float]]) -> Path:
    """Write a run of one task whose episodes have the given actions and returns."""
    from arboretum.eval.suite import suite_of

    suite = suite_of("TextFrozenLake-v0")
    (entry,) = suite.entries
    data = suite.to_dict()
    data["entries"][0]["repeats"] = len(outcomes)
    store = Store(folder, {"suite": data, "agents": ["a"]})
    for repeat, (actions, reward) in enumerate(outcomes):
        key = EpisodeKey("a", entry.name, "test/0", repeat)
        # The observation tells the actions so far, as a deterministic environment's does.
        turns = [
            Turn("at " + " ".join(actions[:n]), action, moves=[Move(action, 0.0, True, True)])
            for n, action in enumerate(actions)
        ]
        turns[-1].moves[0].reward = reward
        seed = suite.episode_seed(entry, key.task, repeat)
        episode = Episode("TextFrozenLake-v0", key.task, seed, "a", success=reward == 1, turns=turns)
        store.append(encode_episode(key, episode))
    store.close()
    return folder


# ---------------------------------------------------------------------- trajectories and logs


def test_atif_has_a_step_per_turn_with_the_observation_after_it(run: Path, tmp_path: Path) -> None:
    export(run, "atif", tmp_path / "t.jsonl")
    for record, result in zip(lines(tmp_path / "t.jsonl"), results(run).values(), strict=True):
        episode = read_episode(run, result)
        assert record["schema_version"] == "ATIF-v1.8" and record["agent"]["name"] == result.key.agent
        assert [step["step_id"] for step in record["steps"]] == list(range(1, len(episode.turns) + 3))
        system, user, *steps = record["steps"]
        assert (system["source"], user["source"]) == ("system", "user")
        after = [*(turn.observation for turn in episode.turns[1:]), episode.final_observation]
        for step, turn, observation in zip(steps, episode.turns, after, strict=True):
            assert step["source"] == "agent" and step["message"] == turn.reply
            calls = [call["arguments"]["action"] for call in step["tool_calls"]]
            assert calls == [move.action for move in turn.moves]
            (shown,) = step["observation"]["results"]
            assert shown["content"] == observation
            assert shown["source_call_id"] == step["tool_calls"][-1]["tool_call_id"]
        ids = [call["tool_call_id"] for step in steps for call in step["tool_calls"]]
        assert len(ids) == len(set(ids))
        assert record["final_metrics"]["total_steps"] == len(record["steps"])


def test_atif_token_ids_of_a_prompt_are_all_that_the_model_received(language_run: Path, tmp_path: Path) -> None:
    export(language_run, "atif", tmp_path / "atif")
    files = sorted((tmp_path / "atif").rglob("*.json"))
    records = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    assert len(files) == len(results(language_run)) == 4
    record = next(record for record in records if record["agent"]["name"] == "direct:sapling")
    assert record["agent"]["model_name"] == "sapling"
    steps = [step for step in record["steps"] if step["source"] == "agent"]
    before: list[int] = []
    for step in steps:
        metrics = step["metrics"]
        assert metrics["prompt_token_ids"][: len(before)] == before
        assert len(metrics["completion_token_ids"]) == len(metrics["logprobs"]) == metrics["completion_tokens"]
        before = metrics["prompt_token_ids"] + metrics["completion_token_ids"]
    assert (
        sum(step["metrics"]["completion_tokens"] for step in steps)
        <= record["final_metrics"]["total_completion_tokens"]
    )


def test_atif_of_several_trials_has_the_instructions_of_the_first(tmp_path: Path) -> None:
    """Between its trials `reflexion` asks for a reflection, with instructions of its own."""
    engine = ScriptedEngine(
        lambda request, _: "Plan: go elsewhere" if "reflection" in request.conversation else "Up"
    )
    options = {"trials": 2}
    run_evaluation("TextSokoban-v0", "reflexion", model=engine, limit=1, agent_args=options, out=tmp_path / "run")
    export(tmp_path / "run", "atif", tmp_path / "t.jsonl")
    record = next(one for one in lines(tmp_path / "t.jsonl") if one["agent"]["name"].startswith("reflexion"))
    system = record["steps"][0]["message"]
    assert "Sokoban" in system and "You tried a task" not in system


def test_completion_of_a_turn_with_several_replies_is_the_last() -> None:
    turn = Turn("o", "r", token_ids=[7, 8, 1, 2, 9, 3], loss_mask=[0, 0, 1, 1, 0, 1], logprobs=[0.0] * 5 + [-0.5])
    context = [5]
    metrics = _token_metrics(turn, context)
    assert metrics["prompt_token_ids"] == [5, 7, 8, 1, 2, 9] and metrics["completion_token_ids"] == [3]
    assert metrics["logprobs"] == [-0.5] and context == [5, 7, 8, 1, 2, 9, 3]


CHECK_INSPECT = """
import json, sys
from pathlib import Path
from inspect_ai.log import list_eval_logs, read_eval_log
found = []
for info in list_eval_logs(sys.argv[1]):
    log = read_eval_log(info)
    for sample in log.samples:
        found.append([log.eval.metadata["agent"], log.eval.task, sample.id, sample.epoch,
            None if sample.scores is None else sample.scores["success"].value == "C",
            None if sample.scores is None else sample.scores["reward"].value,
            [[m.role, m.text] for m in sample.messages], sample.error and sample.error.message,
            log.results.scores[0].metrics["accuracy"].value])
print(json.dumps(found))
"""


@pytest.mark.heavy
def test_inspect_reads_its_logs(run: Path, tmp_path: Path) -> None:
    inspect = neighbour("inspect", tmp_path / "packages")
    logs = tmp_path / "logs"
    inspect.run("python", "-m", "arboretum.cli", "export", run, "--to", "inspect", "--out", logs, cwd=tmp_path)
    found = json.loads(inspect.run("python", "-c", CHECK_INSPECT, logs, cwd=tmp_path))
    assert len(found) == 36
    stored = results(run)
    for agent, entry, task, epoch, success, reward, messages, error, accuracy in found:
        result = stored[EpisodeKey(agent, entry, task, epoch - 1)]
        assert success == (None if result.error else result.success)
        assert reward == (None if result.error else result.total_reward)
        assert (error is None) == (result.error is None)
        episode = read_episode(run, result)
        assert [text for role, text in messages if role == "assistant"] == [turn.reply for turn in episode.turns]
        complete = [r for k, r in stored.items() if k.agent == agent and r.error is None]
        assert accuracy == pytest.approx(sum(r.success for r in complete) / len(complete))
    # `inspect view` serves what `inspect view bundle` writes.
    bundle = ["view", "bundle", "--log-dir", logs, "--output-dir", tmp_path / "site"]
    inspect.run("inspect", *bundle, cwd=tmp_path)
    assert (tmp_path / "site" / "index.html").is_file()


@pytest.mark.heavy
def test_inspect_reads_episodes_with_function_calls(run: Path, tmp_path: Path) -> None:
    inspect = neighbour("inspect", tmp_path / "packages")
    run = shutil.copytree(run, tmp_path / "run")
    key, result = next((key, result) for key, result in results(run).items() if key.agent == "expert")
    chat = EpisodeChat(make_env("TextFrozenLake-v0", split="test"), make_dialogue("tools"))
    chat.open(key.task, result.seed)
    while not chat.done:
        (action,) = (chat.env.expert_actions() or ["Up"])[:1]
        chat.hear(chat.dialogue.bind(chat.env).demonstrate("", action))
    encoded = encode_episode(key, chat.episode)
    TextStore(run).add(encoded.texts)
    with (run / "episodes.jsonl").open("ab") as file:
        file.write(encoded.line)
    logs = tmp_path / "logs"
    inspect.run("python", "-m", "arboretum.cli", "export", run, "--to", "inspect", "--out", logs, cwd=tmp_path)
    found = json.loads(inspect.run("python", "-c", CHECK_INSPECT, logs, cwd=tmp_path))
    messages = [messages for *_, messages, _, _ in found if any(role == "tool" for role, _ in messages)]
    assert len(messages) == 1
    shown = [text for role, text in messages[0] if role == "tool"]
    assert shown == [turn.observation for turn in chat.episode.turns[1:]]


# ---------------------------------------------------------------------- refusals


def test_existing_output_is_not_overwritten(run: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "e.csv").write_text("mine")
    (tmp_path / "atif").mkdir()
    for to, name in (("csv", "e.csv"), ("atif", "atif")):
        message = refused(capsys, str(run), "--to", to, "--out", str(tmp_path / name))
        assert f"{name}: exists; delete it, or choose another --out." in message
    assert (tmp_path / "e.csv").read_text() == "mine"


def test_failed_export_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Any, path: Path) -> int:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(command._KINDS, "csv", command._KINDS["csv"]._replace(write=fail))
    with pytest.raises(SystemExit) as ended:
        main(["export", str(run), "--to", "csv", "--out", str(tmp_path / "e.csv")])
    assert ended.value.code == 1 and list(tmp_path.iterdir()) == []


def test_folders_without_an_evaluation_are_refused(tmp_path: Path, capsys: Any) -> None:
    assert "holds no run" in refused(capsys, str(tmp_path), "--to", "csv")
    (tmp_path / "run.json").write_text('{"recipe": {"name": "grpo"}}')
    assert "is a training run" in refused(capsys, str(tmp_path), "--to", "csv")


def test_run_without_episodes_of_the_kind_is_refused(tmp_path: Path, capsys: Any) -> None:
    Store(tmp_path / "empty", {"suite": {"name": "s", "entries": [{"env": "E"}]}, "agents": []}).close()
    assert "nothing to export (it has no episodes)" in refused(capsys, str(tmp_path / "empty"), "--to", "csv")
    run = stored_outcomes(tmp_path / "run", [(["x"], 0.0)])
    assert "none of its 1 episodes is of this kind" in refused(capsys, str(run), "--to", "sft")
    assert "--sft" not in refused(capsys, str(run), "--to", "csv", "--all-episodes")


@pytest.mark.parametrize(
    ("to", "package", "extra", "remedy"),
    [
        ("parquet", "pyarrow", "parquet", "pip install"),
        ("inspect", "inspect_ai", "inspect", "see docs/adapters.md"),
    ],
)
def test_missing_extra_is_named(
    to: str,
    package: str,
    extra: str,
    remedy: str,
    run: Path,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    message = refused(capsys, str(run), "--to", to, "--out", str(tmp_path / "x"))
    assert f'needs the extra "{extra}"' in message and remedy in message
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- damaged runs


CONVERSATIONS = ["sft", "stepwise", "preference", "atif"]


@pytest.mark.parametrize("to", [*CONVERSATIONS, pytest.param("parquet", marks=pytest.mark.heavy)])
def test_conversations_without_their_instructions_are_left_out(
    to: str, language_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if to == "parquet":
        pytest.importorskip("pyarrow")
    (language_run / "texts.jsonl").unlink()
    out = tmp_path / f"out.{'jsonl' if to == 'atif' else to}"
    export(language_run, to, out, *(["--all-episodes"] if to == "sft" else []))
    number = len(of_sapling(language_run))
    sentence = f"{number} episodes are left out: their system messages are missing, because texts.jsonl is lost"
    shown = " ".join(capsys.readouterr().out.split())
    assert sentence in shown and "texts.jsonl: is lost or damaged;" in shown
    assert b"is missing: texts.jsonl" not in out.read_bytes()
    if to in CONVERSATIONS:
        agents = {row["agent"]["name"] if to == "atif" else row["agent"] for row in lines(out)}
        assert agents == (set() if to == "preference" else {"expert"})  # The expert makes no mistakes.
    out.unlink()
    error = refused(capsys, str(language_run), "--to", to, "--out", str(out), "--agent", "direct:sapling")
    assert "there is nothing to export (their system messages are missing" in error and not out.exists()


def test_heads_of_episodes_without_instructions_are_exported(language_run: Path, tmp_path: Path) -> None:
    (language_run / "texts.jsonl").unlink()
    export(language_run, "csv", tmp_path / "e.csv")
    assert (tmp_path / "e.csv").read_text().count("\n") == 1 + len(results(language_run))


@pytest.mark.parametrize("verb", ["export", "decisions"])
def test_unreadable_lines_are_named(
    verb: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    stored = (copy / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    stored[1] = stored[1][:40] + b"\n"
    (copy / "episodes.jsonl").write_bytes(b"".join(stored))
    options = ["--to", "csv", "--out", str(tmp_path / "e.csv")] if verb == "export" else []
    with pytest.raises(SystemExit):
        main([verb, str(copy), *options])
    shown = "".join(capsys.readouterr().out.split())
    assert f"{copy / 'episodes.jsonl'},line2:" in shown and shown.count("itisleftout.") == 1


def test_trajectories_in_a_file_of_another_ending_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(capsys, str(run), "--to", "atif", "--out", str(tmp_path / "x4.json"))
    assert "x4.json: has another ending than .jsonl; name a file of that ending" in error
    assert list(tmp_path.iterdir()) == []


def test_one_episode_that_is_left_out_is_counted_in_the_singular() -> None:
    assert describe_left_out(1, "Why.") == "1 episode is left out: Why."
    assert describe_left_out(1000, "Why.") == "1,000 episodes are left out: Why."
