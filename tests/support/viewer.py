"""Runs for the tests of the viewer, with agents that write hostile texts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from arboretum.agents.base import Agent, Reply, Seat
from arboretum.agents.registry import make_agent
from arboretum.eval.agents import GivenAgent, NamedAgent
from arboretum.eval.evaluate import evaluate

HOSTILE = (
    '<script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'
    "\x1b[31m\u202e{{ 7 * 7 }}\"'&amp;</pre></main>"
)

SUITE = """name: small
description: Boards and lakes
entries:
  - {name: Sokoban, env: TextSokoban-v0, split: test, tasks: 3, max_steps: 30}
  - {name: Lake, env: TextFrozenLake-v0, split: test, tasks: 3, max_steps: 20}
"""


class HostileAgent(Agent):
    """Agent that plays the expert's actions after a refused one, with markup in its reply and thought."""

    name = "hostile"
    one_process = True

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        replies: list[Reply | None] = []
        for reply in make_agent("expert").act(seats):
            assert reply is not None
            replies.append(Reply((HOSTILE, *reply.actions), text=f"reply {HOSTILE}", thought=f"thought {HOSTILE}"))
        return replies


def make_run(folder: Path, suite: str = SUITE) -> Path:
    """Play a suite by the random agent, the expert and the hostile agent, and return the folder of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "small.yaml"
    path.write_text(suite, encoding="utf-8")
    with Path(os.devnull).open("w") as sink:
        agents = [NamedAgent("random"), NamedAgent("expert"), GivenAgent(HostileAgent())]
        evaluate(str(path), agents, out=folder / "runs" / "small", workers=1, console=Console(file=sink))
    return folder / "runs" / "small"
