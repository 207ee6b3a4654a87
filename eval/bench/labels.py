"""Benchmark of labelling decisions: CPU time of a run, from its stored episodes to `decisions.jsonl`."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ...envs.terminal import Terminal
from ..agents import NamedAgent
from ..decisions.file import FILE
from ..decisions.labelling import label_run
from ..evaluate import evaluate
from ..planning import Scope
from ..run_index import EPISODES_FILE
from .row import Row

_RUNS: tuple[tuple[str, tuple[str, ...], int, float | None], ...] = (
    ("TextSokoban-v0", ("random",), 1000, 1.0),
    ("TextSokoban-v0", ("random", "expert"), 500, 1.0),
    ("TextLargeSokoban-v0", ("random", "expert"), 100, None),
    ("TextSokobanHard-v0", ("random", "expert"), 100, None),
    ("TextFrozenLake-v0", ("random", "expert"), 100, None),
    ("TextBlocksworld-v0", ("random", "expert"), 100, None),
    ("TextALFWorld-v0", ("random", "expert"), 20, None),
    ("TextWebShop-v0", ("random", "expert"), 20, None),
    ("TextSearchQA-v0", ("random", "expert"), 20, None),
    ("TextBoxoban-v0", ("random", "expert"), 2, None),
)
"""Environments, agents, tasks and targets in seconds."""


def measure(peers: bool = False, rounds: int = 3) -> Iterator[Row]:
    """Yield the CPU seconds of labelling runs, reading and writing included.

    The first run is the most expensive of its size: a random agent takes up to 100 actions in each of 1,000
    levels, none of which is shared with another episode. The first round is reported, because caches shorten the
    others; the details have their median, and the time per action. As at the end of `arboretum eval`, the
    evaluation has made the levels in this process; in a new one the levels of the first run add about 0.1 s.

    Args:
        peers: Unused; there is no original system.
        rounds: Number of times that a run is labelled.
    """
    del peers
    for env, agents, tasks, target in _RUNS:
        with tempfile.TemporaryDirectory() as name, Path(os.devnull).open("w") as sink:
            folder = Path(name)
            factories = [NamedAgent(agent) for agent in agents]
            console = Terminal(file=sink)
            scope = Scope(limit=tasks)
            evaluate(env, factories, scope=scope, references=False, out=folder, workers=2, console=console)
            seconds = []
            for _ in range(rounds):
                (folder / FILE).unlink(missing_ok=True)
                start = time.process_time()
                coverage = label_run(folder)
                seconds.append(time.process_time() - start)
            actions = sum(line.count(b'"action":') for line in (folder / EPISODES_FILE).open("rb"))
        yield Row(
            f"{env}: labels of {coverage.labelled:,} episodes, {' and '.join(agents)}",
            seconds[0],
            "s",
            target=target,
            higher_is_better=False,
            details=f"{actions:,} actions, {1e6 * seconds[0] / actions:.1f} µs each; again"
            f" {statistics.median(seconds[1:]):.2f} s",
        )
