"""Parts of recipes by name: samplers, selectors, credits and terms of the objective, built in or from plug-ins.

A plug-in adds a part as environments and agents are added: a class behind an entry point of the group
`arboretum.plugins`, or the path `module:Class`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TypeVar

from ...envs.errors import ConfigurationError, unknown_name
from ...envs.plugins import plugin_class, plugin_names
from .credit.anchor import Anchor
from .credit.base import Credit
from .credit.cognitive_credit import Cognitive
from .credit.gae import Gae
from .credit.group import Group
from .credit.grove_credit import Grove
from .credit.tree import TreeCredit
from .objectives.surgical import Surgical
from .objectives.term import Term
from .samplers import Chains, Sampler, Trees
from .selectors import All, Dynamic, Selector, Uncertainty

PartT = TypeVar("PartT")

SAMPLERS: Mapping[str, type[Sampler]] = {part.name: part for part in (Chains, Trees)}
SELECTORS: Mapping[str, type[Selector]] = {part.name: part for part in (All, Uncertainty, Dynamic)}
CREDITS: Mapping[str, type[Credit]] = {
    part.name: part for part in (Gae, Group, Anchor, TreeCredit, Cognitive, Grove)
}
TERMS: Mapping[str, type[Term]] = {part.name: part for part in (Surgical,)}

_TABLES: Mapping[type, tuple[str, Mapping[str, type]]] = {
    Sampler: ("sampler", SAMPLERS),
    Selector: ("selector", SELECTORS),
    Credit: ("credit", CREDITS),
    Term: ("term", TERMS),
}


def is_part(kind: object) -> bool:
    """Return True for an abstract part of a recipe, which a name makes concrete."""
    return kind in _TABLES


def part_class(kind: type[PartT], name: str) -> type[PartT]:
    """Return the class of a part.

    Args:
        kind: `Sampler`, `Selector`, `Credit` or `Term`.
        name: Name of a built-in part or of a plug-in, or the path `module:Class`.

    Raises:
        ConfigurationError: No such part.
    """
    label, table = _TABLES[kind]
    if name in table:
        return table[name]
    found = plugin_class(kind, name)
    if found is None:
        raise unknown_name(label, name, [*table, *plugin_names(kind)])
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))  # type: ignore[attr-defined]
        raise ConfigurationError(f"{label} {name} is abstract; it must define {missing}.")
    if not isinstance(getattr(found, "name", None), str):
        raise ConfigurationError(f"{label} {name} must define the class attribute `name`.")
    return found


def part_name(part: object) -> str:
    """Return the name under which `part_class` finds the class of a part."""
    cls = type(part)
    for _, table in _TABLES.values():
        if cls in table.values():
            return str(cls.name)  # type: ignore[attr-defined]
    return f"{cls.__module__}:{cls.__qualname__}"
