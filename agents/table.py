"""The players by name."""

from __future__ import annotations

from ..envs.errors import unknown_name
from .base import Agent
from .human import HumanAgent
from .reference import ExpertAgent, RandomAgent

AGENTS: dict[str, type[Agent]] = {
    "random": RandomAgent,
    "expert": ExpertAgent,
    "human": HumanAgent,
}


def make_agent(name: str) -> Agent:
    """The player of a name.

    Raises:
        ConfigurationError: unknown name.
    """
    if name not in AGENTS:
        raise unknown_name("agent", name, AGENTS)
    return AGENTS[name]()
