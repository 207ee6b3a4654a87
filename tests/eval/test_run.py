"""Runs: played, killed, resumed, repaired and summarized; and the suites that define them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arboretum.agents.base import Agent, Reply, Seat
from arboretum.agents.dialogue.registry import make_dialogue
from arboretum.agents.episode import Episode, Move, Turn
from arboretum.agents.play import Job, play
from arboretum.agents.reference import RandomAgent
from arboretum.cli import main
from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.envs.frozenlake.env import FrozenLake
from arboretum.envs.registry import make_env
from arboretum.eval.agents import GivenAgent, NamedAgent
from arboretum.eval.evaluate import evaluate
from arboretum.eval.manifest import read_manifest, write_manifest
from arboretum.eval.planning import Scope
from arboretum.eval.results import report
from arboretum.eval.store import EpisodeKey, Store, encode_episode, read_episode, read_results
from arboretum.eval.suite import load_suite, parse_suite, read_suite, suite_names, suite_of
from support.environments import break_bandit

SUITE = """
name: bandits
description: two bandits
entries:
  - {name: Plain, env: TextBandit-v0, split: train}
  - {name: Reversed, env: TextBanditRev-v0, split: test, repeats: 2}
"""
AGENTS = [NamedAgent("random"), NamedAgent("expert")]
EPISODES = 2 * (24 + 16 * 2)  # two agents


@pytest.fixture
def suite(tmp_path: Path) -> str:
    path = tmp_path / "bandits.yaml"
    path.write_text(SUITE)
    return str(path)


def quiet() -> Console:
    return Console(file=open(os.devnull, "w"), width=80)


def run(suite: str, out: Path, **kwargs: Any) -> int:
    console = quiet()
    try:
        return evaluate(suite, AGENTS, out=out, console=console, **kwargs)
    finally:
        console.file.close()


class First(Agent):
    """Agent that always pulls the first arm."""

    name = "first"

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        return [Reply((seat.info["task"].split("/")[0],)) for seat in seats]


def records(out: Path) -> list[dict[str, Any]]:
    """Return the stored episodes, sorted, without the wall times, which differ between runs."""
    lines = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"], line["crc"]
        for turn in line["turns"]:
            del turn["agent_seconds"], turn["env_seconds"]
    return sorted(lines, key=lambda r: (r["agent"], r["entry"], r["task"], r["repeat"]))


def test_one_and_two_processes_store_equal_episodes(suite: str, tmp_path: Path) -> None:
    assert run(suite, tmp_path / "one", workers=1) == 0
    assert run(suite, tmp_path / "two", workers=2) == 0
    one, two = records(tmp_path / "one"), records(tmp_path / "two")
    assert len(one) == EPISODES
    assert one == two


def test_summary_agrees_with_stored_episodes(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "r")
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["episodes"] == summary["expected"] == EPISODES
    for line in summary["lines"]:
        mine = [r for r in records(tmp_path / "r") if (r["agent"], r["entry"]) == (line["agent"], line["entry"])]
        assert line["episodes"] == len(mine)
        assert line["success"]["value"] == pytest.approx(sum(r["success"] for r in mine) / len(mine))
        assert line["mean_return"]["value"] == pytest.approx(
            sum(m["reward"] for r in mine for t in r["turns"] for m in t["moves"]) / len(mine)
        )
    by_agent = {(line["entry"], line["agent"]): line for line in summary["lines"]}
    assert by_agent["Plain", "expert"]["success"]["value"] == 1.0
    assert by_agent["Plain", "expert"]["normalized"] == 1.0
    assert by_agent["Plain", "random"]["normalized"] == 0.0


def test_second_run_plays_no_episode_again(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "r")
    before = (tmp_path / "r" / "episodes.jsonl").read_bytes()
    assert run(suite, tmp_path / "r") == 0
    assert (tmp_path / "r" / "episodes.jsonl").read_bytes() == before


def test_incomplete_last_line_is_moved_and_its_episode_played_again(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "whole")
    run(suite, tmp_path / "r")
    file = tmp_path / "r" / "episodes.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:20]) + lines[20][:50])
    with Console(record=True, width=200, file=open(os.devnull, "w")).file as sink:
        console = Console(record=True, width=200, file=sink)
        assert evaluate(suite, AGENTS, out=tmp_path / "r", console=console) == 0
    assert "episodes.jsonl, line 21: is incomplete; it was moved" in " ".join(console.export_text().split())
    assert records(tmp_path / "r") == records(tmp_path / "whole")
    assert (tmp_path / "r" / "episodes.damaged.jsonl").read_bytes() == lines[20][:50] + b"\n"


def test_damaged_line_in_the_middle_loses_only_its_own_episode(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "whole")
    run(suite, tmp_path / "r")
    file = tmp_path / "r" / "episodes.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[3] = b"\x00\xff garbage\n"
    file.write_bytes(b"".join(lines))
    assert run(suite, tmp_path / "r") == 0
    assert records(tmp_path / "r") == records(tmp_path / "whole")


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is a POSIX signal")
def test_kill_9_loses_no_finished_episode(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    entry = "{env: TextBandit-v0, split: train, repeats: 150}"
    path.write_text(f"name: long\ndescription: many\nentries:\n  - {entry}\n")
    out = tmp_path / "r"
    command = [sys.executable, "-m", "arboretum.cli", "eval", str(path), "--agent", "random"]
    command += ["--no-references", "--out", str(out), "--workers", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    file = out / "episodes.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not file.exists() or file.stat().st_size < 100_000):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = [line for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    assert 0 < len(kept) < 24 * 150
    deadline = time.monotonic() + 30
    while True:  # The lock is free once the workers have exited after their parent.
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 2 or time.monotonic() > deadline:
            break
    assert done.returncode == 0, done.stderr
    lines = file.read_bytes().splitlines(keepends=True)
    assert lines[: len(kept)] == kept
    keys = [(r["task"], r["repeat"]) for r in map(json.loads, lines)]
    assert len(keys) == len(set(keys)) == 24 * 150


def test_failing_environment_is_recorded_and_retried(
    suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        break_bandit(patch)
        assert run(suite, tmp_path / "r") == 1
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["episodes"] == EPISODES - 2
    ((reason, count),) = summary["errors"].items()
    assert count == 2
    assert reason.startswith(
        "the environment failed: ConnectionError: the bandit's server is gone (environments.py, line "
    )
    assert "Incomplete" in (tmp_path / "r" / "report.html").read_text()
    assert run(suite, tmp_path / "r") == 0
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["episodes"] == EPISODES and summary["errors"] == {}


def test_run_whose_episodes_all_broke_off_is_resumed(suite: str, tmp_path: Path) -> None:
    """The success rate of no complete episodes ended the second call with a division by zero."""
    hopeless = Scope(limit=1, timeout=1e-9)
    assert run(suite, tmp_path / "r", scope=hopeless) == 1
    assert run(suite, tmp_path / "r", scope=hopeless) == 1
    assert run(suite, tmp_path / "r", scope=Scope(limit=1)) == 0


def test_training_run_is_not_overwritten(suite: str, tmp_path: Path) -> None:
    settings = '{"recipe": {"name": "grpo"}}'
    (tmp_path / "run.json").write_text(settings)
    with pytest.raises(ConfigurationError, match="holds a training run; choose another --out"):
        run(suite, tmp_path)
    assert (tmp_path / "run.json").read_text() == settings


def test_report_of_a_study_is_not_overwritten(suite: str, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="holds a study; choose another --out"):
        run(suite, tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_command_that_is_not_unicode_is_recorded(tmp_path: Path) -> None:
    """As of a folder whose name is no UTF-8: the run could not be stored."""
    manifest = {"suite": {}, "agents": [], "sessions": [{"started": "now", "command": "eval \udcff"}]}
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path)["sessions"] == manifest["sessions"]


def test_run_without_agents_is_refused(suite: str) -> None:
    with pytest.raises(ConfigurationError, match="name at least one agent"):
        evaluate(suite, [], references=False, console=Console(file=StringIO()))


def test_folder_of_another_run_is_rejected(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "r")
    console = quiet()
    with pytest.raises(ConfigurationError, match="another agent"):
        evaluate(suite, AGENTS[:1], references=False, out=tmp_path / "r", console=console)
    Path(suite).write_text(SUITE.replace("repeats: 2", "repeats: 3"))
    with pytest.raises(ConfigurationError, match="another suite"):
        evaluate(suite, AGENTS, out=tmp_path / "r", console=console)
    console.file.close()


def test_resuming_with_other_task_digests_is_rejected(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "r")
    manifest = json.loads((tmp_path / "r" / "run.json").read_text())
    manifest["tasks"]["Plain"] = "0" * 16
    (tmp_path / "r" / "run.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigurationError, match="started with other tasks for 'Plain'"):
        run(suite, tmp_path / "r")


def test_resuming_with_another_step_limit_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default of an environment is no setting of the suite, and a new version may have another."""
    run("TextFrozenLake-v0", tmp_path / "r", scope=Scope(limit=2))
    make = FrozenLake.__init__
    monkeypatch.setattr(FrozenLake, "__init__", lambda self, **given: make(self, **{"max_steps": 3, **given}))
    message = "started with max_steps=[0-9]+ for 'TextFrozenLake-v0', and now it would be max_steps=3"
    with pytest.raises(ConfigurationError, match=message):
        run("TextFrozenLake-v0", tmp_path / "r", scope=Scope(limit=2))


