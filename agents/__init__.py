"""Agents: policies that turn observations into actions."""

from typing import TYPE_CHECKING

from ..envs.lazy_names import lazy_names

if TYPE_CHECKING:
    from .base import Agent, Reply, Seat
    from .dialogue import Dialogue, Parsed, make_dialogue
    from .engines.base import Completion, Engine, Request, Usage
    from .engines.registry import make_engine
    from .engines.shipped_models import model_source
    from .episode import Episode, Turn
    from .episode_chat import EpisodeChat
    from .forks import Origin
    from .play import Job
    from .reference import ExpertAgent, RandomAgent
    from .registry import make_agent
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".base": "Agent Reply Seat",
            ".dialogue": "Dialogue Parsed make_dialogue",
            ".engines.base": "Completion Engine Request Usage",
            ".engines.registry": "make_engine",
            ".engines.shipped_models": "model_source",
            ".episode": "Episode Turn",
            ".episode_chat": "EpisodeChat",
            ".forks": "Origin",
            ".play": "Job",
            ".reference": "ExpertAgent RandomAgent",
            ".registry": "make_agent",
        },
    )

__all__ = [
    "Agent",
    "Completion",
    "Dialogue",
    "Engine",
    "Episode",
    "EpisodeChat",
    "ExpertAgent",
    "Job",
    "Origin",
    "Parsed",
    "RandomAgent",
    "Reply",
    "Request",
    "Seat",
    "Turn",
    "Usage",
    "make_agent",
    "make_dialogue",
    "make_engine",
    "model_source",
]
