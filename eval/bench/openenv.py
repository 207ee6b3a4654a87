"""Benchmark of the server for OpenEnv's clients: steps per second of many sessions over the socket."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

from .row import Row

_ACTIONS = ("Up", "Left", "Down", "Right")


def measure(peers: bool = False, sessions: int = 200, steps: int = 100, rounds: int = 3) -> Iterator[Row]:
    """Yield the rate of a server of Sokoban whose sessions each send the next action when the last is answered.

    Where the platform can pin processes, the server has one core and all clients have another.

    Args:
        peers: Unused; there is no original system.
        sessions: Number of sessions that are open at once.
        steps: Number of steps of each session in one measurement.
        rounds: Number of measurements; the median is reported.
    """
    del peers
    command = [sys.executable, "-m", "arboretum", "serve", "envs", "TextSokoban-v0", "--port", "0"]
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=unbuffered)
    try:
        assert server.stdout is not None
        found = next((url for line in server.stdout if (url := re.search(r"http://[\d.]+:\d+", line))), None)
        if found is None:
            raise RuntimeError("the server of environments ended without an address")
        _pin(server.pid, 0)
        rates = sorted(_rate(f"ws{found[0][4:]}/ws", sessions, steps) for _ in range(rounds))
    finally:
        server.terminate()
        server.wait()
    what = f"OpenEnv server, {sessions} sessions, steps"
    details = f"{rates[0]:,.0f} to {rates[-1]:,.0f} in {rounds} rounds"
    yield Row(what, rates[rounds // 2], "/s", target=2000, details=details)


def _rate(url: str, sessions: int, steps: int) -> float:
    """Return the steps per second of all clients, in a process of their own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    clients = context.Process(target=_run_clients, args=(url, sessions, steps, sender))
    clients.start()
    sender.close()
    try:
        rate: float = receiver.recv()
    finally:
        clients.join()
    return rate


def _run_clients(url: str, sessions: int, steps: int, sender: Connection) -> None:
    _pin(0, 1)
    sender.send(asyncio.run(_clients(url, sessions, steps)))


async def _clients(url: str, sessions: int, steps: int) -> float:
    start, ready = asyncio.Event(), asyncio.Semaphore(0)
    clients = [asyncio.create_task(_client(url, seed, steps, start, ready)) for seed in range(sessions)]
    for _ in clients:
        await ready.acquire()
    started = time.perf_counter()
    start.set()
    await asyncio.gather(*clients)
    return sessions * steps / (time.perf_counter() - started)


async def _client(url: str, seed: int, steps: int, start: asyncio.Event, ready: asyncio.Semaphore) -> None:
    from websockets.asyncio.client import connect

    async with connect(url, proxy=None, compression=None) as socket:
        await socket.send(json.dumps({"type": "reset", "data": {"seed": seed}}))
        await socket.recv()
        ready.release()
        await start.wait()
        for step in range(steps):
            action = _ACTIONS[(step + seed) % len(_ACTIONS)]
            await socket.send(json.dumps({"type": "step", "data": {"action": action}}))
            answer = json.loads(await socket.recv())
            if answer["type"] != "observation":
                raise RuntimeError(f"the server answered a step with {answer}")


def _pin(process: int, core: int) -> None:
    """Pin a process (0: this one) to one of the cores that this one may use, where the platform can and has it."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if core < len(cores):
        os.sched_setaffinity(process, {cores[core]})