def test_limit_of_one_task_that_an_earlier_version_stored_is_no_other_limit(
    planbench: Path, tmp_path: Path
) -> None:
    suite = (
        f"entries: [{{name: Plans, env: TextBlocksworld-v0, split: planbench, kwargs: {{data: '{planbench}'}}}}]"
    )
    (tmp_path / "plans.yaml").write_text(suite)
    for stored in ("by task", 8, 16):
        run(str(tmp_path / "plans.yaml"), tmp_path / "r")
        manifest = json.loads((tmp_path / "r" / "run.json").read_text())
        assert manifest["entries"]["Plans"]["max_steps"] == "by task"
        manifest["entries"]["Plans"]["max_steps"] = stored
        (tmp_path / "r" / "run.json").write_text(json.dumps(manifest))


def test_refused_call_leaves_the_settings_of_the_run_as_they_were(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "r")
    manifest = json.loads((tmp_path / "r" / "run.json").read_text())
    manifest["tasks"]["Plain"] = "0" * 16
    before = json.dumps(manifest)
    (tmp_path / "r" / "run.json").write_text(before)
    Path(suite).write_text(SUITE.replace("two bandits", "two other bandits"))
    with pytest.raises(ConfigurationError, match="started with other tasks for 'Plain'"):
        run(suite, tmp_path / "r")
    assert (tmp_path / "r" / "run.json").read_text() == before


