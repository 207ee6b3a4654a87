"""Benchmark of the growth of an update's cost with the turns of an episode, for chains and for trees."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ...eval.bench.row import Row, paired
from .forest import Forest, saved_fraction
from .trees_update import make_learner, peak_memory

if TYPE_CHECKING:
    from ..data.rollouts import Rollouts
    from ..learning.learner import Learner

TURNS = (5, 10, 20, 50)
MODEL = "0.46M"
MICROBATCH_TOKENS = 16384


def forest_of(turns: int) -> Forest:
    """Return trees of four episodes with 160 tokens a turn; 50 turns are a context of 8000 tokens."""
    return Forest(trees=max(50 // turns, 1), branches=3, turns=turns, prompt=112, observation=112, reply=48)


def measure(peers: bool = False) -> Iterator[Row]:
    """Yield CPU time per token of the episodes and peak memory of updates with 5, 10, 20 and 50 turns an episode.

    A batch has about 32,000 tokens, a micro-batch at most 16,384. Attention grows linearly with the context, so
    the time per token of 50 turns may be ten times that of 5 turns; memory may not grow.

    Args:
        peers: Unused; there is no original system.
    """
    del peers
    for kind in ("chains", "trees"):
        rollouts = [forest_of(turns).rollouts(branched=kind == "trees") for turns in TURNS]
        learner = make_learner(MODEL, None, MICROBATCH_TOKENS)

        def run(number: int, rollouts: list[Rollouts] = rollouts, learner: Learner = learner) -> int:
            learner.update(rollouts[number], update=0, temperature=1.0)
            return sum(map(len, rollouts[number].rows))

        run(0)
        seconds = [min(times) for times in paired([partial(run, number) for number in range(len(TURNS))], 2)]
        memory = [
            peak_memory(MODEL, forest_of(turns), branched=kind == "trees", microbatch_tokens=MICROBATCH_TOKENS)
            for turns in TURNS
        ]
        for turns, batch, time, peak in zip(TURNS, rollouts, seconds, memory, strict=True):
            details = f"context {max(map(len, batch.rows))}, peak memory {peak / 2**20:,.0f} MB"
            if kind == "trees":
                details += f", {100 * saved_fraction(batch):.0f} % of the tokens shared"
            yield Row(f"update per token, {kind}, {turns} turns", 1e6 * time, "µs", details=details)
        growth = TURNS[-1] / TURNS[0]
        what = f"{TURNS[-1]} turns relative to {TURNS[0]}, {kind}"
        yield Row(
            f"update per token, {what}", seconds[-1] / seconds[0], "x", target=growth, higher_is_better=False
        )
        yield Row(f"peak memory, {what}", memory[-1] / memory[0], "x", target=1.1, higher_is_better=False)
