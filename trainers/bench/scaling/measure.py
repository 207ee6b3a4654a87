"""Measured points of the cost model: our engine, learner and harness with random models of several sizes."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....agents.engines.base import Request, Sampling
from ....agents.engines.transformers import TransformersEngine
from ....agents.play import Job, play
from ....agents.registry import make_agent
from ....envs.registry import make_env
from ....eval.bench.harness import TimedEngine
from ....eval.bench.threads import one_thread
from ....eval.bench.tiny import make_tiny_model
from ..update_ours import make_learner, make_recipe
from ..workload import Workload, read_episodes
from .costs import decode_work, prefill_work, score_work, update_work
from .fit import Point
from .model_shape import ModelShape, find_shape

if TYPE_CHECKING:
    from ...learning.learner import Learner

_MICROBATCH = 2048
_NEW_TOKENS = 48
"""Tokens of a further turn's prompt."""
_REPLY = 24


class Size(NamedTuple):
    """Size of a random model.

    Attributes:
        hidden: Hidden size.
        layers: Number of layers.
        held_out: True if its points are compared with the prediction, but not fitted.
    """

    hidden: int
    layers: int
    held_out: bool = False


SIZES = (Size(128, 2), Size(128, 8), Size(256, 4), Size(512, 2), Size(384, 3, held_out=True))
BATCHES = ((1, 160), (8, 160), (32, 160), (16, 480))
"""Conversations, and the tokens of their prompts."""
WORKLOADS = (Workload(prompts=1, rollouts=4), Workload(prompts=4, rollouts=4))
"""Episodes of an update."""


def measure_points(
    sizes: Sequence[Size] = SIZES, batches: Sequence[tuple[int, int]] = BATCHES, rounds: int = 3
) -> Iterator[Point]:
    """Yield points measured in CPU seconds of one thread, in float32.

    Args:
        sizes: Models.
        batches: Conversations and prompt tokens to sample with.
        rounds: Repetitions, of which the fastest counts: other processes only ever add time.
    """
    with one_thread():
        for size in sizes:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                make_tiny_model(folder / "model", hidden=size.hidden, layers=size.layers)
                shape = find_shape(str(folder / "model"))
                yield from _sampling_points(folder / "model", shape, size.held_out, batches, rounds)
                yield from _learning_points(folder, shape, size, rounds)
        yield from _turn_points(rounds)


def _fastest(run: Callable[[], Any], rounds: int) -> float:
    """Return the CPU seconds of the fastest of several calls, after one that is not timed."""
    run()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


# ---------------------------------------------------------------------- sampling


def _sampling_points(
    model: Path, shape: ModelShape, held_out: bool, batches: Sequence[tuple[int, int]], rounds: int
) -> Iterator[Point]:
    engine = TransformersEngine(model, device="cpu", max_batch=64, processed_logprobs=True)
    engine.end_ids = frozenset()  # All replies have the same length.
    for sequences, tokens in batches:
        what = f"{shape.parameters / 1e6:.1f}M, {sequences} x {tokens} tokens"
        seconds = [_time_turns(engine, sequences, tokens, reply, rounds) for reply in (1, 1 + _REPLY)]
        context = sequences * (tokens + _REPLY / 2)
        yield Point(
            "decode",
            what,
            dict(decode_work(shape, sequences, context)),
            (seconds[1][0] - seconds[0][0]) / _REPLY,
            held_out,
        )
        first, further = seconds[0]
        yield Point("prefill", what, dict(prefill_work(shape, sequences * tokens, 0, sequences)), first, held_out)
        work = prefill_work(shape, sequences * _NEW_TOKENS, tokens + 1, sequences)
        yield Point("prefill", f"{what}, next turn", dict(work), further, held_out)
    engine.close()


