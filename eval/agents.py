"""The agents of a run, made from the options of the command line."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from typing import Any, Protocol

from ..agents.base import Agent
from ..agents.dialogue import Dialogue
from ..agents.engines.registry import ENGINES
from ..agents.language import LanguageAgent
from ..agents.registry import (
    LANGUAGE_AGENTS,
    agent_class,
    agent_names,
    check_language_agent,
    language_agent_options,
    make_agent,
    make_agent_dialogue,
    make_agent_sampling,
    make_model_free_agent,
    needs_model,
)
from ..agents.tokens.templates import check_template
from ..envs.addresses import is_secret
from ..envs.checks import at_least
from ..envs.errors import ConfigurationError, unknown_name
from .given import identify_given_agent
from .identity import identify_agent, model_label
from .models import Model, resolve_model
from .options import parse_options
from .plain import to_plain
from .provenance import describe_settings
from .suite import Entry, Suite

_AGENT_SETTINGS = ("--agent-arg", "agent_args")
"""Names of the option of settings of agents, which agents of other packages can have without a model."""


class AgentFactory(Protocol):
    """Factory of the agents that play a run under one name, one agent per suite entry.

    Attributes:
        name: Name in tables and records; unique within a run.
        one_process: True if all episodes must be played in this process.
        uses_success_labels: True if the agent uses the success that the environment reports, for example to retry.
        uses_simulator: True if the agent tries actions out in copies of the episode before it plays them.
        identity: Everything that decides the agent's episodes, as plain data; a run is resumed only with the same.
    """

    @property
    def name(self) -> str: ...
    @property
    def one_process(self) -> bool: ...
    @property
    def uses_success_labels(self) -> bool: ...
    @property
    def uses_simulator(self) -> bool: ...
    @property
    def identity(self) -> Mapping[str, Any]: ...

    def dialogue(self, suite: Suite, entry: Entry, /) -> Dialogue | None:
        """Return the agent's dialogue in an entry, None without one; check settings without loading a model."""
        ...

    def settings(self, suite: Suite, entry: Entry, /) -> dict[str, Any] | None:
        """Return the settings in an entry as `describe_settings` does; None for agents without a model."""
        ...

    def make(self, suite: Suite, entry: Entry, /) -> Agent:
        """Make the agent for an entry, with the settings of suite and entry."""
        ...


