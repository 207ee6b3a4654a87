"""The players by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..envs.errors import unknown_name
from ..envs.plugins import plugin_class
from .base import Agent
from .human import HumanAgent
from .reference import ExpertAgent, RandomAgent

AGENTS: dict[str, type[Agent]] = {
    "random": RandomAgent,
    "expert": ExpertAgent,
    "human": HumanAgent,
}


def make_agent(
    name: str, *, dialogue: Mapping[str, Any] | None = None, sampling: Mapping[str, Any] | None = None
) -> Agent:
    """The player of a name: one of the table's, a plug-in's, or the class at a path `module:attr`.

    Raises:
        ConfigurationError: unknown name.
    """
    if name in AGENTS:
        return AGENTS[name]()
    kind = plugin_class(Agent, name)  # type: ignore[type-abstract]
    if kind is None:
        raise unknown_name("agent", name, AGENTS)
    return kind()