def _time_turns(
    engine: TransformersEngine, sequences: int, tokens: int, reply: int, rounds: int
) -> tuple[float, float]:
    """Return the CPU seconds of a first turn and of a further one, the fastest of several rounds each."""
    rng = np.random.default_rng(0)
    first, further = [], []
    for _ in range(rounds + 1):
        prompts = rng.integers(0, 300, (sequences, tokens)).tolist()
        start = time.process_time()
        replies = _sample(engine, prompts, reply)
        first.append(time.process_time() - start)
        more = rng.integers(0, 300, (sequences, _NEW_TOKENS)).tolist()
        prompts = [[*prompts[n], *replies[n], *more[n]] for n in range(sequences)]
        start = time.process_time()
        _sample(engine, prompts, reply)
        further.append(time.process_time() - start)
        for number in range(sequences):
            engine.release(str(number))
    return min(first[1:]), min(further[1:])


def _sample(engine: TransformersEngine, prompts: Sequence[Sequence[int]], reply: int) -> dict[int, list[int]]:
    """Sample a reply of exactly `reply` tokens to every prompt, and return their tokens."""
    sampling = Sampling(temperature=1.0, max_tokens=reply)
    for number, prompt in enumerate(prompts):
        engine.submit(Request(str(number), (), prompt, sampling, seed=number))
    replies: dict[int, list[int]] = {}
    while len(replies) < len(prompts):
        replies |= {int(name): done.token_ids or [] for name, done in engine.collect()}
    return replies


# ---------------------------------------------------------------------- learning


def _learning_points(folder: Path, shape: ModelShape, size: Size, rounds: int) -> Iterator[Point]:
    from dataclasses import replace

    from ...data.episodes import from_episodes
    from ...data.rollouts import Rollouts

    for workload in WORKLOADS:
        workload = replace(workload, hidden=size.hidden, layers=size.layers)
        part = folder / f"{workload.prompts}x{workload.rollouts}"
        workload.write(part)
        rollouts: Rollouts = from_episodes(*read_episodes(part))
        # Returns of an expert are often equal; random ones give every row a gradient.
        rollouts = replace(rollouts, turn_reward=np.random.default_rng(0).normal(size=rollouts.turns))
        learner: Learner = make_learner(part, make_recipe(rounds + 1), "cpu", "float32", _MICROBATCH)
        lengths = [len(row) for row in rollouts.rows]
        microbatches = math.ceil(sum(lengths) / _MICROBATCH)
        what = f"{shape.parameters / 1e6:.1f}M, {len(lengths)} episodes"
        score = _fastest(partial(learner.scorer.score, rollouts, 1.0), rounds)
        yield Point(
            "score", what, dict(score_work(shape, lengths, rollouts.actions, microbatches)), score, size.held_out
        )
        update = _fastest(partial(learner.update, rollouts, update=0, temperature=1.0), rounds)
        work = update_work(shape, lengths, rollouts.actions, microbatches, 1)
        yield Point("update", what, dict(work), update, size.held_out)


# ---------------------------------------------------------------------- the harness


def _turn_points(rounds: int) -> Iterator[Point]:
    """Yield the CPU seconds of a turn outside the engine: dialogue, tokenization, environment and record."""
    with tempfile.TemporaryDirectory() as name:
        engine = TimedEngine(TransformersEngine(make_tiny_model(Path(name) / "model"), device="cpu", max_batch=32))
        agent = make_agent(
            "think", engine=engine, sampling={"max_tokens": 32, "temperature": 1.0}, dialogue={"max_turns": 5}
        )
        envs = [make_env("TextSokoban-v0") for _ in range(32)]
        seconds = []
        for _ in range(rounds + 1):
            engine.seconds = 0.0
            start = time.process_time()
            turns = sum(len(episode.turns) for episode in play(agent, envs, [Job(None, n) for n in range(32)]))
            seconds.append((time.process_time() - start - engine.seconds) / turns)
    yield Point("turn", "Sokoban, dialogue think", {"turn": 1.0}, statistics.median(seconds[1:]))
