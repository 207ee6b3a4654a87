"""Registry of engines by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from ...envs.errors import ConfigurationError, unknown_name
from ...envs.plugins import plugin_class, plugin_names
from .base import Engine

ENGINES: dict[str, tuple[str, str]] = {
    "transformers": ("transformers", "TransformersEngine"),
    "vllm": ("vllm", "VLLMEngine"),
    "vllm-server": ("vllm_server", "VLLMServerEngine"),
    "openai": ("openai", "OpenAIEngine"),
}
"""Name -> (module of this package, class); the module is imported when its engine is made."""


def make_engine(name: str, model: str, /, **options: Any) -> Engine:
    """Make an engine by name.

    Args:
        name: Name of a built-in or plug-in engine, or the path `module:attr` of a class.
        model: The model that the engine loads or requests.
        options: Further arguments of the class; None leaves one at its default.

    Raises:
        ConfigurationError: The engine or an option is unknown, or the engine cannot be made.
    """
    given = {key: value for key, value in options.items() if value is not None}
    return engine_class(name, given)(model, **given)  # type: ignore[call-arg]


def engine_class(name: str, options: Iterable[str] = ()) -> type[Engine]:
    """Return the class of an engine, which accepts the options; no model is loaded.

    Args:
        name: See `make_engine`.
        options: Names of further arguments of the class.

    Raises:
        ConfigurationError: The engine or an option is unknown.
    """
    if name in ENGINES:
        module, cls = ENGINES[name]
        kind: type[Engine] = getattr(import_module(f".{module}", __package__), cls)
    else:
        plugin = plugin_class(Engine, name)  # type: ignore[type-abstract]
        if plugin is None:
            raise unknown_name("engine", name, [*ENGINES, *plugin_names(Engine)])
        kind = plugin
    known = _options(kind)
    for option in options:
        if option == "model":
            raise ConfigurationError(
                f"the model is no option of engine {name}; name it with --model (in Python model=)."
            )
        if known is not None and option not in known:
            raise unknown_name(f"option of engine {name}", option, known)
    return kind


def _options(kind: type[Engine]) -> list[str] | None:
    """Return the options of an engine class, including those of base classes that it forwards (`**options`).

    Returns:
        None if the remaining options are forwarded to another library, whose options are not known here.
    """
    known: list[str] = []
    for cls in inspect.getmro(kind):
        if "__init__" in vars(cls):
            _, *parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
            known += [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name != "model"]
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                return [*dict.fromkeys(known)]
    return None
