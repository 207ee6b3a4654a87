"""Benchmark of environments that wait: episodes that search through a slow server at the same time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from ...agents.base import Agent, Reply, Seat
from ...agents.play import Job, play
from ...envs.searchqa import SearchQA
from .row import Row
from .slow_retrieval import SlowRetrieval

_EPISODES, _SEARCHES, _DELAY = 16, 4, 0.05


class _Asking(Agent):
    """Agent that searches four times, and then answers."""

    name = "asking"

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        replies: list[Reply | None] = []
        for seat in seats:
            turn = len(seat.episode.turns)
            tag = "search" if turn < _SEARCHES else "answer"
            replies.append(Reply((f"<{tag}>publisher {seat.episode.seed} in {turn}</{tag}>",)))
        return replies


def measure(peers: bool = False, rounds: int = 3) -> Iterator[Row]:
    """Yield the wall time of 16 episodes with 64 searches of 50 ms each, stepped concurrently.

    Args:
        peers: Unused; the baseline is the same play without concurrency.
        rounds: Number of measurements after the first one, which opens the connections.
    """
    del peers
    local = SearchQA(dataset="encyclopedia")
    server = SlowRetrieval(local.retriever, delay=_DELAY)
    with server.running() as url:
        envs = [SearchQA(dataset="encyclopedia", retriever=url) for _ in range(_EPISODES)]

        def seconds(waits: bool) -> float:
            for env in envs:
                env.waits = waits
            start = time.perf_counter()
            played = list(play(_Asking(), envs, [Job(None, seed) for seed in range(_EPISODES)]))
            taken = time.perf_counter() - start
            if any(episode.error for episode in played):
                raise RuntimeError("an episode broke off: the measurement is void")
            return taken

        first = seconds(True)
        concurrent = min(seconds(True) for _ in range(rounds))
        sequential = seconds(False)
    what = f"{_EPISODES} episodes, {_EPISODES * _SEARCHES} searches of {1000 * _DELAY:.0f} ms"
    details = f"first time {first:.2f} s, one after another {sequential:.1f} s"
    yield Row(what, concurrent, "s", target=0.3, higher_is_better=False, details=details)
