"""Registry of agents by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any

from ..envs.errors import ConfigurationError, unknown_name
from ..envs.plain import plain_numbers
from ..envs.plugins import plugin_class, plugin_names
from ..envs.user_code import cannot_be_made
from .base import Agent
from .dialogue import Dialogue, make_dialogue
from .engines.base import Engine, Sampling
from .engines.registry import ENGINES
from .human import HumanAgent
from .language import LanguageAgent
from .reference import ExpertAgent, RandomAgent, SearchingExpertAgent


@dataclass(frozen=True)
class LanguageAgentSpec:
    """Class and settings of a language agent.

    Attributes:
        module: Module of its class within this package; imported on first use.
        cls: Name of its class.
        dialogue: Name of its default dialogue.
        settings: Arguments of the class.
        sampling: Sampling settings that differ from the defaults of `Sampling`.
    """

    module: str
    cls: str
    dialogue: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)


MODEL_FREE_AGENTS: dict[str, type[Agent]] = {
    kind.name: kind for kind in (RandomAgent, ExpertAgent, SearchingExpertAgent, HumanAgent)
}

LANGUAGE_AGENTS: dict[str, LanguageAgentSpec] = {
    "direct": LanguageAgentSpec("language", "LanguageAgent", "plain"),
    "think": LanguageAgentSpec("language", "LanguageAgent", "think"),
    "no_think": LanguageAgentSpec("language", "LanguageAgent", "no_think"),
    "tags": LanguageAgentSpec("language", "LanguageAgent", "tags"),
    "react": LanguageAgentSpec("language", "LanguageAgent", "react", {"examples": 3}),
    "reflexion": LanguageAgentSpec("reflexion", "Reflexion", "react", {"examples": 3}),
    "search_o1": LanguageAgentSpec("search_o1", "SearchO1", "search_o1"),
    "best_of_n": LanguageAgentSpec("best_of_n", "BestOfN", "no_think", sampling={"temperature": 1.0}),
    "mcts": LanguageAgentSpec("mcts", "MCTS", "no_think", sampling={"temperature": 1.0}),
}
"""ReAct and Reflexion have three examples in the prompt and decode greedily, as in the protocol of T-STAR. Agents
that search need different replies to one prompt; the probability of a reply without a thought is its action's."""


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
        ConfigurationError: The name or a setting is unknown, a setting has no effect, a language agent has no
            engine, or the class of another package cannot be made.
    """
    dialogue, sampling, settings = plain_numbers((dialogue, sampling, settings))
    if name not in LANGUAGE_AGENTS:
        for option, value in (("dialogue_name", dialogue_name), ("dialogue", dialogue), ("sampling", sampling)):
            if value:
                raise ConfigurationError(f"{option} has no effect on {name}, an agent without a model; remove it.")
        return make_model_free_agent(name, settings)
    if engine is None:
        raise needs_model(name)
    return agent_class(name)(  # type: ignore[call-arg]
        name,
        engine,
        make_agent_dialogue(name, dialogue_name, dialogue),
        make_agent_sampling(name, sampling or {}),
        **{**LANGUAGE_AGENTS[name].settings, **settings},
    )


def make_model_free_agent(name: str, settings: Mapping[str, Any]) -> Agent:
    """Make an agent that is not one of the language agents, with settings of any names.

    Args:
        name: See `make_agent`.
        settings: Arguments of the agent's class.

    Raises:
        ConfigurationError: The name or a setting is unknown, or the class raises an error.
    """
    kind = agent_class(name)
    try:
        return kind(**settings)
    except ConfigurationError:
        raise
    except Exception as error:  # of a class of another package
        raise cannot_be_made(f"agent {name}", settings, error) from error


def agent_class(name: str) -> type[Agent]:
    """Return the class of an agent.

    Args:
        name: See `make_agent`.

    Raises:
        ConfigurationError: The name is unknown.
    """
    if name in MODEL_FREE_AGENTS:
        return MODEL_FREE_AGENTS[name]
    if name in LANGUAGE_AGENTS:
        spec = LANGUAGE_AGENTS[name]
        kind: type[Agent] = getattr(import_module(f".{spec.module}", __package__), spec.cls)
        return kind
    plugin = plugin_class(Agent, name)  # type: ignore[type-abstract]
    if plugin is None:
        raise unknown_name("agent", name, [*agent_names(), *plugin_names(Agent)])
    return plugin


def make_agent_dialogue(
    agent: str, name: str | None = None, settings: Mapping[str, Any] | None = None
) -> Dialogue:
    """Make the dialogue of a language agent.

    Args:
        agent: Name of the agent.
        name: Name or path of the dialogue; None uses the agent's default dialogue.
        settings: Settings of the dialogue; None uses its defaults.

    Raises:
        ConfigurationError: The dialogue or a setting is unknown, a value is invalid, or the agent cannot play
            through the dialogue.
    """
    dialogue = make_dialogue(name or LANGUAGE_AGENTS[agent].dialogue, settings)
    kind = agent_class(agent)
    assert issubclass(kind, LanguageAgent)
    kind.check_dialogue(dialogue)
    return dialogue


def language_agent_options(name: str) -> dict[str, Any]:
    """Return the defaults of the settings that only this language agent has, such as `trials` of Reflexion."""
    parameters = inspect.signature(agent_class(name)).parameters.values()
    common = inspect.signature(LanguageAgent).parameters
    named = [one for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return {one.name: one.default for one in named if one.name not in common}


def check_language_agent(name: str, sampling: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Check settings of a language agent without making it.

    Args:
        name: Name of the agent.
        sampling: Settings of `Sampling`.
        settings: Settings of the agent, see `language_agent_options`.

    Raises:
        ConfigurationError: A setting is unknown, or out of range.
    """
    kind = agent_class(name)
    assert issubclass(kind, LanguageAgent)
    kind.check(make_agent_sampling(name, sampling), **settings)


def make_agent_sampling(agent: str, options: Mapping[str, Any]) -> Sampling:
    """Make the sampling settings of a language agent.

    Args:
        agent: Name of the agent.
        options: Settings over the agent's defaults.

    Raises:
        ConfigurationError: A setting is unknown.
    """
    return make_sampling({**LANGUAGE_AGENTS[agent].sampling, **options})


def needs_model(agent: str) -> ConfigurationError:
    """Return the error for a language agent without a model."""
    return ConfigurationError(
        f"agent {agent!r} needs a model: pass --model (in Python model=) with a folder or PROVIDER/NAME"
        f" ({', '.join(ENGINES)}), such as transformers/Qwen/Qwen2.5-0.5B-Instruct."
    )


def make_sampling(options: Mapping[str, Any]) -> Sampling:
    """Make sampling settings.

    Raises:
        ConfigurationError: A setting is unknown.
    """
    known = [f.name for f in fields(Sampling)]
    for option in options:
        if option not in known:
            raise unknown_name("sampling setting", option, known)
    if isinstance(options.get("stop"), list):
        options = {**options, "stop": tuple(options["stop"])}
    return Sampling(**options)
