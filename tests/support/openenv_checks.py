"""Program that uses a server of environments from an environment with OpenEnv, and prints what it saw as JSON.

Run by tests/agents/adapters/test_openenv.py: `python openenv_checks.py CHECK ADDRESS-OR-FOLDER`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

ACTIONS = ["Up", "Left", "Fly", "Down", "Right", "Right", "Down", "Up", "Left", "Left"]


def play(url: str) -> Any:
    """Play with our client, through a session that the server closes in between."""
    import gymnasium
    import numpy as np
    from gymnasium.utils.env_checker import check_env

    import arboretum  # noqa: F401
    from arboretum.agents.adapters.openenv_client import RemoteEnv

    env = RemoteEnv(f"{url}/TextSokoban-v0")
    assert isinstance(env, gymnasium.Env)
    found = [env.reset(seed=5)] + [env.step(action) for action in ACTIONS[:5]]
    time.sleep(4)
    found += [env.step(action) for action in ACTIONS[5:]]
    state = env.state
    again = [env.reset(options={"injected_state": state}), env.step("Up")]
    check_env(env)
    problems = []
    for options in (
        {"task": "nowhere"},
        {"tsak": 1},
        {"task": np.int64(10**12)},
        {"injected_state": {"task": "any/1"}},
    ):
        try:
            env.reset(seed=1, options=options)
        except ValueError as error:
            problems.append(str(error))
    reconnects = env.reconnects
    env.close()
    return {"steps": found, "state": state, "again": again, "problems": problems, "reconnects": reconnects}


def converse(url: str) -> Any:
    """Play the same replies in conversations and in `play`, once on the server and once here."""
    import gymnasium

    from arboretum.agents.adapters.openenv_client import RemoteEnv
    from arboretum.agents.base import Agent, Reply, Seat
    from arboretum.agents.dialogue import make_dialogue
    from arboretum.agents.episode_chat import EpisodeChat
    from arboretum.agents.play import Job, play
    from arboretum.envs.registry import make_env

    class Walker(Agent):
        name = "walker"

        def act(self, seats: Any) -> list[Reply | None]:
            return [Reply((ACTIONS[len(seat.episode.turns)],)) for seat in seats]

        def begin(self, seat: Seat) -> None:
            assert seat.waits is isinstance(seat.env, RemoteEnv)

    found = []
    for make in (lambda: RemoteEnv(f"{url}/TextSokoban-v0"), lambda: make_env("TextSokoban-v0")):
        envs: list[Any] = [make(), make()]
        chat = EpisodeChat(envs[0], make_dialogue("think", {"max_turns": 3}))
        messages = [list(chat.open(seed=4))]
        while not chat.done:
            messages.append(chat.hear("<think>a</think><answer>Up || Fly</answer>").messages)
        played = play(Walker(), envs, [Job(None, seed) for seed in range(6)], max_turns=len(ACTIONS))
        episodes = sorted((one.seed, one.task, one.total_reward, one.final_observation) for one in played)
        found.append([messages, chat.score, episodes])
        again = gymnasium.make(envs[0].spec)  # as `play` does after a time limit
        assert again.reset(seed=1)[0] == envs[0].reset(seed=1)[0]
        for env in (again, *envs):
            env.close()
    return found


def reconnect(url: str) -> Any:
    """Lose sessions before a reset and after the end of an episode, and a reply to a time limit."""
    from threading import Thread

    from websockets.sync.server import serve

    from arboretum.agents.adapters.openenv_client import RemoteEnv
    from arboretum.envs.registry import make_env

    env = RemoteEnv(f"{url}/TextBandit-v0")
    env.reset(seed=1)
    time.sleep(4)
    found: dict[str, Any] = {"reset": env.reset(seed=2)}
    local = make_env("TextBandit-v0")
    local.reset(seed=2)
    env.step((local.admissible_actions() or ("",))[0])  # It ends the episode.
    env.step("Up")
    time.sleep(4)
    found |= {"after the end": env.step("Up"), "actions": len(env.state["actions"]), "reconnects": env.reconnects}
    env.close()

    def answer(socket: Any) -> None:
        for message in socket:
            request = json.loads(message)
            text = request["data"].get("action") or "first"
            time.sleep(1.0 if text == "slow" else 0.0)
            observation = {"observation": text, "terminated": False, "truncated": False, "info": {"task": "t"}}
            socket.send(json.dumps({"type": "observation", "data": {"observation": observation, "reward": 0.0}}))

    with serve(answer, "127.0.0.1", 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        env = RemoteEnv(f"http://127.0.0.1:{server.socket.getsockname()[1]}", timeout=0.3)
        env.reset(seed=1)
        try:
            env.step("slow")
        except TimeoutError as error:
            found["late"] = str(error)
        time.sleep(1.0)
        found |= {"next": env.step("quick")[0], "kept": env.state["actions"]}
        env.close()
        server.shutdown()
    return found


def attack(url: str) -> Any:
    """Send hostile messages, each followed by a good one in the same session; then take too many sessions."""
    from websockets.sync.client import connect

    address = f"ws{url.removeprefix('http')}/TextBandit-v0/ws"
    hostile: list[str | bytes] = [b"\x00\xff\xfe", "", "nonsense", "[1]", "7", "{" * 100_000, '{"a":' * 50_000]
    hostile += ["1" * 5000, '{"type":"step","data":{"action":"\\ud800"}}', '{"type":"step","data":{"action":NaN}}']
    hostile += ['{"type":"fly"}', '{"type":"reset","data":{"seed":"x"}}', '{"type":"reset","data":{"seed":-1}}']
    hostile += ['{"type":"reset","data":[]}', '{"type":"step"}', '{"type":"step","data":{"acton":"Up"}}']
    answers = []
    with connect(address, proxy=None) as socket:
        for message in hostile:
            socket.send(message)
            answers.append(json.loads(socket.recv(30)))
            socket.send('{"type":"reset","data":{"seed":1}}')
            assert json.loads(socket.recv(30))["type"] == "observation"
    with connect(address, proxy=None) as first, connect(address, proxy=None), connect(address, proxy=None):
        first.send('{"type":"state"}')
        state = json.loads(first.recv(30))
        with connect(address, proxy=None) as refused:
            answers.append(json.loads(refused.recv(30)))
        idle = json.loads(first.recv(30))
    foreign = [
        request(f"{url}/TextBandit-v0/health", headers={name: value})[0]
        for name, value in (("Host", "evil.example"), ("Origin", "http://["), ("Origin", "null"))
    ]
    headers = {"Content-Type": "application/json"}
    step = request(f"{url}/TextBandit-v0/step", data=b'{"action": {"action": "Up"}}', headers=headers)
    with urllib.request.urlopen(f"{url}/status") as reply:
        status = json.load(reply)
    found = {"answers": answers, "state": state, "idle": idle, "foreign": foreign, "status": status}
    return found | {"step": step, "silent": silent(url)}


def request(url: str, **options: Any) -> tuple[int, str]:
    """Return status and body of a response."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, **options), timeout=30) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def silent(url: str) -> list[int]:
    """Open more connections than the server takes, without a whole request; return its status then and later."""
    address = urllib.parse.urlsplit(url)
    connections = [socket.create_connection((address.hostname, address.port), timeout=30) for _ in range(100)]
    for connection in connections[::2]:
        connection.sendall(b"POST /TextBandit-v0/reset HTTP/1.1\r\nHo")
    before = request(f"{url}/status")[0]
    for connection in connections:
        assert connection.recv(1) == b""
        connection.close()
    return [before, request(f"{url}/status")[0]]


