"""Environments for tests of all ids, on their embedded data."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from arboretum.envs.core import TextEnv


@pytest.fixture(autouse=True)
def embedded_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the real data from the tests of a module that imports this fixture."""
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)


def make(id: str, **kwargs: Any) -> TextEnv[Any]:
    """Make an environment without Gymnasium's wrappers."""
    env = gym.make(id, **kwargs).unwrapped
    assert isinstance(env, TextEnv)
    return env
