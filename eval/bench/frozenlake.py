"""Benchmark of FrozenLake: steps, forks, map generation and the expert's policy."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from typing import Any

from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from ...envs.frozenlake.lake import Lake, random_map
from ...envs.frozenlake.values import Policy
from .row import Row, paired, ratio
from .stepping import env_rows

_MAPS = 200
_LAKE = Lake(("SFFF", "FHFH", "FFFH", "HFFG"))
_LARGE: dict[str, Any] = {"size": 8, "observation_format": "grid"}


def measure(peers: bool = False, rounds: int = 5) -> Iterator[Row]:
    """Yield the rows of FrozenLake.

    Args:
        peers: Unused; RAGEN's FrozenLake is not a package of its own.
        rounds: Number of paired measurements; medians are reported.
    """
    del peers
    yield from env_rows("TextFrozenLake-v0", rounds=rounds)
    yield from env_rows("TextFrozenLake-v0", rounds=rounds, label="(8x8 grid)", **_LARGE)
    theirs, ours, policies = paired([_generate_their_maps, _generate_our_maps, _compute_policies], rounds)
    yield Row("8x8 map generation, speedup over Gymnasium", ratio(theirs, ours), "x")
    yield Row("policy for 100 steps, 4x4", statistics.median(policies) * 1e3, "ms", 10.0, False)


def _generate_their_maps() -> int:
    for seed in range(_MAPS):
        generate_random_map(8, 0.8, seed)
    return _MAPS


def _generate_our_maps() -> int:
    for seed in range(_MAPS):
        random_map(8, 0.8, "corners", random.Random(seed))
    return _MAPS


def _compute_policies() -> int:
    for _ in range(20):
        Policy(_LAKE, 0.8).value(0, 100)
    return 20
