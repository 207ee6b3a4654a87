"""Environments for tests of all ids, on their embedded data."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from arboretum.envs.bandit import Bandit
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


def break_bandit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the steps of one task of the bandits, Teacher/Trader, raise."""
    apply = Bandit._apply

    def broken(self: Bandit, action: str) -> Any:
        if self.task == "Teacher/Trader":
            raise ConnectionError("the bandit's server is gone")
        return apply(self, action)

    monkeypatch.setattr(Bandit, "_apply", broken)
