"""FrozenLake: steps, forks, levels and the expert's policy."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from ...envs.frozenlake.lake import Lake, random_map
from ...envs.frozenlake.values import Policy
from .row import Row, paired, ratio
from .stepping import env_rows

_MAPS = 200


def measure(peers: bool = False, rounds: int = 5) -> Iterator[Row]:
    """Rows for FrozenLake.

    Args:
        peers: changes nothing: RAGEN's FrozenLake is no package of its own.
        rounds: paired rounds; medians are reported.
    """
    del peers
    yield from env_rows("TextFrozenLake-v0", rounds=rounds, step_bar=1.0)
    yield from env_rows("TextFrozenLake-v0", rounds=rounds, step_bar=1.0, label="(8x8 grid)", **_LARGE)
    theirs, ours, policies = paired([_their_maps(), _our_maps(), _policies()], rounds)
    yield Row("8x8 map against Gymnasium's", ratio(theirs, ours), "x")
    yield Row("policy for 100 steps, 4x4", statistics.median(policies) * 1e3, "ms", 10.0, False)


_LARGE: dict[str, Any] = {"size": 8, "observation_format": "grid"}


def _their_maps() -> Callable[[], int]:
    def run() -> int:
        for seed in range(_MAPS):
            generate_random_map(8, 0.8, seed)
        return _MAPS

    return run


def _our_maps() -> Callable[[], int]:
    def run() -> int:
        for seed in range(_MAPS):
            random_map(8, 0.8, "corners", random.Random(seed))
        return _MAPS

    return run


def _policies() -> Callable[[], int]:
    lake = Lake(("SFFF", "FHFH", "FFFH", "HFFG"))

    def run() -> int:
        for _ in range(20):
            Policy(lake, 0.8).value(0, 100)
        return 20

    return run