class NamedAgent:
    """Factory of a registered agent (or a plug-in's), with the settings of the command line.

    Args:
        kind: Name of the agent, see `make_agent`.
        model: Model of a language agent, loaded when the first agent is made; None for agents without a model.
        sampling: Sampling settings that override those of suite and entry.
        dialogue: Dialogue settings that override those of suite and entry.
        settings: Further arguments of `make_agent`, or those of the class of another package, of any names.

    Attributes:
        model: The model; None for agents without one.

    Raises:
        ConfigurationError: The name or a setting is unknown, or a language agent has no model.
    """

    def __init__(
        self,
        kind: str,
        model: Model | None = None,
        sampling: Mapping[str, Any] | None = None,
        dialogue: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.kind = kind
        self._sampling = sampling or {}
        self._dialogue = dialogue or {}
        self._settings = settings = settings or {}
        self._is_language_agent = kind in LANGUAGE_AGENTS
        self.model = model if self._is_language_agent else None
        agent = agent_class(kind)
        if self._is_language_agent:
            if model is None:
                raise needs_model(kind)
            if settings.get("template") is not None:
                check_template(settings["template"])
            at_least("examples", settings.get("examples"), 0)
            self._make_dialogue({})
            self._check_sampling(self._sampling)
            self.name = f"{kind}:{model_label(model.name)}"
        else:
            self.name = make_model_free_agent(kind, self._settings).name
        self.one_process = agent.one_process
        self.uses_success_labels = agent.uses_success_labels
        self.uses_simulator = agent.uses_simulator

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """Everything that decides the agent's episodes, as plain data; without a model that is its settings.

        Secrets among them are left out.
        """
        if self.model is None:
            kept = {name: value for name, value in self._settings.items() if not is_secret(name)}
            return {"settings": to_plain(kept)} if kept else {}
        settings = self._settings
        if self.uses_simulator:  # Its defaults decide what its results cost, so the record names them.
            settings = {**language_agent_options(self.kind), **settings}
            settings = {name: value for name, value in settings.items() if value is not None}
        return identify_agent(self._make_dialogue({}), self.model.identity, self._sampling, settings)

    def dialogue(self, suite: Suite, entry: Entry, /) -> Dialogue | None:
        """Return the dialogue of an entry, after checking the entry's settings; None without a model.

        Raises:
            ConfigurationError: A setting of the suite or the entry is unknown or invalid.
        """
        if self.model is None:
            return None
        try:
            self._check_sampling(self._merge_sampling(suite, entry))
            return self._make_dialogue({**suite.dialogue, **entry.dialogue})
        except ConfigurationError as error:
            raise ConfigurationError(f"suite {suite.name}, entry {entry.name!r}: {error}") from None

    def dialogue_warning(self) -> str | None:
        """Return a sentence if the model was trained with another dialogue than the agent's; None otherwise."""
        taught = self.model.taught_dialogue if self.model is not None else None
        dialogue = None if taught is None else self._make_dialogue({}).name
        if dialogue == taught:
            return None
        return (
            f"{self.name} plays in dialogue {dialogue!r}, but the model was taught {taught!r}: choose --dialogue"
            f" {taught} (in Python dialogue=) if its replies are refused."
        )

    def settings(self, suite: Suite, entry: Entry, /) -> dict[str, Any] | None:
        """Return the settings of an entry as plain data; None without a model."""
        dialogue = self.dialogue(suite, entry)
        if dialogue is None:
            return None
        examples = {**LANGUAGE_AGENTS[self.kind].settings, **self._settings}.get("examples", 0)
        sampling = make_agent_sampling(self.kind, self._merge_sampling(suite, entry))
        return describe_settings(dialogue, sampling, examples)

    def make(self, suite: Suite, entry: Entry, /) -> Agent:
        """Make the agent for an entry. The entry's settings override the suite's, the command line's both."""
        if self.model is None:
            return make_model_free_agent(self.kind, self._settings)
        return make_agent(
            self.kind,
            engine=self.model.load(),
            dialogue={**suite.dialogue, **entry.dialogue, **self._dialogue},
            sampling=self._merge_sampling(suite, entry),
            **self._settings,
        )

    def _make_dialogue(self, settings: Mapping[str, Any]) -> Dialogue:
        return make_agent_dialogue(self.kind, self._settings.get("dialogue_name"), {**settings, **self._dialogue})

    def _merge_sampling(self, suite: Suite, entry: Entry) -> dict[str, Any]:
        return {**suite.sampling, **entry.sampling, **self._sampling}

    def _check_sampling(self, sampling: Mapping[str, Any]) -> None:
        """Raise `ConfigurationError` if sampling settings are unknown, or do not fit those of the agent."""
        own = language_agent_options(self.kind)
        settings = {name: value for name, value in self._settings.items() if name in own}
        check_language_agent(self.kind, sampling, settings)


class GivenAgent:
    """Factory of an agent that the caller has made.

    Args:
        agent: The agent, which plays every entry.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.name = agent.name
        self.one_process = agent.one_process
        self.uses_success_labels = agent.uses_success_labels
        self.uses_simulator = agent.uses_simulator

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """Everything that decides the agent's episodes, as plain data."""
        return identify_given_agent(self._agent)

    def dialogue(self, suite: Suite, entry: Entry, /) -> Dialogue | None:
        """Return the agent's dialogue, or None."""
        dialogue = getattr(self._agent, "dialogue", None)
        return dialogue if isinstance(dialogue, Dialogue) else None

    def settings(self, suite: Suite, entry: Entry, /) -> dict[str, Any] | None:
        """Return the agent's settings as plain data; None for other than language agents."""
        agent = self._agent
        if not isinstance(agent, LanguageAgent):
            return None
        return describe_settings(
            agent.dialogue, agent.sampling, agent.demonstrations.count if agent.demonstrations else 0
        )

    def make(self, suite: Suite, entry: Entry, /) -> Agent:
        """Return the agent; its settings are its own."""
        return self._agent


def check_settings(agents: Sequence[object], model: object, settings: Mapping[str, Any], option: str) -> None:
    """Raise `ConfigurationError` if settings of a model, or a model itself, would have no effect.

    Args:
        agents: Names of agents, or agents, which have their own settings.
        model: The model; None without one.
        settings: Settings of language agents, by the names of their options.
        option: Name of the option of the model.
    """
    given = [name for name, value in settings.items() if value is not None and not _is_empty(value)]
    if _own_agents(agents):
        given = [name for name in given if name not in _AGENT_SETTINGS]
    if model is None and given:
        listed = " and ".join(filter(None, [", ".join(given[:-1]), given[-1]]))
        verb = "requires" if len(given) == 1 else "require"
        raise ConfigurationError(f"{listed} {verb} a model; add {option}.")
    if model is not None and not any(isinstance(name, str) and name in LANGUAGE_AGENTS for name in agents):
        for name in agents:
            if isinstance(name, str):
                agent_class(name)  # An unknown name is the more likely mistake.
        known = ", ".join(LANGUAGE_AGENTS)
        raise ConfigurationError(f"{option} is for language agents; name one of {known}.")


def _own_agents(agents: Sequence[object]) -> list[str]:
    """Return the names of agents of other packages."""
    shipped = agent_names()
    return [name for name in agents if isinstance(name, str) and name not in shipped]


def _settings_of(own: str) -> list[str]:
    """Return the names of the settings that the class of an agent of another package takes."""
    parameters = inspect.signature(agent_class(own)).parameters.values()
    return [one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)]


