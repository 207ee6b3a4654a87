"""The model of a run's language agents: checked at once, loaded on first use."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ..agents.engines.base import Engine
from ..agents.engines.faults import BASE_URL_OPTION
from ..agents.engines.model_check import check_model, is_path, nearest_folder
from ..agents.engines.registry import ENGINES, engine_class, make_engine
from ..agents.engines.shipped_models import NAMED_MODELS, read_taught_dialogue
from ..envs.checks import expand_home
from ..envs.errors import ConfigurationError
from ..envs.plugins import plugin_class
from .given import identify_given_engine
from .identity import identify_model

_LOCAL_ENGINES = ("transformers", "vllm")
_PLUGIN_PATH = re.compile(r"[\w.]+:[\w.]+")


class Model:
    """Model that language agents share.

    Args:
        engine: Name of the engine.
        name: Folder of the model, or its name.
        base_url: Address of an OpenAI-compatible server; None for the engine's default.
        options: Further arguments of the engine.

    Raises:
        ConfigurationError: The engine or an option is unknown, a folder does not exist, or two addresses differ.
    """

    def __init__(
        self, engine: str, name: str, base_url: str | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        self.options = dict(options or {})
        address = self.options.pop("base_url", None)
        if address is not None and base_url not in (None, address):
            raise ConfigurationError(
                f"{BASE_URL_OPTION} is {base_url!r}, but the engine's argument base_url {address!r}; remove one."
            )
        self.engine_name, self.name = engine, name
        self.base_url = base_url if address is None else str(address)
        if engine == "openai":  # The identity names the server that the engine would take from the environment.
            self.base_url = self.base_url or os.environ.get("OPENAI_BASE_URL") or None
        engine_class(engine, [*self.options, *(["base_url"] if self.base_url is not None else [])])
        self._source = name
        if engine in _LOCAL_ENGINES:
            if is_path(name) or Path(name).is_dir():
                check_model(name)
                # A process on another machine, which loads a copy, has another working directory.
                self._source = str(expand_home(name).absolute())
            if self.options.get("device") is not None:
                _check_device(str(self.options["device"]))
        self._engine: Engine | None = None

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """Everything that decides the model's replies, as plain data; hashes the weights of a local model."""
        return identify_model(self.engine_name, self.name, self.base_url, self.options)

    @property
    def is_local(self) -> bool:
        """True if the process that loads the model runs it, and not a server."""
        return self._engine is None and self.engine_name in _LOCAL_ENGINES

    @cached_property
    def taught_dialogue(self) -> str | None:
        """Name of the dialogue that a local model was last trained with; None if unknown."""
        return read_taught_dialogue(self.name) if self.is_local else None

    @property
    def devices(self) -> int:
        """Number of GPUs over which the engine spreads the model."""
        return int(self.options.get("tensor_parallel_size") or 1)

    def load(self) -> Engine:
        """Return the engine, which the first call makes.

        Raises:
            ConfigurationError: The engine cannot be made.
        """
        if self._engine is None:
            self._engine = make_engine(self.engine_name, self._source, base_url=self.base_url, **self.options)
        return self._engine

    def close(self) -> None:
        """Close the engine, if it was made."""
        if self._engine is not None:
            self._engine.close()


class GivenModel(Model):
    """Model behind an engine that the caller has made, and closes.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name = engine.name.partition(":")[2] or engine.name

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        assert self._engine is not None
        return identify_given_engine(self._engine)

    def close(self) -> None:
        """Leave the engine open."""


def resolve_model(model: str, engine: str | None = None) -> tuple[str, str]:
    """Return the engine and the model that `--model` means.

    Args:
        model: Folder of a model, `PROVIDER/NAME` with the name of an engine as provider, "sapling" or "smollm2".
            With `engine`, whatever that engine takes as its model.
        engine: Name of the engine; None derives it from `model`.

    Raises:
        ConfigurationError: The text is none of these.
    """
    if not isinstance(model, str):
        raise ConfigurationError(f"model must be PROVIDER/NAME or the path of a folder, not {model!r:.80}.")
    if not model:
        raise ConfigurationError("the name of the model is empty; write PROVIDER/NAME, or the path of a folder.")
    if engine is not None:
        return engine, model
    provider, _, name = model.partition("/")
    if name and (provider in ENGINES or _is_plugin(provider)):
        return provider, name
    if model in NAMED_MODELS or expand_home(model).is_dir():
        return "transformers", model
    known = ENGINES if name else NAMED_MODELS
    near = difflib.get_close_matches(provider, known, n=1, cutoff=0.75)
    if near:
        hint = f"did you mean {near[0]}{f'/{name}' if name else ''}?"
    elif "://" in model:
        hint = f"an address belongs to {BASE_URL_OPTION}."
    elif is_path(model):
        hint = f"there is no such folder{nearest_folder(expand_home(model))}"
    else:
        hint = f"write {', '.join(f'{one}/{model}' for one in ENGINES)}, or the path of a folder."
    raise ConfigurationError(f"model {model!r} names neither a folder nor a provider; {hint}")


def _is_plugin(provider: str) -> bool:
    if ":" in provider and not _PLUGIN_PATH.fullmatch(provider):
        return False
    return plugin_class(Engine, provider) is not None  # type: ignore[type-abstract]


def _check_device(name: str) -> None:
    try:
        from ..agents.engines.local.device import check_device
    except ImportError:
        return  # The engine says which extra is missing.
    check_device(name)
