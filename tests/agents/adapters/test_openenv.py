"""Our server under OpenEnv 0.10's own validator and client, and under ours, from an environment with OpenEnv."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import arboretum
from arboretum.envs.registry import ENVS, make_env
from support.neighbours import neighbour
from support.openenv_checks import ACTIONS

ROOT = Path(arboretum.__file__).parent
CHECKS = ROOT / "tests" / "support" / "openenv_checks.py"

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Python of an environment with OpenEnv, whose dependencies our constraints exclude."""
    return str(neighbour("openenv", tmp_path_factory.mktemp("openenv")).bin / "python")


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables under which the checkout is the package, whatever the name of its folder."""
    path = tmp_path_factory.mktemp("path")
    (path / "arboretum").symlink_to(ROOT)
    without_data = {name: value for name, value in os.environ.items() if name != "ARBORETUM_DATA"}
    return {**without_data, "PYTHONPATH": str(path), "PYTHONUNBUFFERED": "1"}


@contextmanager
def serving(python: str, env: dict[str, str], *arguments: str) -> Iterator[tuple[str, int]]:
    """Context with a server: its address, and the id of its process."""
    command = [python, "-P", "-m", "arboretum", "serve", "envs", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as server:
        assert server.stdout is not None
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
            assert address is not None, "the server did not start"
            yield address[0], server.pid
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def address(python: str, surroundings: dict[str, str]) -> Iterator[str]:
    arguments = ("TextSokoban-v0", "TextBandit-v0", "--sessions", "3", "--idle", "2")
    with serving(python, surroundings, *arguments) as (address, _):
        yield address


def check(python: str, env: dict[str, str], *arguments: str) -> Any:
    """Run a check of tests/support/openenv_checks.py, and return what it printed."""
    command = [python, "-P", str(CHECKS), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_openenv_validate_passes(python: str, surroundings: dict[str, str], address: str) -> None:
    command = [python, "-P", str(Path(python).with_name("openenv")), "validate"]
    done = subprocess.run(
        [*command, "--url", f"{address}/TextSokoban-v0", "--json", "--timeout", "60"],
        capture_output=True,
        text=True,
        env=surroundings,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["summary"]["passed_count"] == 6


def test_every_manifest_is_valid_and_its_oracle_reaches_the_maximum(
    python: str, surroundings: dict[str, str]
) -> None:
    found = check(python, surroundings, "oracles", str(ROOT / "assets" / "openenv"))
    assert found == {spec.id: [1.0, True, 2, "pass"] for spec in ENVS}


def test_client_plays_the_local_episode_and_outlives_its_session(
    python: str, surroundings: dict[str, str], address: str
) -> None:
    found = check(python, surroundings, "play", address)
    env = make_env("TextSokoban-v0")
    local: list[Any] = [env.reset(seed=5)] + [env.step(action) for action in ACTIONS]
    assert found["steps"] == json.loads(json.dumps(local))
    assert found["reconnects"] >= 1
    assert found["state"] == {"task": env.task, "seed": 5, "actions": ACTIONS}
    assert found["again"][1] == json.loads(json.dumps(env.step("Up")))
    nowhere, misspelled, too_large, incomplete = found["problems"]
    assert "unknown task 'nowhere'" in nowhere and "unknown field `tsak`" in misspelled
    assert "outside 0" in too_large and "lacks the field `seed`" in incomplete


def test_episodes_of_agents_and_conversations_are_those_of_the_local_environment(
    python: str, surroundings: dict[str, str], address: str
) -> None:
    remote, local = check(python, surroundings, "converse", address)
    assert remote == local
    messages, _, episodes = local
    assert "Sokoban" in messages[0][0][1] and len(messages) == 4 and len(episodes) == 6


def test_hostile_messages_and_idle_sessions_are_answered_and_counted(
    python: str, surroundings: dict[str, str], address: str
) -> None:
    found = check(python, surroundings, "attack", address)
    assert {answer["type"] for answer in found["answers"]} == {"error"}
    assert found["answers"][-1]["data"]["code"] == "CAPACITY_REACHED"
    assert found["state"]["data"]["env"] == "TextBandit-v0"
    assert "no message for 2 seconds" in found["idle"]["data"]["message"]
    assert found["foreign"] == [403] * 3
    assert found["step"] == [400, '{"detail":"a request over HTTP has no episode; play in a session, at /ws"}']
    assert found["silent"] == [503, 200]
    assert found["status"]["errors"] >= len(found["answers"]) and found["status"]["idle"] >= 1
    assert found["status"]["foreign"] == 3


def test_taken_port_is_named_in_one_sentence(python: str, surroundings: dict[str, str], address: str) -> None:
    port = address.rpartition(":")[2]
    command = [python, "-P", "-m", "arboretum", "serve", "envs", "TextBandit-v0", "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=120)
    reason = f"cannot listen on 127.0.0.1:{port} (Address already in use); choose another port or host."
    assert (done.returncode, done.stdout) == (2, "")
    assert " ".join(done.stderr.split()) == f"arboretum: {reason}"


def test_client_explains_servers_of_another_version(python: str, surroundings: dict[str, str]) -> None:
    problems = check(python, surroundings, "versions", "")
    *versions, host, port, scheme = problems
    assert len(versions) == 5 and all("has another version of the protocol: " in problem for problem in versions)
    assert "missing required field `task`" in versions[0] and "recursion" in versions[4]
    assert all("is not a server of environments" in problem for problem in (host, port, scheme))


def test_client_loses_neither_resets_nor_replies_with_its_session(
    python: str, surroundings: dict[str, str], address: str
) -> None:
    found = check(python, surroundings, "reconnect", address)
    env = make_env("TextBandit-v0")
    assert found["reset"] == json.loads(json.dumps(env.reset(seed=2)))
    refused = found["after the end"]
    assert refused[2] and not refused[4]["valid"] and (found["actions"], found["reconnects"]) == (1, 2)
    assert "did not answer within 0.3 seconds" in found["late"]
    assert (found["next"], found["kept"]) == ("quick", ["quick"])


def test_two_hundred_sessions_play_at_once(python: str, surroundings: dict[str, str]) -> None:
    with serving(python, surroundings, "TextSokoban-v0") as (address, pid):
        before = cpu_seconds(pid)
        counts = check(python, surroundings, "load", address)
        spent = cpu_seconds(pid) - before
    env = make_env("TextSokoban-v0")
    for seed, count in enumerate(counts):
        env.reset(seed=seed)
        for action in ACTIONS:
            env.step(action)
        assert count == env.steps
    assert len(counts) == 200
    assert spent < 30.0


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_benchmark_of_the_server_counts_the_steps_of_all_sessions(
    python: str, surroundings: dict[str, str], tmp_path: Path
) -> None:
    program = tmp_path / "measure.py"
    lines = ["from arboretum.eval.bench.openenv import measure", "if __name__ == '__main__':"]
    lines += ["    (row,) = measure(sessions=8, steps=5, rounds=1)"]
    lines += ["    print(row.what, row.unit, row.value > 0)"]
    program.write_text("\n".join(lines), encoding="utf-8")
    command = [python, "-P", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=200)
    assert done.stdout.strip() == "OpenEnv server, 8 sessions, steps /s True", done.stderr
