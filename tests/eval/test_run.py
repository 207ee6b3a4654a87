"""The life of a run: played, killed, resumed, damaged, summed up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arboretum.agents.episode import Episode, Move, Turn
from arboretum.agents.play import Job, play
from arboretum.agents.reference import RandomAgent
from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.envs.registry import make_env
from arboretum.eval.agents import NamedAgent
from arboretum.eval.evaluate import evaluate, report
from arboretum.eval.store import Key, Store, encode, latest, read_episode
from arboretum.eval.suite import load_suite, parse_suite, suite_names

SUITE = """
name: bandits
description: two bandits
entries:
  - {name: Plain, env: TextBandit-v0, split: train}
  - {name: Reversed, env: TextBanditRev-v0, split: test, repeats: 2}
"""
AGENTS = [NamedAgent("random"), NamedAgent("expert")]
EPISODES = 2 * (24 + 16 * 2)  # two players


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


def records(out: Path) -> list[dict[str, Any]]:
    """Every line, without what may differ between two runs: the clock."""
    lines = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"], line["crc"]
        for turn in line["turns"]:
            del turn["agent_seconds"], turn["env_seconds"]
    return sorted(lines, key=lambda r: (r["agent"], r["entry"], r["task"], r["repeat"]))


def test_a_run_is_whole_and_the_same_in_one_process_and_in_two(suite: str, tmp_path: Path) -> None:
    assert run(suite, tmp_path / "one", workers=1) == 0
    assert run(suite, tmp_path / "two", workers=2) == 0
    one, two = records(tmp_path / "one"), records(tmp_path / "two")
    assert len(one) == EPISODES
    assert one == two


def test_the_summary_says_what_the_records_say(suite: str, tmp_path: Path) -> None:
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
    assert by_agent["Plain", "expert"]["normalised"] == 1.0
    assert by_agent["Plain", "random"]["normalised"] == 0.0


def test_running_again_plays_nothing_twice(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "r")
    before = (tmp_path / "r" / "episodes.jsonl").read_bytes()
    assert run(suite, tmp_path / "r") == 0
    assert (tmp_path / "r" / "episodes.jsonl").read_bytes() == before


def test_a_half_written_last_line_is_set_aside_and_played_again(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "whole")
    run(suite, tmp_path / "r")
    file = tmp_path / "r" / "episodes.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:20]) + lines[20][:50])
    with Console(record=True, width=200, file=open(os.devnull, "w")).file as sink:
        console = Console(record=True, width=200, file=sink)
        assert evaluate(suite, AGENTS, out=tmp_path / "r", console=console) == 0
    assert "line 21 was half-written" in console.export_text()
    assert records(tmp_path / "r") == records(tmp_path / "whole")
    assert (tmp_path / "r" / "episodes.damaged.jsonl").read_bytes() == lines[20][:50] + b"\n"


def test_a_damaged_line_in_the_middle_loses_only_itself(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "whole")
    run(suite, tmp_path / "r")
    file = tmp_path / "r" / "episodes.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[3] = b"\x00\xff garbage\n"
    file.write_bytes(b"".join(lines))
    assert run(suite, tmp_path / "r") == 0
    assert records(tmp_path / "r") == records(tmp_path / "whole")


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is a POSIX signal")
def test_kill_9_loses_nothing_finished(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    entry = "{env: TextBandit-v0, split: train, repeats: 400}"
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
    assert 0 < len(kept) < 24 * 400
    deadline = time.monotonic() + 30
    while True:  # the workers notice that their parent is gone, and the lock with them
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 2 or time.monotonic() > deadline:
            break
    assert done.returncode == 0, done.stderr
    lines = file.read_bytes().splitlines(keepends=True)
    assert lines[: len(kept)] == kept
    keys = [(r["task"], r["repeat"]) for r in map(json.loads, lines)]
    assert len(keys) == len(set(keys)) == 24 * 400


def test_a_world_that_breaks_is_recorded_and_retried(
    suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arboretum.envs.bandit import Bandit

    whole = Bandit._apply

    def broken(self: Bandit, action: str) -> Any:
        if self.task == "Teacher/Trader":
            raise ConnectionError("the bandit's server is gone")
        return whole(self, action)

    monkeypatch.setattr(Bandit, "_apply", broken)
    assert run(suite, tmp_path / "r") == 1
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["episodes"] == EPISODES - 2
    assert summary["errors"] == {"the environment failed: ConnectionError: the bandit's server is gone": 2}
    assert "Incomplete" in (tmp_path / "r" / "report.html").read_text()
    monkeypatch.setattr(Bandit, "_apply", whole)
    assert run(suite, tmp_path / "r") == 0
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["episodes"] == EPISODES and summary["errors"] == {}


def test_another_run_is_not_overwritten(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "r")
    console = quiet()
    with pytest.raises(ConfigurationError, match="another agent"):
        evaluate(suite, AGENTS[:1], references=False, out=tmp_path / "r", console=console)
    Path(suite).write_text(SUITE.replace("repeats: 2", "repeats: 3"))
    with pytest.raises(ConfigurationError, match="another suite"):
        evaluate(suite, AGENTS, out=tmp_path / "r", console=console)
    console.file.close()


def test_a_run_begun_on_other_data_is_not_mixed_with_these(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "r")
    manifest = json.loads((tmp_path / "r" / "run.json").read_text())
    manifest["tasks"]["Plain"] = "0" * 16
    (tmp_path / "r" / "run.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigurationError, match="begun on other tasks for 'Plain'"):
        run(suite, tmp_path / "r")


def test_two_writers_of_one_run_are_told_apart(tmp_path: Path) -> None:
    manifest = {"suite": {}, "agents": []}
    store = Store(tmp_path / "r", manifest)
    with pytest.raises(ConfigurationError, match="another process is writing"):
        Store(tmp_path / "r", manifest)
    store.close()
    Store(tmp_path / "r", manifest).close()


def test_runs_of_one_suite_stand_side_by_side(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "a")
    run(suite, tmp_path / "b")
    summary = report([tmp_path / "a", tmp_path / "b"], tmp_path / "both.html")
    assert summary.agents == ["random", "expert"]  # the reference players are the same in both
    assert (tmp_path / "both.html").exists()
    other = tmp_path / "other.yaml"
    other.write_text(SUITE.replace("repeats: 2", "repeats: 1"))
    run(str(other), tmp_path / "c")
    with pytest.raises(ConfigurationError, match="another suite"):
        report([tmp_path / "a", tmp_path / "c"])


def test_report_on_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no run"):
        report([tmp_path])
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        report([tmp_path])


def test_the_latest_result_of_a_retried_episode_wins(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "r")
    first = latest(tmp_path / "r")
    key = next(key for key, result in first.items() if result.success)
    episode = read_episode(tmp_path / "r", first[key])
    episode.success = False
    with (tmp_path / "r" / "episodes.jsonl").open("ab") as out:
        out.write(encode(key, episode))
    again = latest(tmp_path / "r")
    assert again.keys() == first.keys()
    assert first[key].success and not again[key].success


def test_an_episode_with_earlier_trials_is_read_back_whole(tmp_path: Path) -> None:
    key = Key("reflexion", "Plain", "Teacher/Trader", 0)
    hard = '"turns":[{"observation":"x","turns":['
    turns = [Turn(hard, hard, moves=[Move(hard, 0.0, True, True)])]
    first = Episode("W", key.task, 1, key.agent, details={"trial": 1}, turns=turns)
    last = Episode("W", key.task, 1, key.agent, success=True, details={"x": hard}, trials=[first], turns=turns * 2)
    (tmp_path / "episodes.jsonl").write_bytes(encode(key, last) * 2)
    (result,) = latest(tmp_path).values()
    assert result.success and result.turns == 2 and result.offset > 0
    assert read_episode(tmp_path, result) == last


def test_a_report_passes_over_a_line_that_is_being_written(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "r")
    file = tmp_path / "r" / "episodes.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    summary = report([tmp_path / "r"])
    assert summary.episodes == EPISODES - 1 and not summary.complete


def test_damage_inside_a_line_is_found_and_played_again(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "whole")
    run(suite, tmp_path / "r")
    file = tmp_path / "r" / "episodes.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b'"moves":[', b'"moves":[[')
    file.write_bytes(b"".join(lines))
    assert run(suite, tmp_path / "r") == 0
    assert records(tmp_path / "r") == records(tmp_path / "whole")


def test_other_content_under_the_same_names_is_other_data(suite: str, tmp_path: Path, monkeypatch: Any) -> None:
    from arboretum.envs.bandit import Bandit

    run(suite, tmp_path / "r")
    shown = Bandit._observe
    monkeypatch.setattr(Bandit, "_observe", lambda self: shown(self).upper())
    with pytest.raises(ConfigurationError, match="begun on other tasks"):
        run(suite, tmp_path / "r")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "expected a mapping"),
        ("name: x\nentries: []", "non-empty list"),
        ("name: x\nentries:\n  - {evn: TextBandit-v0}", "did you mean env"),
        ("name: x\nentries:\n  - {env: TextBandit-v0, tasks: many}", "wrong kind"),
        ("name: x\nentries:\n  - {env: TextBandit-v0, repeats: 0}", "at least 1"),
        ("name: x\nentries:\n  - {env: A}\n  - {env: A}", "two entries are called 'A'"),
        ("name: x\nentries: [\n", "line 3: is not YAML"),
    ],
)
def test_a_bad_suite_is_named_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_suite(text, "bad.yaml")


def test_a_suite_asks_for_tasks_that_exist(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: s\nentries:\n  - {env: TextBandit-v0, tasks: 999}\n")
    with pytest.raises(ConfigurationError, match="asks for 999 tasks"):
        run(str(path), tmp_path / "r")


def test_shipped_suites_load_and_survive_their_own_record() -> None:
    for name in suite_names():
        suite = load_suite(name)
        assert suite.name == name and suite.description
        assert parse_suite(json.dumps(suite.to_dict()), "again") == suite


def test_episodes_do_not_depend_on_how_many_are_played_at_once() -> None:
    jobs = [Job(None, seed) for seed in range(40)]

    def outcome(envs: int) -> list[tuple[int, str, float, bool]]:
        made = [make_env("TextBandit-v0") for _ in range(envs)]
        return sorted((e.seed, e.task, e.total_reward, e.success) for e in play(RandomAgent(), made, jobs))

    assert outcome(1) == outcome(7) == outcome(40)


@pytest.mark.heavy
def test_a_ray_cluster_plays_the_same_episodes(suite: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason='needs the extra "ray"')
    assert run(suite, tmp_path / "here") == 0
    # Ray leaves sockets and child processes to the garbage collector; give it a process of its own.
    command = [sys.executable, "-m", "arboretum.cli", "eval", suite, "--ray", "local"]
    done = subprocess.run([*command, "--out", str(tmp_path / "ray")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert records(tmp_path / "ray") == records(tmp_path / "here")
