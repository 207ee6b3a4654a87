"""Arguments of all registered environments that cannot work: each is refused in one sentence that names it."""

from __future__ import annotations

import importlib.util
import inspect
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import load_env_creator

from arboretum.envs import ConfigurationError
from arboretum.envs.registry import ENVS
from support.environments import embedded_data  # noqa: F401 (a fixture for all tests here)

IDS = [w.id for w in ENVS if importlib.util.find_spec(f"arboretum.envs.{w.module}") is not None]
UNCHECKED = {"render_mode"}
"""Arguments that `gym.make` checks before it makes the environment."""


def cases() -> list[tuple[str, str, Any]]:
    """Return an id, the name of an argument and a value of a wrong type, for every argument."""
    found: list[tuple[str, str, Any]] = []
    for id in IDS:
        entry = gym.spec(id).entry_point
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
        for name, parameter in inspect.signature(creator).parameters.items():  # type: ignore[arg-type]
            kind = str(parameter.annotation)
            wrong: tuple[Any, ...] = (7,)
            if kind == "bool":
                wrong = ("flase", 3)
            elif "int" in kind or "float" in kind:
                wrong = ("many", True, [0.5])
            found += [(id, name, value) for value in wrong if name not in UNCHECKED]
    return found


@pytest.mark.parametrize(("id", "name", "value"), cases())
def test_argument_of_a_wrong_type_is_refused_by_name(id: str, name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name.replace("dataset", "data set")) as refused:
        gym.make(id, **{name: value})
    message = str(refused.value)
    assert message.endswith((".", "?")) and "\n" not in message and "Error" not in message
