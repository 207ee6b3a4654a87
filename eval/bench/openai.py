"""How near the OpenAI engine comes to the ideal rate: requests under way over the answering time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import closing

from ...agents.engines.base import Message, Request, Sampling
from ...agents.engines.openai import OpenAIEngine
from .endpoint import in_a_process
from .row import Row

_DELAY = 0.1
_TURNS = 5
_OBSERVATION = "You are in the middle of a room. Looking quickly around you, you see a desk 1 and a shelf 2. " * 3


def measure(peers: bool = False, rounds: int = 3, conversations: int = 64, waves: int = 20) -> Iterator[Row]:
    """Keep `conversations` requests of a few turns each under way against a server that answers in 100 ms."""
    rates, cpu = [], []
    with in_a_process(_DELAY) as (url, _), closing(OpenAIEngine("m", base_url=url, api_key="k")) as engine:
        _drive(engine, conversations, 2 * conversations)
        for _ in range(rounds):
            wall, ours = time.perf_counter(), time.process_time()
            _drive(engine, conversations, waves * conversations)
            rates.append(waves * conversations / (time.perf_counter() - wall))
            cpu.append(1000 * (time.process_time() - ours) / (waves * conversations))
    ideal = conversations / _DELAY
    beside = f"{statistics.median(rates):.0f}/s of {ideal:.0f}/s, {statistics.median(cpu):.2f} ms CPU a request"
    yield Row(f"openai engine, {conversations} at once", statistics.median(rates) / ideal, "x", 0.9, beside=beside)


def _drive(engine: OpenAIEngine, conversations: int, total: int) -> None:
    """Answer every reply with the next request, until `total` were made."""
    made = 0
    turns = dict.fromkeys((str(n) for n in range(conversations)), 0)

    def ask(name: str) -> None:
        nonlocal made
        made += 1
        turn = turns[name] = turns[name] % _TURNS + 1
        dialogue = [Message("assistant" if n % 2 else "user", _OBSERVATION) for n in range(2 * turn - 1)]
        engine.submit(Request(name, (Message("system", _OBSERVATION), *dialogue), None, Sampling(), made))

    for name in turns:
        ask(name)
    waiting = conversations
    while waiting:
        for name, completion in engine.collect():
            assert completion.finish == "stop", completion.error
            if made < total:
                ask(name)
            else:
                waiting -= 1
