"""Benchmark of Sokoban: steps and forks of every environment, level generation, and optimal solutions."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import Any

import gymnasium as gym

from ...envs.boxoban import GENERATED
from ...envs.sokoban.env import BANDS, default_spec
from ...envs.sokoban.generator import Spec, generate
from ...envs.sokoban.rules import STANDARD, Masks
from ...envs.sokoban.solver import solve
from .row import Row, cpu_seconds, paired, ratio
from .stepping import env_rows

_ENVS: tuple[tuple[str, str, dict[str, Any], float, float | None], ...] = (
    ("TextSokoban-v0", "", {}, 4.0, 1.0),
    ("TextSokoban-v0", "(coordinates)", {"observation_format": "coord"}, 2.0, 1.0),
    ("TextSokoban-v0", "(grid and coordinates)", {"observation_format": "grid_coord"}, 2.0, 1.0),
    ("TextSokobanNewVocab-v0", "", {}, 4.0, 1.0),
    ("TextLargeSokoban-v0", "", {}, 2.0, 1.0),
    ("TextSokobanHard-v0", "", {}, 2.0, None),
    ("TextBoxoban-v0", "(generated)", {"generated": True}, 2.0, None),
)
"""Environments with label, arguments, and the targets of steps and of random play."""

_LEVELS: tuple[tuple[str, Spec, int, float | None], ...] = (
    ("6x6, 1 box", default_spec(6, 1), 500, 0.5),
    ("8x8, 2 boxes", default_spec(8, 2), 200, 5.0),
    ("hard band", BANDS["hard"].spec, 100, 50.0),
    ("10x10, 4 boxes", GENERATED, 40, 200.0),
)


def measure(peers: bool = False, rounds: int = 5) -> Iterator[Row]:
    """Yield the rows of the Sokoban environments.

    Levels are generated for the test split, which is the most expensive: four of five generated rooms belong to
    other splits and are discarded.

    Args:
        peers: Also measure GEM and TextArena, where they are installed.
        rounds: Number of paired measurements; medians are reported.
    """
    for name, label, kwargs, step_bar, play_bar in _ENVS:
        yield from env_rows(name, rounds=rounds, step_bar=step_bar, play_bar=play_bar, label=label, **kwargs)
    for label, spec, levels, target in _LEVELS:
        seconds = _time_generation(spec, levels)
        tail = sorted(seconds)[int(0.95 * levels)]
        yield Row(
            f"level generation, {label}",
            statistics.mean(seconds) * 1e3,
            "ms",
            target,
            False,
            f"p95 {tail * 1e3:.2f} ms",
        )
        seconds = _time_solving(spec, min(levels, 40))
        tail = sorted(seconds)[int(0.95 * len(seconds))]
        yield Row(
            f"optimal solution, {label}",
            statistics.mean(seconds) * 1e3,
            "ms",
            None,
            False,
            f"p95 {tail * 1e3:.1f} ms",
        )
    if peers:
        yield from _measure_peers(rounds)


def _time_generation(spec: Spec, levels: int) -> list[float]:
    """Return the CPU seconds of generating each of `levels` levels, without the cache."""
    generate.cache_clear()
    generate(spec, "test/0")  # Build the tables of this size, which all levels share.

    def one(index: int) -> Callable[[], int]:
        return lambda: len((generate(spec, f"test/{index}"),))

    return [cpu_seconds(one(index)) for index in range(1, levels + 1)]


def _time_solving(spec: Spec, levels: int) -> list[float]:
    """Return the CPU seconds of solving each of `levels` levels."""
    boards = [Masks.of(generate(spec, f"test/{index}"), STANDARD) for index in range(levels)]

    def one(board: Masks) -> Callable[[], int]:
        return lambda: len((solve(board),))

    return [cpu_seconds(one(board)) for board in boards]


# ---------------------------------------------------------------------- other systems

_MOVES = ("up", "down", "left", "right")


def _measure_peers(rounds: int) -> Iterator[Row]:
    """Yield the rows of other text Sokobans: steps on one level without a turn limit, and level generation.

    No system is reset while its steps are timed.
    """
    lake = gym.make("FrozenLake-v1")

    def frozen_lake() -> int:
        lake.reset(seed=0)
        for number in range(5_000):
            if lake.step(number % 4)[2]:
                lake.reset()
        return 5_000

    systems = {"gem": ("GEM Sokoban-v0-easy", _gem), "textarena": ("TextArena Sokoban-v0", _textarena)}
    for module, (name, workloads) in systems.items():
        if find_spec(module) is None:
            continue
        steps, levels = workloads()
        theirs, ours, fresh = paired([frozen_lake, steps, levels], rounds)
        details = f"FrozenLake-v1 {statistics.median(theirs) * 1e6:.1f} µs"
        yield Row(f"{name} step", ratio(theirs, ours), "x", None, True, details)
        yield Row(f"{name} level generation", statistics.median(fresh) * 1e3, "ms", None, False)


def _gem() -> tuple[Callable[[], int], Callable[[], int]]:
    make = import_module("gem").make
    env = make("game:Sokoban-v0-easy", max_turns=10**9)
    env.reset(seed=0)
    rng = random.Random(0)

    def steps() -> int:
        for _ in range(500):
            env.step(f"\\boxed{{{rng.choice(_MOVES)}}}")
        return 500

    fresh = make("game:Sokoban-v0-easy")
    seeds = count()

    def levels() -> int:
        for _ in range(5):
            fresh.reset(seed=next(seeds))
        return 5

    return steps, levels


def _textarena() -> tuple[Callable[[], int], Callable[[], int]]:
    make = import_module("textarena").make
    env = make("Sokoban-v0-raw", max_turns=10**9)
    env.reset(num_players=1, seed=0)
    rng = random.Random(0)

    def steps() -> int:
        for _ in range(500):
            env.get_observation()
            env.step(f"[{rng.choice(_MOVES)}]")
        return 500

    seeds = count()

    def levels() -> int:
        for _ in range(3):
            make("Sokoban-v0-raw").reset(num_players=1, seed=next(seeds))
        return 3

    return steps, levels
