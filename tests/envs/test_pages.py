"""Documentation pages: the observations that they quote are those of the environments."""

from __future__ import annotations

import inspect
import re
from typing import Any

import gymnasium as gym
import pytest

import arboretum  # noqa: F401


@pytest.mark.parametrize(
    ("id", "kwargs"),
    [
        ("TextBandit-v0", {}),
        ("TextSokoban-v0", {}),
        ("TextFrozenLake-v0", {}),
        ("TextBlocksworld-v0", {"blocks": 3, "notation": "pddl"}),
    ],
)
def test_first_observation_on_the_page_is_that_of_seed_zero(id: str, kwargs: dict[str, Any]) -> None:
    env = gym.make(id, **kwargs).unwrapped
    (quoted,) = re.findall(r"```\n(.*?)\n```", inspect.getdoc(type(env)) or "", re.DOTALL)
    assert env.reset(seed=0)[0] == quoted
