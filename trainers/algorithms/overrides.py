"""Settings given from outside (the command line, YAML, a run's JSON), converted to what a dataclass declares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from ...envs.errors import ConfigurationError, unknown_name
from ...envs.type_words import in_words
from .registry import is_part, part_class
from .samplers import Sampler

T = TypeVar("T")


class _Branch(dict[str, Any]):
    """Settings below one path."""


def apply_overrides(target: T, settings: Mapping[str, object]) -> T:
    """Return a copy of a dataclass with settings replaced by path.

        >>> apply_overrides(RECIPES["grpo"], {"sampler.rollouts": 4, "selector.name": "uncertainty"})

    A part's `name`, or a name in the place of the part, exchanges the part: the new one has its defaults and the
    settings given here. A new sampler keeps the settings that it shares with the old one, and a part that has the
    name already keeps all of its settings.

    Args:
        target: Dataclass to copy.
        settings: Values by path, such as "objective.kl.coef".

    Raises:
        ConfigurationError: Unknown path, a value of the wrong type, or a combination that cannot work.
    """
    tree = _Branch()
    for path, value in settings.items():
        *parents, leaf = path.split(".")
        branch = tree
        for depth, name in enumerate(parents, 1):
            branch = branch.setdefault(name, _Branch())
            if not isinstance(branch, _Branch):
                parent = ".".join(parents[:depth])
                raise ConfigurationError(f"{path} conflicts with {parent}, which is set as a whole; set only one.")
        if isinstance(branch.get(leaf), _Branch):
            raise ConfigurationError(f"{path} conflicts with the settings below it; set only one.")
        branch[leaf] = value
    return replace(target, **_values(target, type(target), tree, ""))  # type: ignore[type-var]


def convert(value: object, kind: Any, path: str) -> Any:
    """Convert plain data to a declared type.

    Args:
        value: Plain data, as JSON and YAML hold it; instances of `kind` pass.
        kind: Type annotation: a dataclass, a part of a recipe, a union, a tuple, or what `msgspec` converts.
        path: Path of the setting, for messages.

    Raises:
        ConfigurationError: The value does not have the type, or cannot work.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and type(None) in inner:
            return None
        structured = [one for one in inner if is_dataclass(one)]
        if structured and (isinstance(value, Mapping) or is_dataclass(value)):
            return convert(value, structured[0], path)
        if len(inner) == 2 and type(None) in inner and structured:
            return convert(value, structured[0], path)
        kind = Union[tuple(one for one in inner if not is_dataclass(one))]  # noqa: UP007
    elif is_part(kind) or is_dataclass(kind):
        return _instance(value, kind, path)
    elif origin is tuple and inner and (is_part(inner[0]) or is_dataclass(inner[0])):
        if not isinstance(value, (list, tuple)):
            raise ConfigurationError(f"{path} expects a list, as in [name], but is {value!r}.")
        return tuple(convert(one, inner[0], f"{path}[{place}]") for place, one in enumerate(value))
    elif kind is Path:
        return Path(convert(str(value) if isinstance(value, Path) else value, str, path))
    try:
        converted = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path} is {value!r}; {_expectation(kind, error)}.") from None
    except TypeError as error:
        raise ConfigurationError(f"{path} has a type that cannot be set from outside ({error}).") from None
    if isinstance(converted, float) and not math.isfinite(converted):
        raise ConfigurationError(f"{path} must be finite, but is {value!r}.")
    return converted


def _instance(value: object, kind: Any, path: str) -> Any:
    """Return a dataclass made of a mapping, or a part made of its name."""
    if is_dataclass(value) and isinstance(value, kind):
        return value
    settings = {"name": value} if is_part(kind) and isinstance(value, str) else value
    if not isinstance(settings, Mapping):
        raise ConfigurationError(f"{path} is {value!r}; expected settings by name.")
    cls = kind
    if is_part(kind):
        if "name" not in settings:
            raise ConfigurationError(f"{path} lacks its name; set {path}.name.")
        cls = part_class(kind, str(settings["name"]))
        settings = {name: one for name, one in settings.items() if name != "name"}
    return _construct(cls, _values(None, cls, settings, path), path)


