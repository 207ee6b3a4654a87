"""Benchmark of the harness: CPU time of dialogue, tokens, environments and records, relative to the engine's."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ...agents.engines.base import Completion, Engine, Request
from ...agents.engines.transformers import TransformersEngine
from ...agents.episode import Episode
from ...agents.play import Job, play
from ...agents.registry import make_agent
from ...envs.registry import make_env
from ..api import evaluate
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
    """Yield the CPU time of a rollout and of an evaluation outside the engine, as percentages of the engine's.

    The workload is Sokoban with the agent `think`, 32 concurrent episodes and a model of 0.36M parameters. The
    percentages fall with the size of the model. The evaluation also plans the run, stores the episodes with
    their conversations, and reports them.

    Args:
        peers: Unused; there is no original system.
        episodes: Number of episodes.
        turns: Number of turns per episode.
    """
    del peers
    with one_thread(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine = TimedEngine(TransformersEngine(make_tiny_model(folder / "model"), device="cpu", max_batch=32))
        sampling = {"max_tokens": 32, "temperature": 1.0}
        dialogue = {"max_turns": turns, "max_actions": None}
        agent = make_agent("think", engine=engine, sampling=sampling, dialogue=dialogue)
        envs = [make_env("TextSokoban-v0") for _ in range(32)]

        def measured(run: Callable[[], Iterable[Episode]]) -> tuple[float, str]:
            """Return the percentage, and the rate of sampled tokens in words."""
            engine.seconds = 0.0
            start = time.process_time()
            played = list(run())
            total = time.process_time() - start
            sampled = sum(sum(turn.loss_mask or ()) for episode in played for turn in episode.turns)
            rate = f"{sampled / total:,.0f} sampled tokens/s overall"
            return 100 * (total - engine.seconds) / engine.seconds, rate

        def evaluated() -> Iterable[Episode]:
            run = folder / "run"
            return evaluate("TextSokoban-v0", agent, limit=episodes, in_flight=32, out=run).episodes.values()

        list(play(agent, envs, [Job(None, seed) for seed in range(32)]))  # warm-up
        share, rate = measured(lambda: play(agent, envs, [Job(None, seed) for seed in range(episodes)]))
        yield Row(f"harness / engine time, {turns} turns", share, "%", 5.0, False, rate)
        share, rate = measured(evaluated)
        yield Row(f"evaluation / engine time, {turns} turns", share, "%", 10.0, False, rate)