def test_run_names_all_versions_that_played_it(suite: str, tmp_path: Path) -> None:
    out = tmp_path / "r"
    run(suite, out)
    stored = (out / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (out / "episodes.jsonl").write_bytes(b"".join(stored[:8]))
    manifest = json.loads((out / "run.json").read_text())
    played = manifest["versions"]["arboretum"]
    manifest["versions"]["arboretum"] = "0.0.9"
    (out / "run.json").write_text(json.dumps(manifest))
    run(suite, out)
    assert report([out]).versions["arboretum"] == f"0.0.9 and {played}"
    assert f"arboretum 0.0.9 and {played}," in (out / "report.html").read_text()
    assert report([out]).versions["numpy"] == manifest["versions"]["numpy"]


@pytest.mark.parametrize("setting", ["score: f1_score", "group_by: sort"])
def test_key_that_no_episode_has_is_named_and_no_score_of_zero(setting: str, tmp_path: Path) -> None:
    entry = "name: Questions, env: TextSearchQA-v0, kwargs: {dataset: encyclopedia, hops: 1}, tasks: 2"
    path = tmp_path / "typo.yaml"
    path.write_text(f"name: typo\nentries: [{{{entry}, {setting}}}]\n")
    run(str(path), tmp_path / "r")
    summary = report([tmp_path / "r"])
    kind, _, key = setting.partition(": ")
    (note,) = (one for one in summary.notes if "no episode has" in one)
    lines = (tmp_path / "r" / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "r" / "episodes.jsonl").write_bytes(b"".join(one for one in lines if b'"expert"' in one))
    assert note in report([tmp_path / "r"]).notes  # The other agent has not begun.
    what = f"a number under '{key}', its score," if kind == "score" else f"'{key}', its group_by,"
    assert f"no episode has {what} in its details; they have answer, em, evidence_recall, f1," in note
    assert [line.score for line in summary.lines] == [None, None]


def test_agent_that_never_ends_an_episode_has_a_score_of_zero(tmp_path: Path) -> None:
    entry = "name: Shop, env: TextWebShop-v0, split: test, tasks: 2, max_steps: 1, score: score"
    path = tmp_path / "shop.yaml"
    path.write_text(f"name: shop\nentries: [{{{entry}}}]\n")
    run(str(path), tmp_path / "r")
    summary = report([tmp_path / "r"])
    assert [line.score and line.score.value for line in summary.lines] == [0.0, 0.0]
    assert not any("no episode has" in note for note in summary.notes)


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"suite": {}}', "sessions", "expected"])
def test_lost_or_damaged_run_json_is_restored_and_no_episode_is_played_again(
    content: str | None, suite: str, tmp_path: Path
) -> None:
    folder = tmp_path / "r"
    run(suite, folder)
    settings, episodes = (folder / "run.json").read_bytes(), (folder / "episodes.jsonl").read_bytes()
    if content is None:
        (folder / "run.json").unlink()
    elif content.isalpha():  # A key with a value of the wrong kind.
        (folder / "run.json").write_text(json.dumps({**json.loads(settings), content: [{}]}))
    else:
        (folder / "run.json").write_text(content)
    assert report([folder]).episodes == report([folder]).expected  # A report needs no restored file.
    run(suite, folder)
    assert (folder / "run.json").read_bytes() == settings
    assert (folder / "episodes.jsonl").read_bytes() == episodes


