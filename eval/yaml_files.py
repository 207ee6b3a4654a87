"""Definitions in YAML files, shipped or the user's own: found by name or path, parsed, and checked for shape."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import yaml

from ..assets import asset
from ..envs.checks import expand_home
from ..envs.errors import DataError, unknown_name
from ..envs.type_words import in_words

T = TypeVar("T")


class _Loader(yaml.SafeLoader):
    """Loader that reads 3e-4 and 1e5 as numbers and 2024-01-31 as text, and rejects a key that is given twice.

    So does YAML 1.2, and YAML 1.1, which PyYAML reads, does not.
    """

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        given: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in given:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice", key.start_mark
                )
            given.add(str(key.value))
        super().flatten_mapping(node)


_Loader.yaml_implicit_resolvers = {
    first: [one for one in resolvers if one[0] != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def load_yaml(text: str) -> Any:
    """Return the value of YAML text.

    Raises:
        yaml.YAMLError: The text is not YAML.
    """
    try:
        return yaml.load(text, _Loader)
    except (
        ValueError,
        AttributeError,
        RecursionError,
    ) as error:  # Of `!!int one`, or of brackets a thousand deep.
        raise yaml.YAMLError(str(error)) from None


def shipped_names(folder: str) -> list[str]:
    """Return the names of the YAML files in a folder of the package's assets."""
    return sorted(path.stem for path in asset(folder).glob("*.yaml"))


def read_definition(kind: str, folder: str, name: str, others: Sequence[str] = ()) -> tuple[str, str]:
    """Return the text of a shipped definition, or of any file by its path, and the file's name for messages.

    Args:
        kind: Kind of definition, such as "suite", for messages.
        folder: Folder of the shipped definitions in the package's assets.
        name: Name of a shipped definition, or path of a YAML file.
        others: Further names that the user may have meant, for the suggestions in an error message.

    Raises:
        ConfigurationError: There is no such definition.
        DataError: The file cannot be read.
    """
    names = shipped_names(folder)
    if name in names:
        return asset(f"{folder}/{name}.yaml").read_text(encoding="utf-8"), f"{name}.yaml"
    path = expand_home(name)
    if path.suffix not in (".yaml", ".yml"):
        raise unknown_name(kind, name, [*names, *others, "or the path of a .yaml file"])
    try:
        return path.read_text(encoding="utf-8"), name
    except UnicodeDecodeError:
        raise DataError(path, "is not UTF-8 text.") from None
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror or error}.") from None


def parse_mapping(text: str, source: str, expected: str) -> dict[str, Any]:
    """Parse YAML text that must be a mapping.

    Args:
        text: Content of the file.
        source: Name of the file, for messages.
        expected: Keys of the mapping in words, for messages.

    Raises:
        DataError: The text is not YAML, or not a mapping.
    """
    try:
        data = load_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else None
        raise DataError(source, f"is not YAML ({getattr(error, 'problem', error)}).", line) from None
    if not isinstance(data, dict):
        raise DataError(source, f"expected a mapping with {expected}.")
    return data


def convert_mapping(data: Mapping[str, Any], kind: type[T], defaults: Mapping[str, Any], where: str) -> T:
    """Convert a mapping to a dataclass with the same fields.

    Args:
        data: The mapping; a key whose value is None counts as absent.
        kind: The dataclass.
        defaults: Values of absent keys, in addition to the defaults of the dataclass.
        where: Place of the mapping, for messages.

    Raises:
        DataError: A key is unknown, a required key is absent, or a value has the wrong type.
    """
    known = sorted(field.name for field in dataclasses.fields(kind))  # type: ignore[arg-type]
    for key in data:
        if key not in known:
            raise DataError(where, str(unknown_name("key", key, known)))
    given = {key: value for key, value in data.items() if value is not None}
    try:
        return msgspec.convert({**defaults, **given}, kind)
    except msgspec.ValidationError as error:
        problem, _, path = in_words(error).partition(", at `")
        if not path:
            missing = problem.partition("`")[2].rstrip("`")
            raise DataError(where, f"`{missing}` is missing.") from None
        key = path.rstrip("`")
        raise DataError(where, f"`{key}` has a value of the wrong type ({problem}).") from None
