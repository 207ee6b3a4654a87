"""What playing costs with the transformers engine, beside `model.generate` on the same tiny model."""

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
from .tiny import make_tiny_model

# Shaped like RAGEN's Sokoban: tokens of rules and first state, of each further state, and of a reply.
_OPENING, _STATE, _REPLY = 150, 60, 32
_BATCH = 32


def measure(peers: bool = False, rounds: int = 5) -> Iterator[Row]:
    """Throughput, and the cost of history, in CPU seconds of one thread, paired round by round."""
    import torch

    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        engine = TransformersEngine(make_tiny_model(Path(folder) / "model"), device="cpu", max_batch=_BATCH)
        engine.end_ids.clear()  # every reply has the same length
        generate = _Generate(engine.model)
        torch.set_num_threads(1)  # waiting threads would count as work
        try:
            yield from _single_turn(engine, generate, rounds)
            yield from _episodes(engine, generate, rounds)
        finally:
            torch.set_num_threads(threads)


def _single_turn(engine: TransformersEngine, generate: _Generate, rounds: int) -> Iterator[Row]:
    # Short: so many rounds cost little, and the bar is near.
    theirs, ours = paired([lambda: generate.play(1), lambda: _play(engine, 1)], 4 * rounds)
    what = f"sampled tokens, one turn (batch {_BATCH}, {_OPENING} + {_REPLY} tokens)"
    yield Row(what, ratio(theirs, ours), "x", bar=1.0, beside=_rate(theirs))


def _episodes(engine: TransformersEngine, generate: _Generate, rounds: int) -> Iterator[Row]:
    before = engine.computed_tokens
    _play(engine, 10)
    computed = engine.computed_tokens - before
    new = _BATCH * (_OPENING + 10 * _REPLY + 9 * _STATE)
    anew = _BATCH * sum(_OPENING + turn * (_REPLY + _STATE) + _REPLY for turn in range(10))
    what = "computed / new tokens, ten turns"
    yield Row(what, computed / new, "x", bar=1.1, higher_is_better=False, beside=f"generate {anew / new:.1f} x")

    contenders: list[Callable[[], int]] = [
        lambda: generate.play(10),
        lambda: _play(engine, 10),
        lambda: generate.play(5),
        lambda: _play(engine, 5),
    ]
    theirs, ours, their_half, our_half = paired(contenders, rounds)
    yield Row("sampled tokens, ten turns", ratio(theirs, ours), "x", bar=3.0, beside=_rate(theirs))
    # 2 would be exactly linear. What is above it is attention to a longer past, a large part of so small a model.
    growth, their_growth = 2 * ratio(ours, our_half), 2 * ratio(theirs, their_half)
    yield Row("time of ten turns / time of five", growth, "x", beside=f"generate {their_growth:.1f} x")


def _rate(seconds: list[float]) -> str:
    return f"generate {1 / statistics.median(seconds):,.0f} /s"


def _prompts(turn: int) -> list[list[int]]:
    """New tokens of each conversation at the beginning of a turn."""
    rng = random.Random(turn)
    return [[rng.randrange(300) for _ in range(_STATE if turn else _OPENING)] for _ in range(_BATCH)]


def _play(engine: TransformersEngine, turns: int) -> int:
    """Play episodes of `turns` turns, each going on as soon as its reply is there; tokens sampled."""
    news = [_prompts(turn) for turn in range(turns)]
    talks: dict[str, list[int]] = {str(n): [] for n in range(_BATCH)}
    played = dict.fromkeys(talks, 0)
    sampling = Sampling(temperature=1.0, max_tokens=_REPLY)

    def ask(name: str) -> None:
        talks[name] += news[played[name]][int(name)]
        engine.submit(Request(name, (), talks[name], sampling, seed=played[name]))

    for name in talks:
        ask(name)
    while played:
        for name, completion in engine.collect():
            talks[name] += completion.token_ids or []
            played[name] += 1
            if played[name] < turns:
                ask(name)
            else:
                engine.release(name)
                del played[name]
    return _BATCH * turns * _REPLY


class _Generate:
    """The yardstick: `model.generate` over the whole history in every turn."""

    def __init__(self, model: Any) -> None:
        import torch

        self._torch, self._model = torch, model

    def play(self, turns: int) -> int:
        """Play episodes of `turns` turns; tokens sampled."""
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