def divide_settings(
    agents: Sequence[object], settings: Mapping[str, Any], option: str
) -> dict[str, dict[str, Any]]:
    """Return the settings of each language agent and each agent of one's own: those of the given ones that it has.

    Args:
        agents: Names of agents, or agents.
        settings: Settings of agents by name, such as `simulations`.
        option: Name of the option that gave them.

    Raises:
        ConfigurationError: A setting is none of any of these agents.
    """
    own = _own_agents(agents)
    named = [name for name in agents if isinstance(name, str) and (name in LANGUAGE_AGENTS or name in own)]
    known = {name: _settings_of(name) if name in own else [*language_agent_options(name)] for name in named}
    options_of_all = sorted({*chain(*known.values())})
    for key in settings:
        if not options_of_all:
            raise ConfigurationError(f"{option} has no effect: {', '.join(named)} has no settings of its own.")
        if key not in options_of_all:
            raise unknown_name(f"setting of {' and '.join(named)} in {option}", key, options_of_all)
    return {
        name: {key: value for key, value in settings.items() if key in options} for name, options in known.items()
    }


@contextmanager
def open_agents(
    agents: Sequence[str],
    *,
    engine: str | None = None,
    model: str | Model | None = None,
    base_url: str | None = None,
    template: str | None = None,
    dialogue: str | None = None,
    dialogue_arg: Sequence[str] = (),
    examples: int | None = None,
    agent_arg: Sequence[str] = (),
    temperature: float | None = None,
    max_tokens: int | None = None,
    engine_arg: Sequence[str] = (),
    device: str | None = None,
) -> Iterator[list[NamedAgent]]:
    """Context with the factories of the named agents.

    Language agents share one model, which the first of them loads when it is made, and which is closed at the end.

    Args:
        agents: Names of agents.
        engine: Name of the engine of language agents; None derives it from `model`.
        model: Folder of the model, its name as `PROVIDER/NAME`, or a `Model`; None without language agents.
        base_url: Address of an OpenAI-compatible server; None for the engine's default.
        template: Name of a shipped chat template, or a .jinja file; None for the tokenizer's.
        dialogue: Name of a dialogue; None for each agent's own.
        dialogue_arg: Settings of the dialogue over the suite's, each `key=value`.
        examples: Number of solved examples in the prompt; None for each agent's default.
        agent_arg: Settings of the agents, each `key=value`, for those that have them.
        temperature: Sampling temperature; None for the suite's.
        max_tokens: Maximum length of a reply in tokens; None for the suite's.
        engine_arg: Further arguments of the engine, each `key=value`.
        device: Device of the transformers engine; None for the best available one.

    Raises:
        ConfigurationError: A name or setting is unknown, or settings of a model are given without one.
    """
    check_settings(
        agents,
        model,
        {
            "--engine": engine,
            "--engine-arg": engine_arg,
            "--base-url": base_url,
            "--template": template,
            "--dialogue": dialogue,
            "--dialogue-arg": dialogue_arg,
            "--examples": examples,
            "--agent-arg": agent_arg,
            "--temperature": temperature,
            "--max-tokens": max_tokens,
            "--device": device,
        },
        "--model",
    )
    sampling = {k: v for k, v in (("temperature", temperature), ("max_tokens", max_tokens)) if v is not None}
    settings = {
        k: v
        for k, v in (("template", template), ("dialogue_name", dialogue), ("examples", examples))
        if v is not None
    }
    dialogue_settings = parse_options(dialogue_arg, "--dialogue-arg")
    own = divide_settings(agents, parse_options(agent_arg, "--agent-arg"), "--agent-arg")
    if isinstance(model, str):
        engine_options = parse_options(engine_arg, "--engine-arg")
        engine, model = resolve_model(model, engine)
        if device is not None:
            if engine in ENGINES and engine != "transformers":
                raise ConfigurationError(
                    f"--device has no effect with engine {engine}, which does not run the model on a device of its"
                    " choice; remove it, or use engine transformers."
                )
            engine_options["device"] = device
        model = Model(engine, model, base_url, engine_options)
    factories = [
        NamedAgent(name, model, sampling, dialogue_settings, settings | own[name])
        if name in LANGUAGE_AGENTS
        else NamedAgent(name, settings=own.get(name))
        for name in agents
    ]
    try:
        yield factories
    finally:
        if model is not None:
            model.close()


def _is_empty(value: object) -> bool:
    return isinstance(value, (tuple, list, Mapping)) and not value