ODD = (
    {"info": {}},
    {"info": {"task": 7}},
    {"info": {"task": "t", "admissible_actions": 5}},
    {"terminated": "no", "info": {"task": "t"}},
    {"info": {"task": "t", "nested": [[]]}},
)
"""Observations of servers of another version; the lists of the last one are nested more deeply than Python can."""


def versions(_: str) -> Any:
    """Reset with servers of another version, and connect to addresses that are none."""
    from threading import Thread

    from websockets.sync.server import serve

    from arboretum.agents.adapters.openenv_client import RemoteEnv

    def answer(socket: Any) -> None:
        for message in socket:
            observation = {"observation": "", "terminated": False, "truncated": False}
            observation |= ODD[json.loads(message)["data"]["seed"]]
            text = json.dumps({"type": "observation", "data": {"observation": observation, "reward": 0.0}})
            socket.send(text.replace("[[]]", "[" * 5000 + "]" * 5000))

    problems = []
    with serve(answer, "127.0.0.1", 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        env = RemoteEnv(f"http://127.0.0.1:{server.socket.getsockname()[1]}", timeout=20)
        for seed in range(len(ODD)):
            try:
                env.reset(seed=seed)
            except ValueError as error:
                problems.append(str(error))
        env.close()
        server.shutdown()
    for url in ("http://[", "http://127.0.0.1:99999", "nonsense"):
        try:
            RemoteEnv(url)
        except ValueError as error:
            problems.append(str(error))
    return problems


def load(url: str, sessions: int = 200) -> Any:
    """Play in many sessions at once with OpenEnv's own client."""
    from openenv.core import GenericEnvClient

    async def one(number: int) -> int:
        async with GenericEnvClient(base_url=url) as env:
            first = await env.reset(seed=number)
            for action in ACTIONS:
                result = await env.step({"action": action})
                assert result.observation["info"]["task"] == first.observation["info"]["task"]
            return (await env.state())["step_count"]

    async def everyone() -> list[int]:
        return await asyncio.gather(*map(one, range(sessions)))

    return asyncio.run(everyone())


def oracles(folder: str) -> Any:
    """Inject the oracle of every manifest, and validate the manifest."""
    from openenv.validation import Level, run_validation

    from arboretum.agents.adapters.openenv import OpenEnvironment

    found = {}
    for package in sorted(Path(folder).iterdir()):
        env = OpenEnvironment(package.name, {"reward_mode": "sparse"})
        observation = env.reset(injected_state=json.loads((package / "oracle.json").read_text()))
        tasks = env.get_task_range("all", 1, 3)
        report = run_validation(package, max_level=Level.STATIC, skip_build=True)
        found[package.name] = [observation.reward, observation.done, len(tasks), report.verdict.value]
    return found


if __name__ == "__main__":
    checks = {"play": play, "reconnect": reconnect, "attack": attack, "load": load, "oracles": oracles}
    checks |= {"versions": versions, "converse": converse}
    print(json.dumps(checks[sys.argv[1]](sys.argv[2])))