def _values(current: object, cls: type, settings: Mapping[str, object], path: str) -> dict[str, Any]:
    """Return constructor arguments for the settings below a path.

    Args:
        current: Instance that the settings change; None for a new one.
        cls: Dataclass to construct or to change.
        settings: Values, or further branches, by field.
        path: Path of the dataclass.
    """
    declared = {field.name for field in fields(cls) if field.init}
    try:
        kinds = get_type_hints(cls)
    except NameError as error:
        raise ConfigurationError(
            f"{cls.__name__}: {error}; import the types of its settings at run time, not under TYPE_CHECKING."
        ) from None
    values = {}
    for name, value in settings.items():
        here = f"{path}.{name}" if path else name
        if name not in declared:
            if not path and (meant := [one for one in _paths(current) if one.rpartition(".")[2] == name]):
                raise ConfigurationError(f"unknown setting {name!r}; did you mean {' or '.join(meant)}?")
            known = sorted(f"{path}.{other}" if path else other for other in declared)
            raise unknown_name("setting", here, known)
        if is_part(kinds[name]) and isinstance(value, str) and current is not None:
            value = _Branch(name=value)
        if isinstance(value, _Branch):
            value = _override(getattr(current, name, None), kinds[name], value, here)
        else:
            value = convert(value, kinds[name], here)
        values[name] = value
    return values


def _paths(settings: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all settings of a dataclass that are not dataclasses themselves."""
    for field in fields(settings) if is_dataclass(settings) else ():
        here = f"{path}.{field.name}" if path else field.name
        value = getattr(settings, field.name)
        if is_dataclass(value):
            yield from _paths(value, here)
        else:
            yield here


def _override(current: object, kind: Any, branch: _Branch, path: str) -> Any:
    """Return a changed copy of a nested dataclass, or a new one where its name changes or there is none yet."""
    if get_origin(kind) is tuple:
        raise ConfigurationError(f"{path} is a list; set {path} as a whole, as a list of names or mappings.")
    candidates: list[Any] = [one for one in (get_args(kind) or (kind,)) if is_dataclass(one)]
    if not candidates:
        raise ConfigurationError(f"{path} is {current!r}, which has no settings below it; set {path} as a whole.")
    cls: Any = type(current) if is_dataclass(current) else candidates[0]
    if is_part(candidates[0]) and "name" in branch:
        if not isinstance(branch["name"], str):
            raise ConfigurationError(f"{path}.name must be the name of a part, but is {branch['name']!r}.")
        cls = part_class(candidates[0], str(branch["name"]))
        branch = _Branch({name: value for name, value in branch.items() if name != "name"})
    values = _values(current if type(current) is cls else None, cls, branch, path)
    if type(current) is cls:
        return replace(current, **values)  # type: ignore[type-var]
    if isinstance(current, Sampler):
        shared = {field.name for field in fields(current)} & {field.name for field in fields(cls)}
        values = {**{name: getattr(current, name) for name in shared}, **values}
    return _construct(cls, values, path)


def _construct(cls: Any, values: Mapping[str, Any], path: str) -> Any:
    try:
        return cls(**values)
    except TypeError as error:
        missing = str(error).partition("missing ")[2]
        if not missing:
            raise
        raise ConfigurationError(f"{path} lacks settings: {missing.partition(': ')[2] or missing}.") from None


def _expectation(kind: Any, error: Exception) -> str:
    choices = [one for part in (get_args(kind) or (kind,)) for one in get_args(part) if isinstance(one, str)]
    if get_origin(kind) is Literal:
        choices = [str(one) for one in get_args(kind)]
    if choices:
        return f"choose one of {', '.join(map(repr, choices))}"
    return in_words(error)
