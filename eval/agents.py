"""The players of a run, from what a person says on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import yaml

from ..agents.base import Agent
from ..agents.engines.base import Engine
from ..agents.engines.registry import make_engine
from ..agents.registry import LANGUAGE_AGENTS, make_agent
from ..envs.errors import ConfigurationError
from .suite import Entry, Suite

_POWER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


class NamedAgent:
    """A player by its name in the table of agents.

    Args:
        kind: name of the agent.
        engine: the model of a language agent; part of the player's name.
        sampling: settings that override the suite's.
        settings: further arguments of `make_agent`.
    """

    def __init__(
        self, kind: str, engine: Engine | None = None, sampling: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        self.kind = kind
        self.engine = engine
        self.sampling = sampling or {}
        self.settings = settings
        agent = make_agent(kind, engine=engine, **settings)  # a wrong name is told now, not after an hour
        self.uses_success_labels = agent.uses_success_labels
        self.name = agent.name if engine is None else f"{agent.name}:{engine.name.rpartition('/')[2]}"

    def agent(self, suite: Suite, entry: Entry, /) -> Agent:
        """The agent for an entry: the suite's settings, the entry's over them, the command line's over both."""
        return make_agent(
            self.kind,
            engine=self.engine,
            dialogue={**suite.dialogue, **entry.dialogue},
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
    examples: int | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    option: Sequence[str] = (),
    in_flight: int = 64,
) -> Iterator[list[NamedAgent]]:
    """The players of these names; language agents share one engine, which is closed at the end.

    Raises:
        ConfigurationError: an unknown name or setting, or half of a model's description.
    """
    if (engine is None) != (model is None):
        raise ConfigurationError("--engine and --model belong together: name both, or neither.")
    if engine is None and (option or base_url or template or dialogue):
        raise ConfigurationError("--option, --base-url, --template and --dialogue belong to --engine and --model.")
    sampling = {k: v for k, v in (("temperature", temperature), ("max_tokens", max_tokens)) if v is not None}
    settings = {
        k: v for k, v in (("template", template), ("dialogue_name", dialogue), ("examples", examples)) if v
    }
    made = None
    if engine is not None and model is not None:
        made = make_engine(engine, model, base_url=base_url, **options_of(option, "--option"))
    try:
        yield [
            NamedAgent(name, made, sampling, **settings) if name in LANGUAGE_AGENTS else NamedAgent(name)
            for name in agents
        ]
    finally:
        if made is not None:
            made.close()


def options_of(pairs: Sequence[str], flag: str) -> dict[str, Any]:
    """`key=value` pairs; values are read as YAML, so that numbers and lists are what they look like.

    So are numbers such as 3e-4, which YAML 1.1 takes for words.
    """
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.replace(".", "_").isidentifier():
            raise ConfigurationError(f"{flag} takes key=value, not {pair!r}.")
        options[key] = float(value) if _POWER.fullmatch(value.strip()) else yaml.safe_load(value)
    return options
