"""Environments and a search index as MCP servers, used by the client of the package over stdio."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from arboretum import __version__
from arboretum.agents.adapters.rows import ActTool
from arboretum.agents.episode_chat import EpisodeChat
from arboretum.envs.registry import make_env


def ask(
    source: str, *calls: tuple[str, dict[str, Any]], module: str = "mcp", parallel: bool = False
) -> tuple[list[str], list[Any]]:
    """Start a server, call tools, and return the names of its tools and the results; errors are texts.

    The first call is answered before the others are made, which may be in parallel.
    """
    pytest.importorskip("mcp.server.mcpserver", reason="needs mcp 2: pip install arboretum-rl[mcp]")
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    command = ["-m", f"arboretum.agents.adapters.{module}", source]
    server = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))

    async def talk() -> tuple[list[str], list[Any]]:
        async with stdio_client(server) as streams, ClientSession(*streams) as session:
            await session.initialize()
            tools = [tool.name for tool in (await session.list_tools()).tools]
            size = len(calls) - 1 if parallel else 1
            results = [await session.call_tool(*calls[0])]
            for place in range(1, len(calls), max(size, 1)):
                waiting = [session.call_tool(*call) for call in calls[place : place + size]]
                results += await asyncio.gather(*waiting)
            return tools, [read(result) for result in results]

    def read(result: Any) -> Any:
        text = result.content[0].text if result.content else ""
        return text if result.is_error else result.structured_content

    return asyncio.run(asyncio.wait_for(talk(), 120))


@pytest.mark.heavy
def test_environment_is_played_marked_and_set_back() -> None:
    tools, results = ask(
        "TextSokoban-v0",
        ("start", {"seed": 3}),
        ("act", {"action": "Up"}),
        ("mark", {"name": "a"}),
        ("act", {"action": "Left"}),
        ("act", {"action": "Fly"}),
        ("back", {"name": "a"}),
        ("act", {"action": "Left"}),
    )
    assert tools == ["start", "act", "mark", "back"]
    chat = EpisodeChat(make_env("TextSokoban-v0"), ActTool())
    chat.open(seed=3)
    first = chat.episode.final_observation
    chat.hear("Up")
    second = chat.episode.final_observation
    reward = chat.hear("Left").reward
    assert results[0]["observation"] == first and results[1]["observation"] == second
    assert results[2] == {"result": "marked 'a' after 1 actions"}
    assert results[5] == results[1] and results[3] == results[6]
    assert results[6]["observation"] == chat.episode.final_observation and results[6]["reward"] == reward
    assert not results[6]["done"] and not results[6]["success"]


SLOW = """
import time
from arboretum.envs.bandit import Bandit
from arboretum.envs.core import Outcome

class Counter(Bandit):
    def _apply(self, action):
        self.count = getattr(self, "count", 0)
        before = self.count
        time.sleep(0.05)
        self.count = before + 1
        return Outcome(f"step {self.count}", 0.0, False, False, True, True)
"""


@pytest.mark.heavy
def test_parallel_calls_are_executed_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    acts = [("act", {"action": "Up"})] * 6
    _, results = ask("slow:Counter", ("start", {"seed": 1}), *acts, parallel=True)
    assert sorted(result["observation"] for result in results[1:]) == [f"step {n}" for n in range(1, 7)]


@pytest.mark.heavy
def test_wrong_calls_are_answered_in_one_sentence_and_the_server_goes_on() -> None:
    _, results = ask(
        "TextBandit-v0",
        ("act", {"action": "Up"}),
        ("start", {"task": "nowhere"}),
        ("start", {"seed": "\x00"}),
        ("start", {"seed": -1}),
        ("back", {"name": "b"}),
        ("fly", {}),
        ("start", {"seed": 1}),
    )
    assert "call start first" in results[0] and "nowhere" in results[1] and "there is no mark 'b'" in results[4]
    assert all(isinstance(result, str) for result in results[:6])
    assert results[6]["observation"]


@pytest.mark.heavy
def test_ended_episode_names_the_tools_that_go_on() -> None:
    _, results = ask(
        "TextBandit-v0",
        ("start", {"task": "Teacher/Trader", "seed": 1}),
        ("act", {"action": "Trader"}),
        ("act", {"action": "Trader"}),
    )
    assert results[1]["done"] and "the episode has ended; call start to begin another" in results[2]


@pytest.mark.heavy
def test_server_outlives_hostile_lines_and_a_client_of_another_version() -> None:
    pytest.importorskip("mcp.server.mcpserver", reason="needs mcp 2: pip install arboretum-rl[mcp]")

    def request(number: int, method: str, **params: Any) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()

    client = {"protocolVersion": "1999-01-01", "capabilities": {}, "clientInfo": {"name": "old", "version": "0"}}
    hostile = [b"\x00\xff\xfe", b"", b"{" * 100_000, b"[1]", b"7", b'{"jsonrpc":"2.0"}', request(1, "fly")]
    initialized = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
    lines = [*hostile, request(2, "initialize", **client), initialized, *hostile[:-1]]
    lines.append(request(3, "tools/call", name="start", arguments={"seed": 1}))
    command = [sys.executable, "-m", "arboretum.agents.adapters.mcp", "TextBandit-v0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(b"\n".join([*lines, b""]))
        server.stdin.flush()
        answers = {answer["id"]: answer for answer in map(json.loads, islice(server.stdout, 3))}
        server.stdin.close()
        assert server.wait(30) == 0
    assert answers[1]["error"]["message"] == "Method not found"
    assert answers[2]["result"]["serverInfo"] == {"name": "arboretum TextBandit-v0", "version": __version__}
    assert answers[3]["result"]["structuredContent"]["observation"].startswith("The arms are")


@pytest.mark.heavy
def test_corpus_is_searched(tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    documents = [("0", '"Oak"\nA tree with acorns.'), ("1", '"Harbor"\nShips anchor here.')]
    lines = [json.dumps({"id": id, "contents": contents}) for id, contents in documents]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")
    tools, ((found),) = ask(str(corpus), ("search", {"query": "ships", "count": 1}), module="mcp_search")
    assert tools == ["search"]
    (hit,) = found["result"]
    assert hit["title"] == "Harbor" and hit["text"] == "Ships anchor here." and hit["score"] > 0


RUN_WITHOUT_THE_EXTRA = """
import runpy, sys
sys.modules["mcp"] = None
runpy.run_module(sys.argv.pop(1), run_name="__main__")
"""


@pytest.mark.parametrize(("module", "source"), [("mcp", "TextSokoban-v0"), ("mcp_search", "corpus.jsonl")])
def test_missing_extra_is_reported_in_one_sentence(module: str, source: str) -> None:
    command = [sys.executable, "-c", RUN_WITHOUT_THE_EXTRA, f"arboretum.agents.adapters.{module}", source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith('arboretum: an MCP server needs the extra "mcp" (mcp')
    assert "pip install" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("module", ["mcp", "mcp_search"])
def test_server_without_an_argument_prints_its_usage(module: str) -> None:
    command = [sys.executable, "-m", f"arboretum.agents.adapters.{module}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("usage: ") and "required: " in done.stderr