def test_settings_of_a_run_that_are_lost_with_their_copy_are_named(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "r")
    for name in ("run.json", ".run.json"):
        (tmp_path / "r" / name).unlink()
    with pytest.raises(
        ConfigurationError, match=r"neither run\.json nor its copy \.run\.json.*restore one of them"
    ):
        run(suite, tmp_path / "r")


def test_credentials_of_an_address_in_a_suite_are_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "search.yaml"
    retriever = "http://user:pa5sword@127.0.0.1:8000/api?key=5ignature"
    path.write_text(
        f"name: search\nentries:\n- {{name: A, env: TextSearchQA-v0, kwargs: {{retriever: '{retriever}'}}}}\n"
    )
    suite = load_suite(str(path))
    assert suite.entries[0].kwargs["retriever"] == retriever
    nested = {"a": [{"url": retriever, "api_key": "5ecret", "max_tokens": 3}]}
    (entry,) = suite_of("TextBandit-v0", split="test", **nested).to_dict()["entries"]
    assert entry["kwargs"] == {"a": [{"url": "http://127.0.0.1:8000/api", "api_key": "***", "max_tokens": 3}]}
    assert suite.to_dict()["entries"][0]["kwargs"] == {"retriever": "http://127.0.0.1:8000/api"}


def test_run_of_a_version_without_names_of_data_is_refused_as_such(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "r")
    manifest = json.loads((tmp_path / "r" / "run.json").read_text())
    del manifest["data"]
    for name in ("run.json", ".run.json"):
        (tmp_path / "r" / name).write_text(json.dumps(manifest))
    with pytest.raises(ConfigurationError, match=r"was written by another version of Arboretum.*another --out"):
        run(suite, tmp_path / "r")


