"""Registry of dialogues by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ...envs.errors import unknown_name
from ...envs.plugins import plugin_class, plugin_names
from .base import Dialogue
from .plain import Plain
from .react import ReAct
from .search_o1 import SearchO1Dialogue
from .tags import Tags
from .think import NoThink, Think
from .tools import Tools

DIALOGUES: dict[str, type[Dialogue]] = {
    kind.name: kind for kind in (Think, NoThink, ReAct, Tags, Plain, SearchO1Dialogue, Tools)
}


def make_dialogue(name: str, options: Mapping[str, Any] | None = None) -> Dialogue:
    """Make a dialogue by name.

    Args:
        name: Name of a built-in or plug-in dialogue, or the path `module:attr` of a class.
        options: Settings of the dialogue; None uses its defaults.

    Raises:
        ConfigurationError: The name or a setting is unknown, or a value is invalid.
    """
    kind = DIALOGUES.get(name) or plugin_class(Dialogue, name)  # type: ignore[type-abstract]
    if kind is None:
        raise unknown_name("dialogue", name, [*DIALOGUES, *plugin_names(Dialogue)])
    known = [field.name for field in fields(kind)]
    for option in options or {}:
        if option not in known:
            raise unknown_name(f"setting of dialogue {name}", option, known)
    return kind(**(options or {}))


def dialogue_path(dialogue: Dialogue) -> str | None:
    """Return the path `module:attr` of a dialogue's class; None for a built-in one, which its name tells apart."""
    kind = type(dialogue)
    return None if kind in DIALOGUES.values() else f"{kind.__module__}:{kind.__qualname__}"
