"""Numbers of NumPy become Python's, and whatever holds none of them stays the same object."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from arboretum.envs.bandit import Bandit
from arboretum.envs.plain import plain_numbers
from arboretum.envs.registry import make_env


class Bag(Bandit):
    """Bandit that shares objects with its user."""

    def __init__(self, log: list[str], counts: dict[str, int], size: int = 3) -> None:
        super().__init__()
        self.log, self.counts, self.size = log, counts, size


def test_numbers_at_any_depth_become_pythons() -> None:
    found: Any = plain_numbers({"a": np.int64(3), "b": [np.float32(0.5), (np.bool_(True), "x")]})
    assert found == {"a": 3, "b": [0.5, (True, "x")]}
    assert [type(one) for one in (found["a"], found["b"][0], found["b"][1][0])] == [int, float, bool]


def test_objects_without_numbers_of_numpy_stay_the_same() -> None:
    array, itself = np.ones(2), [1]
    itself.append(itself)  # type: ignore[arg-type]
    shared: Any
    for shared in ({"a": [1]}, [1, (2,)], defaultdict(int), array, {"a": array}, itself):
        assert plain_numbers(shared) is shared
    outer: Any = {"n": np.int64(1), "shared": [1]}
    assert plain_numbers(outer)["shared"] is outer["shared"]


def test_environments_share_the_objects_that_they_are_given() -> None:
    log, counts = ["before"], defaultdict(int)
    env: Any = make_env(f"{__name__}:Bag", log=log, counts=counts, size=np.int64(4))
    assert env.log is log and env.counts is counts and type(env.size) is int