@pytest.mark.parametrize(("value", "place"), [([{}], "started"), ({"a": 1}, "a list"), ("now", "a list")])
def test_value_of_a_wrong_kind_in_the_settings_of_a_run_is_named(
    value: Any, place: str, suite: str, tmp_path: Path
) -> None:
    run(suite, tmp_path / "r")
    manifest = json.loads((tmp_path / "r" / "run.json").read_text())
    for name in ("run.json", ".run.json"):
        (tmp_path / "r" / name).write_text(json.dumps({**manifest, "sessions": value}))
    with pytest.raises(DataError, match=rf"run\.json: has a value of the wrong kind \(.*{place}.*sessions"):
        report([tmp_path / "r"])


def test_names_and_numbers_of_a_suite_survive_storage(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SUITE.replace("Plain", "Bandit 😀"), encoding="utf-8")
    assert run(str(path), tmp_path / "r") == 0
    data = {"entries": [{"name": "A", "env": "B", "kwargs": {"rate": 1e-05}}]}
    assert json.loads(json.dumps(read_suite(data, "s").to_dict()))["entries"][0]["kwargs"] == {"rate": 1e-05}


def test_second_writer_of_a_run_is_rejected_until_the_first_closes(tmp_path: Path) -> None:
    manifest = {"suite": {}, "agents": []}
    store = Store(tmp_path / "r", manifest)
    with pytest.raises(ConfigurationError, match="another process is writing"):
        Store(tmp_path / "r", manifest)
    store.close()
    Store(tmp_path / "r", manifest).close()


def test_runs_of_one_suite_are_reported_together_and_other_suites_rejected(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "a")
    run(suite, tmp_path / "b")
    summary = report([tmp_path / "a", tmp_path / "b"], tmp_path / "both.html")
    assert summary.agents == ["random", "expert"]  # the reference agents are the same in both
    assert (tmp_path / "both.html").exists()
    other = tmp_path / "other.yaml"
    other.write_text(SUITE.replace("repeats: 2", "repeats: 1"))
    run(str(other), tmp_path / "c")
    with pytest.raises(ConfigurationError, match="another suite"):
        report([tmp_path / "a", tmp_path / "c"])


def test_runs_of_one_agent_in_folders_of_one_name_are_reported_apart(suite: str, tmp_path: Path) -> None:
    for seed in (1, 2):
        agents = [NamedAgent("random"), GivenAgent(First())]
        options: dict[str, Any] = {"out": tmp_path / str(seed) / "run", "scope": Scope(limit=2)}
        assert evaluate(suite, agents, references=False, console=Console(file=StringIO()), **options) == 0
    folders = [tmp_path / "1" / "run", tmp_path / "2" / "run"]
    summary = report(folders, tmp_path / "both.html")
    assert summary.agents == ["first (1/run)", "first (2/run)", "random"]
    assert [line.episodes for line in summary.lines] == [2, 2, 2, 4, 4, 4] and summary.complete
    with pytest.raises(ConfigurationError, match="a run is named twice"):
        report([folders[0], tmp_path / "2" / ".." / "1" / "run"], tmp_path / "both.html")


