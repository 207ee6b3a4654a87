"""Benchmark of the OpenAI engine's request rate, as a fraction of concurrency / latency, the ideal rate."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import closing

from ...agents.engines.base import Message, Request, Sampling
from ...agents.engines.openai import OpenAIEngine
from .endpoint import run_in_process
from .row import Row

_DELAY = 0.1  # seconds
_TURNS = 5
_OBSERVATION = "You are in the middle of a room. Looking quickly around you, you see a desk 1 and a shelf 2. " * 3


def measure(peers: bool = False, rounds: int = 3, conversations: int = 64, waves: int = 20) -> Iterator[Row]:
    """Yield the rate against a local server with a latency of 100 ms.

    Args:
        peers: Unused; there is no original system.
        rounds: Number of measurements; medians are reported.
        conversations: Number of concurrent conversations, each with one open request at a time.
        waves: Number of requests per conversation and round.
    """
    del peers
    rates, cpu = [], []
    with run_in_process(_DELAY) as (url, _), closing(OpenAIEngine("m", base_url=url, api_key="k")) as engine:
        _send_requests(engine, conversations, 2 * conversations)  # warm-up
        for _ in range(rounds):
            wall, ours = time.perf_counter(), time.process_time()
            _send_requests(engine, conversations, waves * conversations)
            rates.append(waves * conversations / (time.perf_counter() - wall))
            cpu.append(1000 * (time.process_time() - ours) / (waves * conversations))
    ideal = conversations / _DELAY
    details = f"{statistics.median(rates):.0f}/s of {ideal:.0f}/s, {statistics.median(cpu):.2f} ms CPU per request"
    yield Row(
        f"openai engine, {conversations} concurrent requests",
        statistics.median(rates) / ideal,
        "x",
        0.9,
        details=details,
    )


def _send_requests(engine: OpenAIEngine, conversations: int, total: int) -> None:
    """Send the next request of a conversation after each reply, until `total` requests were sent."""
    sent = 0
    turns = dict.fromkeys((str(n) for n in range(conversations)), 0)

    def send(name: str) -> None:
        nonlocal sent
        sent += 1
        turn = turns[name] = turns[name] % _TURNS + 1
        dialogue = [Message("assistant" if n % 2 else "user", _OBSERVATION) for n in range(2 * turn - 1)]
        engine.submit(Request(name, (Message("system", _OBSERVATION), *dialogue), None, Sampling(), sent))

    for name in turns:
        send(name)
    open_requests = conversations
    while open_requests:
        for name, completion in engine.collect():
            assert completion.finish == "stop", completion.error
            if sent < total:
                send(name)
            else:
                open_requests -= 1
