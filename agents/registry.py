"""The players by name, and how each is put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..envs.errors import ConfigurationError, unknown_name
from ..envs.plugins import plugin_class
from .base import Agent
from .dialogue import make_dialogue
from .engines.base import Engine, Sampling
from .human import HumanAgent
from .reference import ExpertAgent, RandomAgent


@dataclass(frozen=True)
class Language:
    """How a language agent of the table is made.

    Attributes:
        module, cls: where its class lives; imported when one is made.
        dialogue: name of its dialogue.
        settings: arguments of the class.
        defaults: dialogue settings that differ from the dialogue's own.
    """

    module: str
    cls: str
    dialogue: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


MODEL_FREE_AGENTS: dict[str, type[Agent]] = {"random": RandomAgent, "expert": ExpertAgent, "human": HumanAgent}

LANGUAGE_AGENTS: dict[str, Language] = {
    "direct": Language("language", "LanguageAgent", "plain"),
    "think": Language("language", "LanguageAgent", "think"),
    "no_think": Language("language", "LanguageAgent", "no_think"),
    "tags": Language("language", "LanguageAgent", "tags"),
    "react": Language("language", "LanguageAgent", "react", {"examples": 3}),
    "reflexion": Language("reflexion", "Reflexion", "react", {"examples": 3}),
    "search_o1": Language("search_o1", "SearchO1", "search_o1"),
}
"""ReAct and Reflexion are shown three examples and decode greedily, as in the protocol of T-STAR."""


def agent_names() -> list[str]:
    """All names of the table."""
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
    """The player of a name: one of the table's, a plug-in's, or the class at a path `module:attr`.

    Args:
        name: what to make.
        engine: the model of language agents.
        dialogue_name: a dialogue to use instead of the agent's own: by name, or a plug-in's, or by path.
        dialogue: settings of the dialogue; those that the agent's dialogue does not know are an error.
        sampling: settings of `Sampling`.
        settings: further arguments of the agent's class, such as `examples` or `trials`.

    Raises:
        ConfigurationError: unknown name or setting; a language agent without an engine.
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
            f"agent {name!r} needs a model: say --engine (transformers, vllm, openai) and --model, such as"
            " --engine transformers --model Qwen/Qwen2.5-0.5B-Instruct."
        )
    from importlib import import_module

    row = LANGUAGE_AGENTS[name]
    module = import_module(f".{row.module}", __package__)
    made: Agent = getattr(module, row.cls)(
        name,
        engine,
        make_dialogue(dialogue_name or row.dialogue, {**row.defaults, **(dialogue or {})}),
        _sampling(sampling or {}),
        **{**row.settings, **settings},
    )
    return made


def _sampling(options: Mapping[str, Any]) -> Sampling:
    known = [f.name for f in fields(Sampling)]
    for option in options:
        if option not in known:
            raise unknown_name("sampling setting", option, known)
    if isinstance(options.get("stop"), list):
        options = {**options, "stop": tuple(options["stop"])}
    return Sampling(**options)
