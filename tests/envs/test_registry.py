"""Environments named by a path `module:Class`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.error import ResetNeeded

from arboretum.envs import ConfigurationError
from arboretum.envs.bandit import Bandit
from arboretum.envs.core import TextEnv
from arboretum.envs.registry import make_env

MODULE = """
from arboretum.envs.bandit import Bandit

class {name}(Bandit):
    instructions = {text!r}

    def __init__(self, prize=1, **options):
        super().__init__(**options)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three modules with environments, two of which have the same name and one that of a registered one."""
    for module, name in (("paths_one", "Casino"), ("paths_two", "Casino"), ("paths_three", "TextBandit")):
        (tmp_path / f"{module}.py").write_text(MODULE.format(name=name, text=module))
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(gym.registry)
    yield
    gym.registry.clear()
    gym.registry.update(before)


@pytest.mark.usefixtures("modules")
def test_class_with_the_name_of_another_environment_is_rejected_instead_of_confused() -> None:
    assert make_env("paths_one:Casino").instructions == "paths_one"
    assert make_env("paths_one:Casino").instructions == "paths_one"
    for path, id in (("paths_two:Casino", "Casino-v0"), ("paths_three:TextBandit", "TextBandit-v0")):
        with pytest.raises(ConfigurationError, match=rf"{path} would be {id}.*rename the class"):
            make_env(path)


@pytest.mark.usefixtures("modules")
def test_options_that_a_class_forwards_reach_its_base() -> None:
    assert len(make_env("paths_one:Casino", prize=2, split="test").tasks) == 16
    with pytest.raises(ConfigurationError, match=r"Casino-v0 cannot be made with .*'spilt'"):
        make_env("paths_one:Casino", spilt="test")


def test_mistake_in_a_method_that_opens_a_task_is_no_call_for_reset() -> None:
    class Mistaken(Bandit):
        def _open(self, task: str) -> Any:
            return self._levels[task]  # type: ignore[attr-defined]

    class Property(Bandit):
        @property
        def instructions(self) -> str:
            return self.rules  # type: ignore[attr-defined,no-any-return]

    with pytest.raises(AttributeError, match="'Mistaken' object has no attribute '_levels'"):
        Mistaken().reset(seed=1)
    with pytest.raises(AttributeError, match="'Property' object has no attribute 'rules'"):
        _ = Property().instructions


def test_attributes_that_may_be_missing_are_asked_for_before_the_first_reset() -> None:
    class Client(Bandit):
        def __init__(self) -> None:
            super().__init__()
            if not hasattr(self, "_server"):
                self._server = getattr(self, "_other", "none")

        @property
        def _first(self) -> str:
            return self._server.name  # type: ignore[attr-defined,no-any-return]

    env = Client()
    assert env._server == "none"
    with pytest.raises(AttributeError, match="'str' object has no attribute 'name'"):
        _ = env._first
    with pytest.raises(ResetNeeded, match="Client has no _state before"):
        _ = env._state


def test_class_that_lacks_methods_is_refused_when_it_is_made() -> None:
    class Half(TextEnv[int]):
        def _open(self, task: str) -> int:
            return 0

    message = "Half must define _apply, _observe, admissible_actions, expert_actions, instructions, state_key"
    with pytest.raises(TypeError, match=message):
        Half(config={}, max_steps=None)  # type: ignore[abstract]
