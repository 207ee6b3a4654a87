"""The engines by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ...envs.errors import unknown_name
from ...envs.plugins import plugin_class
from .base import Engine

ENGINES: dict[str, tuple[str, str]] = {
    "transformers": ("transformers", "TransformersEngine"),
    "vllm": ("vllm", "VLLMEngine"),
    "vllm-server": ("vllm_server", "VLLMServerEngine"),
    "openai": ("openai", "OpenAIEngine"),
}
"""Name -> (module of this package, class); a module is imported when its engine is made."""


def make_engine(name: str, model: str, **options: Any) -> Engine:
    """The engine of a name, a plug-in's, or the class at a path `module:attr`.

    Args:
        name: which engine.
        model: what it loads, or asks for.
        options: further arguments of its class; None leaves one at its default.

    Raises:
        ConfigurationError: unknown engine or option, or whatever the engine finds wrong.
    """
    if name in ENGINES:
        module, cls = ENGINES[name]
        kind: Callable[..., Engine] = getattr(import_module(f".{module}", __package__), cls)
    else:
        found = plugin_class(Engine, name)  # type: ignore[type-abstract]
        if found is None:
            raise unknown_name("engine", name, ENGINES)
        kind = found
    given = {key: value for key, value in options.items() if value is not None}
    known = [parameter for parameter in inspect.signature(kind).parameters if parameter != "model"]
    for option in given:
        if option not in known:
            raise unknown_name(f"option of engine {name}", option, known)
    return kind(model, **given)
