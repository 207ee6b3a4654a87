"""Benchmark of the harness: CPU time of dialogue, tokens, environments and records, relative to the engine's."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ...agents.engines.base import Completion, Engine, Request
from ...agents.engines.transformers import TransformersEngine
from ...agents.play import Job, play
from ...agents.registry import make_agent
from ...envs.registry import make_env
from .row import Row
from .threads import one_thread
from .tiny import make_tiny_model


class TimedEngine(Engine):
    """Wrapper of an engine that measures the CPU seconds spent in it."""

    def __init__(self, engine: TransformersEngine) -> None:
        self.engine = engine
        self.name, self.usage = engine.name, engine.usage
        self.tokenizer, self.context, self.end_ids = engine.tokenizer, engine.context, engine.end_ids
        self.seconds = 0.0

    def submit(self, request: Request) -> None:
        start = time.process_time()
        self.engine.submit(request)
        self.seconds += time.process_time() - start

    def collect(self) -> list[tuple[str, Completion]]:
        start = time.process_time()
        done = self.engine.collect()
        self.seconds += time.process_time() - start
        return done

    def release(self, conversation: str) -> None:
        start = time.process_time()
        self.engine.release(conversation)
        self.seconds += time.process_time() - start


def measure(peers: bool = False, episodes: int = 64, turns: int = 10) -> Iterator[Row]:
    """Yield the CPU time of a rollout outside the engine, as a percentage of the engine's.

    The workload is Sokoban with the agent `think`, 32 concurrent episodes and a model of 0.36M parameters. The
    percentage falls with the size of the model.

    Args:
        peers: Unused; there is no original system.
        episodes: Number of episodes.
        turns: Number of turns per episode.
    """
    del peers
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        engine = TimedEngine(
            TransformersEngine(make_tiny_model(Path(folder) / "model"), device="cpu", max_batch=32)
        )
        sampling = {"max_tokens": 32, "temperature": 1.0}
        dialogue = {"max_turns": turns, "max_actions": None}
        agent = make_agent("think", engine=engine, sampling=sampling, dialogue=dialogue)
        envs = [make_env("TextSokoban-v0") for _ in range(32)]
        list(play(agent, envs, [Job(None, seed) for seed in range(32)]))  # warm-up
        engine.seconds = 0.0
        start = time.process_time()
        played = list(play(agent, envs, [Job(None, seed) for seed in range(episodes)]))
        total = time.process_time() - start
    sampled = sum(sum(turn.loss_mask or ()) for episode in played for turn in episode.turns)
    share = 100 * (total - engine.seconds) / engine.seconds
    details = f"{sampled / total:,.0f} sampled tokens/s overall"
    yield Row(
        f"harness / engine time, {turns} turns", share, "%", target=5.0, higher_is_better=False, details=details
    )
