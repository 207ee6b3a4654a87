"""Plug-ins: parts of other packages, from environments to recipes, by entry point or by path.

An installed package registers a plug-in with an entry point of the group `arboretum.plugins`:

    [project.entry-points."arboretum.plugins"]
    my_agent = "my_package.agents:MyAgent"
    "MyEnv-v0" = "my_package.envs:SPEC"

The name of an environment's entry point is its id: `import arboretum` registers it with Gymnasium by this name
alone, and imports the package when the environment is made.

The object is a subclass of `Agent`, `Engine`, `Dialogue` or of a part of recipes (`Sampler`, `Selector`, `Credit`,
`Term`), or it is an `EnvSpec` or a `Recipe`. On the command line its path, such as `my_package.agents:MyAgent`,
names it without an entry point.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeVar

from .errors import ConfigurationError
from .user_code import describe_error, note_plugin

GROUP = "arboretum.plugins"

_log = logging.getLogger(__name__)

T = TypeVar("T")


class CannotImport(ConfigurationError):
    """Path `module:attribute` whose module, or whose attribute in it, there is not."""


def plugin_class(kind: type[T], name: str) -> type[T] | None:
    """Return the subclass of `kind` that a path or an installed plug-in provides.

    Args:
        kind: Base class of the plug-in.
        name: Path `module:attribute`, or the name of an entry point.

    Returns:
        The class, or None if `name` is neither a path nor an installed plug-in of this kind.

    Raises:
        ConfigurationError: The path or the plug-in cannot be imported, or the path names another kind of object.
    """
    if not isinstance(name, str):
        raise ConfigurationError(f"a name is expected, such as one of `arboretum --help`, not {name!r:.80}.")
    if ":" in name:
        found = _load(name)
        if not (isinstance(found, type) and issubclass(found, kind)):
            raise ConfigurationError(f"{name} is not a subclass of {kind.__name__}.")
        return found
    for point in entry_points(group=GROUP, name=name):
        found = _load(point.value)
        if isinstance(found, type) and issubclass(found, kind):
            return found
    return None


def plugin_names(kind: type) -> list[str]:
    """Return the names of all installed plug-ins that are subclasses of `kind` and can be imported."""
    names = []
    for name, path in plugin_paths().items():
        try:
            found = _load(path)
        except ConfigurationError:
            continue
        if isinstance(found, type) and issubclass(found, kind):
            names.append(name)
    return sorted(names)


def plugin_object(kind: type[T], name: str) -> T | None:
    """Return the instance of `kind` that a plug-in offers under `name`, or that the path `module:attribute` names.

    Returns:
        None if `name` is neither a path nor the name of an installed plug-in of this kind. A plug-in's name is its
        entry point's, or the object's own `name`.

    Raises:
        ConfigurationError: The path, or the plug-in, cannot be imported or is of another kind.
    """
    if ":" in name:
        found = _load(name)
        if not isinstance(found, kind):
            raise ConfigurationError(f"{name} is not an instance of {kind.__name__}.")
        return found
    for point in entry_points(group=GROUP, name=name):
        found = _load(point.value)
        if isinstance(found, kind):
            return found
    return next((found for found in plugin_objects(kind) if getattr(found, "name", None) == name), None)


def plugin_objects(kind: type[T]) -> list[T]:
    """Return all instances of `kind` that installed plug-ins provide, sorted by entry-point name."""
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return [found for point in points if isinstance(found := _load(point.value), kind)]


def plugin_paths() -> dict[str, str]:
    """Return the path of every installed plug-in by entry-point name, without importing any.

    Malformed metadata of an installed package are logged; there are then no plug-ins.
    """
    try:
        return {point.name: point.value for point in entry_points(group=GROUP)}
    except Exception as error:  # importlib.metadata has no error of its own for a malformed file
        _log.warning("plug-ins are not registered: the metadata of an installed package are malformed (%s)", error)
        return {}


def _load(path: str) -> object:
    """Import the object at `module:attribute`."""
    module, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:  # as `python -m` does, so that modules in the working directory are found
        sys.path.insert(0, os.getcwd())
    note_plugin(module)
    try:
        found: object = import_module(module)
    except ModuleNotFoundError as error:
        if module != error.name and not module.startswith(f"{error.name}."):  # of an import in the module
            raise ConfigurationError(f"{path} cannot be imported: {describe_error(error)}.") from error
        dotted = ".".join(Path(module).with_suffix("").parts)
        hint = f"; did you mean {dotted}:{attribute}?" if Path(module).is_file() else "."
        raise CannotImport(f"{path} cannot be imported: {error}{hint}") from error
    except Exception as error:  # Importing a module runs its code.
        raise ConfigurationError(f"{path} cannot be imported: {describe_error(error)}.") from error
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise CannotImport(f"{path} cannot be imported: {error}.") from error
    return found
