"""The agents of a run, made from the options of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ..agents.base import Agent
from ..agents.engines.base import Engine
from ..agents.engines.registry import ENGINES, make_engine
from ..agents.registry import LANGUAGE_AGENTS, make_agent
from ..envs.errors import ConfigurationError
from .identity import identify_agent, identify_model, model_label
from .options import parse_options
from .suite import Entry, Suite


class AgentFactory(Protocol):
    """Factory of the agents that play a run under one name, one agent per suite entry.

    Attributes:
        name: Name in tables and records; unique within a run.
        uses_success_labels: True if the agent uses the success that the environment reports, for example to retry.
        identity: Everything that decides the agent's episodes, as plain data; a run is resumed only with the same.
    """

    name: str
    uses_success_labels: bool
    identity: Mapping[str, Any]

    def make(self, suite: Suite, entry: Entry, /) -> Agent:
        """Make the agent for an entry, with the settings of suite and entry."""
        ...


class NamedAgent:
    """Factory of a registered agent (or a plug-in's), with the settings of the command line.

    Args:
        kind: Name of the agent, see `make_agent`.
        engine: Model of a language agent; None for agents without a model.
        model: Identity of the model, see `identify_model`; its label becomes part of the agent's name.
        sampling: Sampling settings that override those of suite and entry.
        dialogue: Dialogue settings that override those of suite and entry.
        settings: Further arguments of `make_agent`.

    Raises:
        ConfigurationError: The name or a setting is unknown, or a language agent has no engine.
    """

    def __init__(
        self,
        kind: str,
        engine: Engine | None = None,
        sampling: dict[str, Any] | None = None,
        dialogue: dict[str, Any] | None = None,
        *,
        model: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.kind = kind
        self.engine = engine
        self.sampling = sampling or {}
        self.dialogue = dialogue or {}
        self.settings = settings
        # Fail fast on an unknown name or setting.
        agent = make_agent(kind, engine=engine, dialogue=self.dialogue, **settings)
        self.uses_success_labels = agent.uses_success_labels
        self.name = agent.name
        self.identity: Mapping[str, Any] = {}
        if engine is not None:
            source = model or {
                "engine": type(engine).__name__,
                "model": engine.name.partition(":")[2] or engine.name,
            }
            self.name = f"{agent.name}:{model_label(str(source['model']))}"
            self.identity = identify_agent(agent, source, self.sampling, settings)

    def make(self, suite: Suite, entry: Entry, /) -> Agent:
        """Make the agent for an entry. The entry's settings override the suite's, the command line's both."""
        return make_agent(
            self.kind,
            engine=self.engine,
            dialogue={**suite.dialogue, **entry.dialogue, **self.dialogue},
            sampling={**suite.sampling, **entry.sampling, **self.sampling},
            **self.settings,
        )


@contextmanager
def open_agents(
    agents: Sequence[str],
    *,
    engine: str | None = None,
    model: str | None = None,
    base_url: str | None = None,
    template: str | None = None,
    dialogue: str | None = None,
    dialogue_arg: Sequence[str] = (),
    examples: int | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    engine_arg: Sequence[str] = (),
    device: str | None = None,
) -> Iterator[list[NamedAgent]]:
    """Context with the factories of the named agents.

    Language agents share one engine, which is closed at the end.

    Args:
        agents: Names of agents.
        engine: Name of the engine of language agents; None without language agents.
        model: Name or folder of the engine's model.
        base_url: Address of an OpenAI-compatible server; None for the engine's default.
        template: Name of a shipped chat template; None for the tokenizer's.
        dialogue: Name of a dialogue; None for each agent's own.
        dialogue_arg: Settings of the dialogue over the suite's, each `key=value`.
        examples: Number of solved examples in the prompt; None for each agent's default.
        temperature: Sampling temperature; None for the suite's.
        max_tokens: Maximum length of a reply in tokens; None for the suite's.
        engine_arg: Further arguments of the engine, each `key=value`.
        device: Device of the transformers engine; None for the best available one.

    Raises:
        ConfigurationError: A name or setting is unknown, or only one of `engine` and `model` is given.
    """
    if (engine is None) != (model is None):
        raise ConfigurationError("--engine and --model belong together; give both or neither.")
    if engine is None and (engine_arg or dialogue_arg or base_url or template or dialogue or device):
        raise ConfigurationError(
            "--engine-arg, --base-url, --template, --dialogue, --dialogue-arg and --device require a model; add"
            " --engine and --model."
        )
    sampling = {k: v for k, v in (("temperature", temperature), ("max_tokens", max_tokens)) if v is not None}
    settings = {
        k: v
        for k, v in (("template", template), ("dialogue_name", dialogue), ("examples", examples))
        if v is not None
    }
    dialogue_settings = parse_options(dialogue_arg, "--dialogue-arg")
    shared_engine, identity = None, None
    if engine is not None and model is not None:
        options = parse_options(engine_arg, "--engine-arg")
        if device is not None:
            if engine in ENGINES and engine != "transformers":
                raise ConfigurationError(
                    f"--device has no effect with --engine {engine}, which does not run the model on a device of"
                    " its choice; remove it, or use --engine transformers."
                )
            options["device"] = device
        shared_engine = make_engine(engine, model, base_url=base_url, **options)
        identity = identify_model(engine, model, base_url, options)
    try:
        yield [
            NamedAgent(name, shared_engine, sampling, dialogue_settings, model=identity, **settings)
            if name in LANGUAGE_AGENTS
            else NamedAgent(name)
            for name in agents
        ]
    finally:
        if shared_engine is not None:
            shared_engine.close()
