"""Registry of agents by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any

from ..envs.errors import ConfigurationError, unknown_name
from ..envs.plugins import plugin_class
from .base import Agent
from .dialogue import make_dialogue
from .engines.base import Engine, Sampling
from .engines.registry import ENGINES
from .human import HumanAgent
from .reference import ExpertAgent, RandomAgent


@dataclass(frozen=True)
class LanguageAgentSpec:
    """Class and settings of a language agent.

    Attributes:
        module: Module of its class within this package; imported on first use.
        cls: Name of its class.
        dialogue: Name of its default dialogue.
        settings: Arguments of the class.
    """

    module: str
    cls: str
    dialogue: str
    settings: Mapping[str, Any] = field(default_factory=dict)


MODEL_FREE_AGENTS: dict[str, type[Agent]] = {kind.name: kind for kind in (RandomAgent, ExpertAgent, HumanAgent)}

LANGUAGE_AGENTS: dict[str, LanguageAgentSpec] = {
    "direct": LanguageAgentSpec("language", "LanguageAgent", "plain"),
    "think": LanguageAgentSpec("language", "LanguageAgent", "think"),
    "no_think": LanguageAgentSpec("language", "LanguageAgent", "no_think"),
    "tags": LanguageAgentSpec("language", "LanguageAgent", "tags"),
    "react": LanguageAgentSpec("language", "LanguageAgent", "react", {"examples": 3}),
    "reflexion": LanguageAgentSpec("reflexion", "Reflexion", "react", {"examples": 3}),
    "search_o1": LanguageAgentSpec("search_o1", "SearchO1", "search_o1"),
}
"""ReAct and Reflexion have three examples in the prompt and decode greedily, as in the protocol of T-STAR."""


def agent_names() -> list[str]:
    """Return the names of all built-in agents."""
    return [*MODEL_FREE_AGENTS, *LANGUAGE_AGENTS]


def make_agent(
    name: str,
    *,
    engine: Engine | None = None,
    dialogue_name: str | None = None,
    dialogue: Mapping[str, Any] | None = None,
    sampling: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Agent:
    """Make an agent by name.

    Args:
        name: Name of a built-in or plug-in agent, or the path `module:attr` of a class.
        engine: Engine of a language agent; the others ignore it.
        dialogue_name: Name or path of a dialogue; None uses the agent's default dialogue.
        dialogue: Settings of the dialogue.
        sampling: Settings of `Sampling`.
        settings: Further arguments of the agent's class, such as `examples` or `trials`.

    Raises:
        ConfigurationError: The name or a setting is unknown, or a language agent has no engine.
    """
    if name in MODEL_FREE_AGENTS:
        return MODEL_FREE_AGENTS[name]()
    if name not in LANGUAGE_AGENTS:
        kind = plugin_class(Agent, name)  # type: ignore[type-abstract]
        if kind is None:
            raise unknown_name("agent", name, agent_names())
        return kind()
    if engine is None:
        raise ConfigurationError(
            f"agent {name!r} needs a model: pass --engine ({', '.join(ENGINES)}) and --model, such as"
            " --engine transformers --model Qwen/Qwen2.5-0.5B-Instruct."
        )
    spec = LANGUAGE_AGENTS[name]
    module = import_module(f".{spec.module}", __package__)
    agent: Agent = getattr(module, spec.cls)(
        name,
        engine,
        make_dialogue(dialogue_name or spec.dialogue, dialogue),
        _sampling(sampling or {}),
        **{**spec.settings, **settings},
    )
    return agent


def _sampling(options: Mapping[str, Any]) -> Sampling:
    known = [f.name for f in fields(Sampling)]
    for option in options:
        if option not in known:
            raise unknown_name("sampling setting", option, known)
    if isinstance(options.get("stop"), list):
        options = {**options, "stop": tuple(options["stop"])}
    return Sampling(**options)
