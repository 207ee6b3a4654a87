"""Benchmark of rollouts with the transformers engine against `model.generate` on the same tiny model."""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...agents.engines.base import Request, Sampling
from ...agents.engines.transformers import TransformersEngine
from .row import Row, paired, ratio
from .threads import one_thread
from .tiny import make_tiny_model

# Tokens of the rules with the first state, of each further state, and of a reply, as in RAGEN's Sokoban.
_OPENING, _STATE, _REPLY = 150, 60, 32
_BATCH = 32


def measure(peers: bool = False, rounds: int = 5) -> Iterator[Row]:
    """Yield the throughput of one turn and of ten turns, in CPU seconds of one thread.

    Args:
        peers: Unused; the baseline is always installed.
        rounds: Number of paired measurements.
    """
    del peers
    with tempfile.TemporaryDirectory() as folder:
        engine = TransformersEngine(make_tiny_model(Path(folder) / "model"), device="cpu", max_batch=_BATCH)
        engine.end_ids = frozenset()  # All replies have the same length.
        generate = _Generate(engine.model)
        with one_thread():
            yield from _single_turn(engine, generate, rounds)
            yield from _episodes(engine, generate, rounds)


def _single_turn(engine: TransformersEngine, generate: _Generate, rounds: int) -> Iterator[Row]:
    # More rounds than elsewhere: they are short, and the value is close to the target.
    theirs, ours = paired([lambda: generate.play(1), lambda: _play(engine, 1)], 4 * rounds)
    what = f"sampled tokens, one turn (batch {_BATCH}, {_OPENING} + {_REPLY} tokens)"
    yield Row(what, ratio(theirs, ours), "x", target=1.0, details=_format_rate(theirs))


def _episodes(engine: TransformersEngine, generate: _Generate, rounds: int) -> Iterator[Row]:
    before = engine.computed_tokens
    _play(engine, 10)
    computed = engine.computed_tokens - before
    new = _BATCH * (_OPENING + 10 * _REPLY + 9 * _STATE)
    recomputed = _BATCH * sum(_OPENING + turn * (_REPLY + _STATE) + _REPLY for turn in range(10))
    what = "computed / new tokens, ten turns"
    yield Row(
        what, computed / new, "x", target=1.1, higher_is_better=False, details=f"generate {recomputed / new:.1f} x"
    )

    contenders: list[Callable[[], int]] = [
        lambda: generate.play(10),
        lambda: _play(engine, 10),
        lambda: generate.play(5),
        lambda: _play(engine, 5),
    ]
    theirs, ours, their_half, our_half = paired(contenders, rounds)
    yield Row("sampled tokens, ten turns", ratio(theirs, ours), "x", target=3.0, details=_format_rate(theirs))
    # 2 is exactly linear. The rest is attention over the longer history, a large share in so small a model.
    growth, their_growth = 2 * ratio(ours, our_half), 2 * ratio(theirs, their_half)
    yield Row("time of ten turns / time of five", growth, "x", details=f"generate {their_growth:.1f} x")


def _format_rate(seconds: list[float]) -> str:
    return f"generate {1 / statistics.median(seconds):,.0f} /s"


def _prompts(turn: int) -> list[list[int]]:
    """Return the new prompt tokens of each conversation at the beginning of a turn."""
    rng = random.Random(turn)
    return [[rng.randrange(300) for _ in range(_STATE if turn else _OPENING)] for _ in range(_BATCH)]


def _play(engine: TransformersEngine, turns: int) -> int:
    """Play a batch of episodes, each of which continues as soon as its reply is complete.

    Returns:
        Number of sampled tokens.
    """
    prompts = [_prompts(turn) for turn in range(turns)]
    conversations: dict[str, list[int]] = {str(n): [] for n in range(_BATCH)}
    turns_played = dict.fromkeys(conversations, 0)
    sampling = Sampling(temperature=1.0, max_tokens=_REPLY)

    def submit(name: str) -> None:
        conversations[name] += prompts[turns_played[name]][int(name)]
        engine.submit(Request(name, (), conversations[name], sampling, seed=turns_played[name]))

    for name in conversations:
        submit(name)
    while turns_played:
        for name, completion in engine.collect():
            conversations[name] += completion.token_ids or []
            turns_played[name] += 1
            if turns_played[name] < turns:
                submit(name)
            else:
                engine.release(name)
                del turns_played[name]
    return _BATCH * turns * _REPLY


class _Generate:
    """Baseline: `model.generate` on the full history in every turn."""

    def __init__(self, model: Any) -> None:
        import torch

        self._torch, self._model = torch, model

    def play(self, turns: int) -> int:
        """Play a batch of episodes; return the number of sampled tokens."""
        torch = self._torch
        ids = torch.empty((_BATCH, 0), dtype=torch.long)
        for turn in range(turns):
            ids = torch.cat((ids, torch.tensor(_prompts(turn))), dim=1)
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(turn)
                ids = self._model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=True,
                    top_k=0,
                    max_new_tokens=_REPLY,
                    eos_token_id=None,
                    pad_token_id=0,
                )
        return _BATCH * turns * _REPLY