def test_reference_is_reported_from_the_run_that_has_its_episodes(suite: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(suite, tmp_path / name)
    (tmp_path / "a" / "episodes.jsonl").write_bytes(b"")
    assert report([tmp_path / "a", tmp_path / "b"], tmp_path / "both.html").complete


def test_runs_on_other_tasks_of_the_same_names_are_not_reported_together(suite: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(suite, tmp_path / name)
    for file in ("run.json", ".run.json"):
        path = tmp_path / "b" / file
        manifest = json.loads(path.read_text())
        manifest["tasks"]["Plain"] = "0" * 16  # as another data folder makes it
        path.write_text(json.dumps(manifest))
    with pytest.raises(ConfigurationError, match=r"b: has other tasks for 'Plain'"):
        report([tmp_path / "a", tmp_path / "b"], tmp_path / "both.html")


def test_notes_of_several_runs_name_every_agent_with_a_budget(suite: str, tmp_path: Path) -> None:
    class Limited(NamedAgent):
        def __init__(self, turns: int) -> None:
            super().__init__("random")
            self.name, self.turns, self.uses_success_labels = "limited", turns, True

        def dialogue(self, suite: Any, entry: Any, /) -> Any:
            return make_dialogue("plain", {"max_turns": self.turns})

    folders = [tmp_path / "a", tmp_path / "b"]
    for turns, folder in enumerate(folders, 1):
        evaluate(suite, [Limited(turns)], references=False, out=folder, console=Console(file=StringIO()))
    notes = report(folders, tmp_path / "both.html").notes
    assert [note.partition(" per ")[0] for note in notes[:2]] == [
        "limited (a) has at most 1 turn",
        "limited (b) has at most 2 turns",
    ]
    assert [note.partition(" uses ")[0] for note in notes[2:]] == ["limited (a)", "limited (b)"]


def test_report_command_prints_notes_and_reasons_as_the_evaluation_does(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", suite, "--agent", "random", "--no-references", "--workers", "1"]
    with pytest.raises(SystemExit, match="0"):
        main([*command, "--out", str(tmp_path / "r")])
    assert f"arboretum eval {suite} --agent random" in (tmp_path / "r" / "run.json").read_text()
    first = read_results(tmp_path / "r").latest
    key = next(iter(first))
    episode = read_episode(tmp_path / "r", first[key])
    episode.error, episode.details = "the disk is full", {"prompt_tokens": 5, "completion_tokens": 3}
    with (tmp_path / "r" / "episodes.jsonl").open("ab") as out:
        out.write(encode_episode(key, episode).line)
    capsys.readouterr()
    with pytest.raises(SystemExit, match="0"):
        main(["report", str(tmp_path / "r")])
    shown = capsys.readouterr().out
    assert "random: 5 prompt and 3 sampled tokens" in shown and "1 broke off: the disk is full" in shown


def test_report_rejects_folder_without_valid_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no run"):
        report([tmp_path])
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        report([tmp_path])


def test_latest_result_of_an_episode_wins(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "r")
    first = read_results(tmp_path / "r").latest
    key = next(key for key, result in first.items() if result.success)
    episode = read_episode(tmp_path / "r", first[key])
    episode.success = False
    with (tmp_path / "r" / "episodes.jsonl").open("ab") as out:
        out.write(encode_episode(key, episode).line)
    again = read_results(tmp_path / "r").latest
    assert again.keys() == first.keys()
    assert first[key].success and not again[key].success


def test_episode_with_earlier_trials_survives_storage(tmp_path: Path) -> None:
    key = EpisodeKey("reflexion", "Plain", "Teacher/Trader", 0)
    hard = '"turns":[{"observation":"x","turns":['
    turns = [Turn(hard, hard, moves=[Move(hard, 0.0, True, True)])]
    first = Episode("W", key.task, 1, key.agent, details={"trial": 1}, turns=turns)
    last = Episode("W", key.task, 1, key.agent, success=True, details={"x": hard}, trials=[first], turns=turns * 2)
    (tmp_path / "episodes.jsonl").write_bytes(encode_episode(key, last).line * 2)
    (result,) = read_results(tmp_path).latest.values()
    assert result.success and result.turns == 2 and result.offset > 0
    assert read_episode(tmp_path, result) == last


def test_report_skips_incomplete_last_line(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "r")
    file = tmp_path / "r" / "episodes.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    summary = report([tmp_path / "r"])
    assert summary.episodes == EPISODES - 1 and not summary.complete


def test_damage_inside_a_line_is_detected_and_its_episode_played_again(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "whole")
    run(suite, tmp_path / "r")
    file = tmp_path / "r" / "episodes.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b'"moves":[', b'"moves":[[')
    file.write_bytes(b"".join(lines))
    assert run(suite, tmp_path / "r") == 0
    assert records(tmp_path / "r") == records(tmp_path / "whole")


def test_resuming_with_other_observations_of_the_same_tasks_is_rejected(
    suite: str, tmp_path: Path, monkeypatch: Any
) -> None:
    from arboretum.envs.bandit import Bandit

    run(suite, tmp_path / "r")
    observe = Bandit._observe
    monkeypatch.setattr(Bandit, "_observe", lambda self: observe(self).upper())
    with pytest.raises(ConfigurationError, match="started with other tasks"):
        run(suite, tmp_path / "r")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "expected a mapping"),
        ("name: x\nentries: []", "non-empty list"),
        ("name: x\nentires: []", "did you mean entries"),
        ("name: x\nentries:\n  - {evn: TextBandit-v0}", "did you mean env"),
        (
            "name: x\nentries:\n  - {env: TextBandit-v0, tasks: many}",
            "entry 1: `tasks` has a value of the wrong type .expected a whole number or nothing, got text",
        ),
        (
            "name: x\nentries:\n  - {env: A}\n  - {env: A, groups: [a, b], split: 3}",
            "entry 2: `split` has .* wrong type",
        ),
        ("name: x\nseed: one\nentries: [{env: A}]", "yaml: `seed` has a value of the wrong type"),
        ("name: x\nentries:\n  - {name: A, env: }", "entry 1: `env` is missing"),
        ("name: x\nentries:\n  - {env: TextBandit-v0, repeats: 0}", "`repeats` must be at least 1"),
        ("name: x\nentries:\n  - {env: A}\n  - {env: A}", "two entries have the name 'A'"),
        ("name: x\nentries: [\n", "line 3: is not YAML"),
        ("name: x\nseed: 1\nseed: 2\nentries: [{env: A}]", "line 3: is not YAML .the key 'seed' is given twice"),
        ("name: x\nentries: [{env: A, env: B}]", "line 2: is not YAML .the key 'env' is given twice"),
    ],
)
def test_invalid_suite_is_rejected_with_place_and_reason(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_suite(text, "bad.yaml")


def test_absent_keys_take_defaults_and_groups_become_strings() -> None:
    suite = parse_suite("name:\nentries:\n  - {env: A, repeats: , groups: [1, b]}", "folder/mine.yaml")
    (entry,) = suite.entries
    assert (suite.name, suite.description, suite.seed) == ("mine", "", 0)
    assert (entry.name, entry.repeats, entry.groups) == ("A", 1, ("1", "b"))


def test_more_tasks_than_the_split_has_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: s\nentries:\n  - {env: TextBandit-v0, tasks: 999}\n")
    with pytest.raises(ConfigurationError, match="asks for 999 tasks"):
        run(str(path), tmp_path / "r")


def test_shipped_suites_survive_to_dict_and_parsing() -> None:
    for name in suite_names():
        suite = load_suite(name)
        assert suite.name == name and suite.description
        assert parse_suite(json.dumps(suite.to_dict()), "again") == suite


def test_episodes_do_not_depend_on_concurrency() -> None:
    jobs = [Job(None, seed) for seed in range(40)]

    def outcome(envs: int) -> list[tuple[int, str, float, bool]]:
        made = [make_env("TextBandit-v0") for _ in range(envs)]
        return sorted((e.seed, e.task, e.total_reward, e.success) for e in play(RandomAgent(), made, jobs))

    assert outcome(1) == outcome(7) == outcome(40)


@pytest.mark.heavy
def test_ray_cluster_plays_the_same_episodes(suite: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason='needs the extra "ray"')
    assert run(suite, tmp_path / "here") == 0
    # Ray leaves sockets and child processes to the garbage collector, so it runs in a separate process.
    command = [sys.executable, "-m", "arboretum.cli", "eval", suite, "--ray", "local"]
    done = subprocess.run([*command, "--out", str(tmp_path / "ray")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert records(tmp_path / "ray") == records(tmp_path / "here")
